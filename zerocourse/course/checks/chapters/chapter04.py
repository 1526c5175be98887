"""The checks of chapter 04, data parallel: cutting, averaging, counting words, stale gradients, two halves of a ring.

What 4.5 and 4.6 observe and conclude is in `rings`, and that of 4.7, the long one, in `buckets`.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from ....classics import ring
from ..exercise import exercise
from ..lab import Lab
from ..verdict import Wrong
from ..words import a, value_text
from . import buckets, rings
from .rings import bounds, even_sizes
from .wire import Wire, sorted_values

RING = ("zerocourse.classics.ring:*",)


# 4.1 ----------------------------------------------------------------------------------------------------------------

def ceil_bounds(n, ranks):
    size = -(-n // ranks)
    return [(min(n, r * size), min(n, (r + 1) * size)) for r in range(ranks)]


@exercise("4.1", "Cut a row", minutes=10, difficulty=1, answer="cut")
def cut(lab: Lab):
    cases = [(12, 4), (14, 4), (9, 4), (7, 4), (1202, 3), (2, 4), (0, 3), (5, 1), (10**6 + 1, 2)]
    lab.compare(cases, lambda n, ranks: bounds(even_sizes(n, ranks)), [
        ("You made the parts ceil(n / ranks) long, so that the last ones are short or empty: two parts may differ by "
         "one element at most.", ceil_bounds),
        ("You made the parts ceil(n / ranks) long, so that the last ones are short or empty and end behind the row.",
         lambda n, ranks: bounds([-(-n // ranks)] * ranks)),
        ("You lost the last elements: parts of n // ranks do not cover the row, and n % ranks elements are left.",
         lambda n, ranks: bounds([n // ranks] * ranks)),
        ("You gave everything that is left over to the last part: two parts may differ by one element at most.",
         lambda n, ranks: bounds([n // ranks] * (ranks - 1) + [n - n // ranks * (ranks - 1)])),
        ("You gave everything that is left over to the first part: two parts may differ by one element at most.",
         lambda n, ranks: bounds([n // ranks + n % ranks] + [n // ranks] * (ranks - 1))),
        ("The sizes are right, but the longer parts have to come first.",
         lambda n, ranks: bounds(even_sizes(n, ranks)[::-1])),
        ("The sizes are right, but the longer parts have to come first.",
         lambda n, ranks: [(r * n // ranks, (r + 1) * n // ranks) for r in range(ranks)]),
        ("You returned where a part starts and how long it is: where it stops is wanted, one behind its last element.",
         lambda n, ranks: [(start, stop - start) for start, stop in bounds(even_sizes(n, ranks))]),
        ("You returned the last element that belongs to a part: stop is one behind it, as in row[start:stop].",
         lambda n, ranks: [(start, stop - 1) for start, stop in bounds(even_sizes(n, ranks))]),
        ("You returned the sizes: where each part starts and stops is wanted.", even_sizes),
    ])
    return "every element is in one part, and no part is longer than another by more than one."


# 4.2 ----------------------------------------------------------------------------------------------------------------

def averages(answer):
    """What the answer does to the gradients of a small model; every rank has the same model and its own data."""
    model = nn.ModuleDict({"one": nn.Linear(6, 5), "two": nn.Linear(5, 3), "unused": nn.Linear(2, 2)})
    model["one"].bias.requires_grad_(False)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 + dist.get_rank()))
    model["two"](model["one"](x).relu()).square().mean().backward()
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    local = {name: param.grad.clone() for name, param in model.named_parameters() if param.grad is not None}
    with Wire(agree=True, keep=True) as wire:
        answer(model)
    after = {name: param.grad for name, param in model.named_parameters()}
    moved = [name for name, param in model.named_parameters() if not torch.equal(param, before[name])]
    given, weights = sorted_values(wire.log), [before, {name: before[name] for name in local}]
    sent_weights = any(torch.equal(given, joined(each).sort().values) for each in weights)
    roots = sorted({entry["root"] for entry in wire.log if entry.get("root") is not None})
    return {"local": local, "after": after, "moved": moved, "verbs": wire.verbs, "sent_weights": sent_weights,
            "roots": roots}


def joined(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients.values()])


@exercise("4.2", "Average the gradients", minutes=15, difficulty=1, answer="average_gradients", timeout=15,
          replaces=("zerocourse.zero.ddp:*", "zerocourse.comm.group:Comm.reduce_scatter", "zerocourse.comm.group:Comm.all_gather",
                    "zerocourse.comm.group:Comm.all_reduce"))
def average_gradients(lab: Lab):
    for world in (2, 3):
        ranks = lab.run(averages, world=world)
        for rank in sorted(range(world), key=lambda rank: rank == 0):  # rank 0's own gradients look like a broadcast
            judge_average(lab, ranks, rank, ranks[rank])
    return "the same on 2 and on 3 ranks, and who had no gradient has none."


def judge_average(lab: Lab, ranks, rank: int, found):
    world, where = len(ranks), f"on rank {rank} of {len(ranks)}"
    if found["sent_weights"] or found["moved"]:
        moved = f"the parameter {found['moved'][0]!r} has changed" if found["moved"] else "no gradient was sent"
        lab.wrong(f"{where} {moved}. You communicated the parameters: it is `param.grad` that has to be averaged, the "
                  "parameters are the same on all ranks already.")
    for name, gradient in found["after"].items():
        if name not in found["local"] and gradient is not None:
            lab.wrong(f"{where} the parameter {name!r} had no gradient and has one now. Leave `None` as it is: the "
                      "optimizer leaves such a parameter alone, while a gradient of zeros would let its weight decay.")
        if name in found["local"] and (gradient is None or gradient.shape != found["local"][name].shape):
            lab.wrong(f"{where} the gradient of {name!r} is {value_text(gradient)}: it keeps its shape, "
                      f"{tuple(found['local'][name].shape)}, and stays in `param.grad`.")
    rows = [joined(each["local"]) for each in ranks]
    total, mine = sum(rows), rows[rank]
    got = joined({name: found["after"][name] for name in found["local"]})
    silent = not found["verbs"]
    if found["verbs"] in (["reduce"], ["gather"]) and len(found["roots"]) == 1 and not got.allclose(total / world):
        verb, brings = ("reduce", "the sum") if found["verbs"] == ["reduce"] else ("gather", "all gradients")
        lab.wrong(f"{where} the gradients are {value_text(got.tolist(), 60)}. You called {verb}, which brings {brings} "
                  "to one rank only: every rank needs the average.")
    lab.expect(got, total / world, f"the gradients {where}, in one row", [
        ("You summed the gradients and never divided by the number of ranks: that acts like a learning rate "
         f"{world} times as large.", total),
        ("You divided by 2, however many ranks there are.", total / 2),
        ("You divided by the number of ranks twice.", total / world**2),
        ("You divided by the number of ranks, and never added up: nothing was sent." if silent else
         "You divided by the number of ranks, and the sum went elsewhere: these are this rank's own gradients.",
         mine / world),
        ("Nothing was sent: these are still this rank's own gradients." if silent else
         "Something was sent, but the result was thrown away: these are still this rank's own gradients. Write it into "
         "`param.grad`.", mine),
        ("These are the gradients of rank 0 alone: they were copied to all, and nobody's were added.", rows[0]),
        ("You took the largest gradient of all ranks, element by element: the average is wanted.",
         torch.stack(rows).amax(0)),
    ])


# 4.3 ----------------------------------------------------------------------------------------------------------------

BOOKS = {2: ["the cat sat on the mat the end", "the dog sat on the cat and the dog ran"],
         3: ["the cat sat on the mat the end", "", "the dog sat on the cat and the dog ran on"]}


class OwnerByLetters:
    """A rank map for words that nobody guesses: by the sum of their letters."""

    def __init__(self, world_size: int):
        self.world_size = world_size

    def __call__(self, word: str) -> int:
        return sum(map(ord, word)) % self.world_size


def count_words(answer):
    """The answer's totals on this rank, and the parcels it gave to `exchange`."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    given = []

    def exchange(parcels):
        if not isinstance(parcels, (list, tuple)) or len(parcels) != world_size:
            raise Wrong(f"`exchange` was given {value_text(parcels, 60)}: it takes a list of {world_size} parcels, "
                        "one for each rank")
        for parcel in parcels:
            if not isinstance(parcel, dict):
                raise Wrong(f"`exchange` was given {a(parcel)} for a rank, {value_text(parcel, 60)}: count before you "
                            "send, so that a parcel is a dictionary word: count and each word travels once")
        given.append([dict(parcel) for parcel in parcels])
        wire.meet("exchange")
        everything = [None] * world_size
        with _disable_current_modes():
            dist.all_gather_object(everything, [dict(parcel) for parcel in parcels])
        return [sent[rank] for sent in everything]

    with Wire(agree=True) as wire:
        totals = answer(BOOKS[world_size][rank], OwnerByLetters(world_size), exchange)
    return {"totals": dict(totals) if isinstance(totals, dict) else totals, "given": given}


def tally(texts):
    counts = {}
    for word in " ".join(texts).split():
        counts[word] = counts.get(word, 0) + 1
    return counts


@exercise("4.3", "Count words together", minutes=20, difficulty=2, answer="word_count", timeout=15,
          replaces=("zerocourse.classics.word_count:word_count",))
def word_count(lab: Lab):
    for world in (2, 3):
        for rank, found in enumerate(lab.run(count_words, world=world)):
            judge_words(lab, world, rank, found)
    return "map, shuffle, reduce: each total is on one rank, and only counts that were needed there travelled."


def judge_words(lab: Lab, world: int, rank: int, found):
    texts, owner = BOOKS[world], OwnerByLetters(world)
    where = f"on rank {rank} of {world}"
    locals_ = [tally([text]) for text in texts]
    everything = tally(texts)

    def mine(counts):
        return {word: number for word, number in counts.items() if owner(word) == rank}

    overwritten = {word: number for counts in locals_ for word, number in counts.items()}
    others = tally(text for peer, text in enumerate(texts) if peer != rank)
    presence = {word: sum(word in counts for counts in locals_) for word in everything}
    if not found["given"]:
        lab.wrong(f"{where} `exchange` was never called, so that no rank learns what the others have counted.")
    if isinstance(found["totals"], dict) and found["totals"] == everything:
        lab.wrong(f"{where} the totals are {value_text(everything)}: right, but every rank has every word. You sent "
                  "all counts to all ranks; each count should go to the owner of its word, and to nobody else.")
    lab.expect(found["totals"], mine(everything), f"the totals {where}, whose text is {texts[rank]!r}", [
        ("You counted only this rank's own text: the parcels that came from the others are to be added.",
         mine(locals_[rank])),
        ("These are the counts of this rank's own text, for all its words: a rank has the totals of the words it owns.",
         locals_[rank]),
        ("What comes later replaced what came before: add up the counts of a word that several parcels have.",
         mine(overwritten)),
        ("You left out what this rank counted itself: its own parcel belongs to the sum.", mine(others)),
        ("You counted in how many texts a word occurs: how often it occurs is wanted.", mine(presence)),
    ])
    strangers = [word for peer, parcel in enumerate(found["given"][0]) for word in parcel if owner(word) != peer]
    if strangers:
        lab.wrong(f"the totals are right, but {where} the word {strangers[0]!r} was sent to a rank that does not own "
                  "it: every word should travel to its owner only, else each rank receives the whole library.")
    if len(found["given"]) > 1:
        lab.wrong(f"the totals are right, but {where} `exchange` was called {len(found['given'])} times: once is "
                  "enough, with a parcel for each rank.")


# 4.4 ----------------------------------------------------------------------------------------------------------------

def pull(parameter, worker):
    """The gradient of half the squared distance to the worker's own number."""
    return parameter - worker


def steep(parameter, worker):
    return 2 * parameter + 3 * worker


def play(start, gradient, arrivals, lr, *, fresh=False, itself=0, first_is_fresh=False, never_reads=False,
         reads_before=False, signs=1, share=False):
    """The server's log; the switches are misunderstandings."""
    parameter, read, log = start, {}, []
    for update, worker in enumerate(arrivals):
        value, when = read.get(worker, (start, update if first_is_fresh else 0))
        old = parameter
        parameter -= signs * lr * gradient(old if fresh else value, worker) / (len(set(arrivals)) if share else 1)
        log.append((parameter, update - when + itself))
        if not never_reads:
            read[worker] = (old if reads_before else parameter, update + 1)
    return log


def plays(**how):
    return lambda *case: play(*case, **how)


def ages(rule):
    """The right parameters with other ages."""
    return lambda *case: [(value, rule(case[2], update)) for update, (value, _) in enumerate(play(*case))]


def since(arrivals, update):
    """The arrivals between this one and the same worker's one before."""
    before = [i for i in range(update) if arrivals[i] == arrivals[update]]
    return arrivals[before[-1] + 1 if before else 0:update]


@exercise("4.4", "A gradient that is too old", minutes=20, difficulty=2, answer="replay",
          replaces=("zerocourse.classics.parameter_server:*",))
def replay(lab: Lab):
    cases = [(0.0, pull, [1, 2, 1, 1, 2], 0.5), (8.0, pull, [1, 2, 3, 1, 2, 3], 0.25), (4.0, pull, [1, 1, 1], 0.5),
             (1.0, steep, [3, 3, 1, 3, 1, 2, 2], 0.125), (2.0, pull, [], 0.5)]
    lab.compare(cases, play, [
        ("You computed each gradient at the server's newest parameter: a worker knows only the one it read, and others "
         "have updated since.", plays(fresh=True)),
        ("A worker reads when its update is done: it gets the parameter with its own gradient in it, not the one "
         "before.", plays(reads_before=True)),
        ("The workers read only once: after each of its updates a worker reads again.", plays(never_reads=True)),
        ("You added the gradient: descent subtracts it.", plays(signs=-1)),
        ("You divided by the number of workers: here the server applies lr x gradient as it comes.", plays(share=True)),
        ("You counted the update itself: only those of others between the worker's read and its update make it old.",
         plays(itself=1)),
        ("A worker's first gradient can be old, too: all read the start, and others may have come first.",
         plays(first_is_fresh=True)),
        ("You said how many updates there were since the beginning: count from the worker's last read.",
         ages(lambda arrivals, update: update)),
        ("You took the number of other workers: that is the average when all are equally fast, here count.",
         ages(lambda arrivals, update: len(set(arrivals)) - 1)),
        ("You counted the other workers that came in between: count their updates, one worker may bring several.",
         ages(lambda arrivals, update: len(set(since(arrivals, update))))),
    ])
    return "parameters and ages are right; nobody had to wait, and some gradients were old."


# 4.5 and 4.6 --------------------------------------------------------------------------------------------------------

@exercise("4.5", "Half a ring: reduce-scatter", minutes=30, difficulty=2, answer="ring_reduce_scatter",
          own=ring.ring_reduce_scatter, replaces=RING, timeout=15)
def ring_reduce_scatter(lab: Lab):
    rings.judge_all(lab, False, rings.judge_scattered)
    return "rank r has the sum of part r, and each rank sent what it had to: n less its own part."


@exercise("4.6", "The other half: all-gather", minutes=20, difficulty=2, answer="ring_all_gather",
          own=ring.ring_all_gather, replaces=RING, timeout=15)
def ring_all_gather(lab: Lab):
    rings.judge_all(lab, True, rings.judge_gathered)
    return "everyone has every part. With 4.5 before it that is an all-reduce: 2n(N-1)/N elements a rank."


# 4.7 ----------------------------------------------------------------------------------------------------------------

@exercise("4.7", "Data parallel with buckets", minutes=75, difficulty=3, answer="DataParallel",
          replaces=("zerocourse.zero.ddp:*", "zerocourse.zero.shard:shard", "zerocourse.comm.group:Comm.reduce_scatter",
                    "zerocourse.comm.group:Comm.all_gather", "zerocourse.comm.group:Comm.all_reduce", "zerocourse.comm.group:Comm.broadcast"))
def data_parallel(lab: Lab):
    for scenario in buckets.SCENARIOS:
        for world in (2, 3):
            buckets.judge(lab, scenario, buckets.trained(lab, scenario, world))
    return ("the same gradients as one process on the whole batch, with accumulation and with unused parameters, and "
            "the buckets left while the backward went on.")
