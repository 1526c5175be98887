"""The checks of chapter 04, data parallel: here 4.1 to 4.4, cutting, averaging, counting words, stale gradients.

The two halves of a ring, 4.5 and 4.6, are in `rings`, and 4.7, the long one, in `buckets`.
"""

import operator
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from ..exercise import exercise
from ..harness import When
from ..trace import Trial
from ..verdict import MISUSED, Wrong
from ..words import a, value_text
from . import buckets, rings  # noqa: F401  (4.5, 4.6 and 4.7 are there)
from .wire import Wire, sorted_values

# 4.1 ----------------------------------------------------------------------------------------------------------------

def even_stop(n, ranks, r):
    return (r + 1) * (n // ranks) + min(r + 1, n % ranks)


def stops(stop):
    return {"stop": stop}


def parts(part):
    return {"part": part}


@exercise(
    "4.1", "Cut a row", minutes=10, difficulty=1, answer="cut",
    cases=[(12, 4), (14, 4), (9, 4), (7, 4), (1202, 3), (2, 4), (0, 3), (5, 1), (10**6 + 1, 2)],
    mistakes={
        "rounded up": stops(lambda n, ranks, r: min(n, (r + 1) * -(-n // ranks))),
        "behind the row": stops(lambda n, ranks, r: (r + 1) * -(-n // ranks)),
        "rounded down": stops(lambda n, ranks, r: (r + 1) * (n // ranks)),
        "rounded": stops(lambda n, ranks, r: (r + 1) * round(n / ranks)),
        "rest to the last": stops(lambda n, ranks, r: n if r == ranks - 1 else (r + 1) * (n // ranks)),
        "rest to the first": stops(lambda n, ranks, r: (r + 1) * (n // ranks) + n % ranks),
        "shorter first": (stops(lambda n, ranks, r: n - even_stop(n, ranks, ranks - r - 2)),
                          stops(lambda n, ranks, r: n * (r + 1) // ranks),
                          stops(lambda n, ranks, r: round(n * (r + 1) / ranks))),
        "overlap": lambda n, ranks: [(r * (n // ranks), (r + 1) * (n // ranks) + (r < n % ranks))
                                     for r in range(ranks)],
        "lengths": parts(lambda start, stop: (start, stop - start)),
        "last element": parts(lambda start, stop: (start, stop - 1)),
        "sizes": parts(lambda start, stop: stop - start),
        "edges": lambda n, ranks: [0, *(even_stop(n, ranks, r) for r in range(ranks))],
        "empty ones left out": lambda n, ranks: [part for part in cut(n, ranks) if part[0] < part[1]],
    })
def cut(n, ranks, *, stop=even_stop, part=lambda start, stop: (start, stop)):
    """Where each part starts and stops.

    rounded up: You made the parts ceil(n / ranks) long, so that the last ones are short or empty: two parts may differ
        by one element at most.
    behind the row: You made the parts ceil(n / ranks) long, so that the last ones are short or empty and end behind the
        row.
    rounded down: You lost the last elements: parts of n // ranks do not cover the row, and n % ranks elements are left.
    rounded: You made every part n / ranks long, rounded: together they end before the row does, or behind it.
    rest to the last: You gave everything that is left over to the last part: two parts may differ by one element at
        most.
    rest to the first: You gave everything that is left over to the first part: two parts may differ by one element at
        most.
    shorter first: The sizes are right, but the longer parts have to come first.
    overlap: Your parts overlap: a part starts where the one before it stops, and that may have one element more.
    lengths: You returned where a part starts and how long it is: where it stops is wanted, one behind its last element.
    last element: You returned the last element that belongs to a part: stop is one behind it, as in row[start:stop].
    sizes: You returned the sizes: where each part starts and stops is wanted.
    edges: You returned the places between the parts: a pair is wanted for each part, where it starts and where it
        stops.
    empty ones left out: You left out the empty parts: every rank has a part, though it may be empty.
    right: every element is in one part, and no part is longer than another by more than one.
    """
    return [part(stop(n, ranks, r - 1), stop(n, ranks, r)) for r in range(ranks)]


# 4.2 ----------------------------------------------------------------------------------------------------------------

def averages(answer, _, all_used):
    """What the answer does to the gradients of a small model; every rank has the same model and its own data.

    case: {0}, on {world} ranks
    weights: what rank {rank} sent are the parameters, and no gradient.
    moved: the parameter '{got}' of rank {rank} has changed.
    sent: rank {rank} sent nothing.
    waited: rank {rank} did not wait for {got} of its collectives.
    to all: rank {rank} called {_verb} alone.
    new: the parameter '{got}' of rank {rank} had no gradient and has one now.
    lost: the gradient of '{got}' is gone on rank {rank}, or has another shape: it keeps its shape, and stays in
        `param.grad`.
    gradients: in one row the gradients of rank {rank} have
    """
    model = nn.ModuleDict({"one": nn.Linear(6, 5), "two": nn.Linear(5, 3), "unused": nn.Linear(3, 2)})
    model["one"].bias.requires_grad_(all_used)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 + dist.get_rank()))
    y = model["two"](model["one"](x).relu())
    (model["unused"](y) if all_used else y).square().mean().backward()
    named = dict(model.named_parameters())
    before = {name: param.detach().clone() for name, param in named.items()}
    used = [name for name, param in named.items() if param.grad is not None]
    with Wire(agree=True, keep=True) as wire:
        answer(model)
    grads = {name: param.grad for name, param in named.items()}
    numbers, weights = sorted_values(wire.log), [[before[name] for name in names] for names in (named, used)]
    waits, called = sum(entry["verb"] == "wait" for entry in wire.log), len(wire.calls)
    to_one = set(wire.verbs) < {"reduce", "gather"} and len({entry.get("root") for entry in wire.log} - {None}) == 1
    whole = [name for name in used if grads[name] is not None and grads[name].shape == named[name].shape]
    return {"weights": any(torch.equal(numbers, row(each).sort().values) for each in weights),
            "moved": first(name for name, param in named.items() if not torch.equal(param, before[name])),
            "sent": bool(called), "waited": max(0, called - waits), "to all": not to_one,
            "new": first(name for name in named if grads[name] is not None and name not in used),
            "lost": first(name for name in used if name not in whole),
            "gradients": row(grads[name] for name in whole), "_verb": ", ".join(wire.verbs)}


def first(names):
    """The first of them; "" where there is none."""
    return next(iter(names), "")


def row(tensors):
    return torch.cat([torch.zeros(0), *(tensor.flatten() for tensor in tensors)])


def gathered(gradient):
    everyone = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
    dist.gather(gradient, everyone if dist.get_rank() == 0 else None)


def unsent(gradient):
    """What brings nothing to anybody."""


@exercise(
    "4.2", "Average the gradients", minutes=15, difficulty=1, answer="average_gradients", timeout=15,
    replaces=("zerocourse.zero.ddp:*", "zerocourse.comm.group:Comm.reduce_scatter",
              "zerocourse.comm.group:Comm.all_gather", "zerocourse.comm.group:Comm.all_reduce"),
    trials=[Trial([("a model that uses all its parameters", True)], averages, worlds=(2, 3)),
            Trial([("a model with a frozen parameter and two unused ones", False)], averages, worlds=(2, 3))],
    mistakes={
        "parameters": ({"what": lambda param: param.data}, When("weights")),
        "summed": {"factor": lambda ranks: 1},
        "halved": {"factor": lambda ranks: 1 / 2},
        "divided twice": {"factor": lambda ranks: 1 / ranks**2},
        "divided alone": {"bring": unsent},
        "nothing sent": ({"bring": unsent, "factor": lambda ranks: 1}, When("sent")),
        "not waited": ({"bring": lambda grad: dist.all_reduce(grad, async_op=True)}, When("waited")),
        "to one rank": ({"bring": lambda grad: dist.reduce(grad, 0)}, {"bring": gathered}, When("to all")),
        "thrown away": {"bring": lambda grad: dist.all_reduce(grad.clone()), "factor": lambda ranks: 1},
        "went elsewhere": {"bring": lambda grad: dist.all_reduce(grad.clone())},
        "rank 0's": ({"bring": lambda grad: dist.broadcast(grad, 0), "factor": lambda ranks: 1},
                     {"bring": lambda grad: dist.broadcast(grad, 0)}),
        "largest": {"bring": lambda grad: dist.all_reduce(grad, dist.ReduceOp.MAX), "factor": lambda ranks: 1},
        "zeros for None": ({"unused": torch.zeros_like}, When("new")),
        "None taken": ({"unused": lambda param: dist.all_reduce(param.grad)},
                       {"unused": lambda param: param.grad.flatten()}),
    })
def average_gradients(model, *, what=lambda param: param.grad, bring=dist.all_reduce, factor=lambda ranks: 1 / ranks,
                      unused=lambda param: None):
    """The average over all ranks in every `param.grad`.

    parameters: You communicated the parameters: it is `param.grad` that has to be averaged, the parameters are the same
        on all ranks already.
    summed: You summed the gradients and never divided by the number of ranks: that acts like a learning rate {world}
        times as large.
    halved: You divided by 2, however many ranks there are.
    divided twice: You divided by the number of ranks twice.
    divided alone: You divided by the number of ranks, and never added up.
    nothing sent: These are still its own gradients.
    not waited: With `async_op=True` a collective has only begun when the call returns: wait for what it returned before
        you use the result.
    to one rank: Reduce and gather bring the sum, or all gradients, to one rank only: every rank needs the average.
    thrown away: Something was sent, but the result was thrown away: these are still this rank's own gradients. Write it
        into `param.grad`.
    went elsewhere: You divided by the number of ranks, and the sum went elsewhere: these are this rank's own gradients.
    rank 0's: These are the gradients of rank 0 alone: they were copied to all, and nobody's were added.
    largest: You took the largest gradient of all ranks, element by element: the average is wanted.
    zeros for None: Leave `None` as it is: the optimizer leaves such a parameter alone, while a gradient of zeros would
        let its weight decay.
    None taken: The `grad` of a parameter that is frozen or was not used is `None`: leave out such a parameter.
    right: the same on 2 and on 3 ranks, and who had no gradient has none.
    """
    for param in model.parameters():
        if param.grad is None:
            param.grad = unused(param)
        else:
            bring(what(param))
            what(param).mul_(factor(dist.get_world_size()))


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
    """The answer's totals on this rank, and the parcels it gave to `exchange`.

    exchanged: rank {rank} of {world} never called `exchange`, so that no rank learns what the others have counted.
    totals: rank {rank} of {world}, whose text is '{_text}', returned {got}, and {want} is right.
    strangers: the totals are right, but rank {rank} of {world} sent the word '{got}' to a rank that does not own it.
    calls: the totals are right, but rank {rank} of {world} called `exchange` {got} times.
    """
    rank, world_size, given = dist.get_rank(), dist.get_world_size(), []

    def exchange(parcels):
        if not isinstance(parcels, (list, tuple)) or len(parcels) != world_size:
            raise Wrong(f"`exchange` was given {value_text(parcels, 60)}: it takes a list of {world_size} parcels, "
                        "one for each rank", MISUSED)
        for parcel in parcels:
            if not isinstance(parcel, dict):
                raise Wrong(f"`exchange` was given {a(parcel)} for a rank, {value_text(parcel, 60)}", "uncounted")
        given.append([dict(parcel) for parcel in parcels])
        wire.meet("exchange")
        everything = [None] * world_size
        with _disable_current_modes():
            dist.all_gather_object(everything, given[-1])
        return [sent[rank] for sent in everything]

    text, owner = BOOKS[world_size][rank], OwnerByLetters(world_size)
    with Wire(agree=True) as wire:
        totals = answer(text, owner, exchange)
    sent = [(word, peer) for parcels in given for peer, parcel in enumerate(parcels) for word in parcel]
    return {"exchanged": bool(given), "totals": dict(totals) if isinstance(totals, dict) else totals,
            "strangers": first(word for word, peer in sent if owner(word) != peer), "calls": len(given), "_text": text}


def alone(text, owner, exchange):
    return word_count(text, owner, own_parcel)


def own_parcel(parcels):
    return [parcels[dist.get_rank()]]


def lists(text, owner, exchange):
    exchange([text.split() for _ in range(dist.get_world_size())])


@exercise(
    "4.3", "Count words together", minutes=20, difficulty=2, answer="word_count", timeout=15,
    replaces=("zerocourse.classics.word_count:word_count",),
    trials=[Trial(observe=count_words, worlds=(2, 3))],
    mistakes={
        "never exchanged": (alone, lambda text, *_: dict(Counter(text.split())), When("exchanged")),
        "all to all": {"goes": lambda *_: True},
        "strangers": ({"goes": lambda *_: True, "keeps": lambda word, owner: owner(word) == dist.get_rank()},
                      When("strangers")),
        "own text": {"take": own_parcel},
        "own words": lambda *given: [word_count(*given), dict(Counter(given[0].split()))][1],
        "replaced": {"add": lambda old, new: new},
        "without own": {"take": lambda arrived: [*arrived[:dist.get_rank()], *arrived[dist.get_rank() + 1:]]},
        "texts": ({"add": lambda old, new: old + 1}, {"split": lambda text: set(text.split())}),
        "empty word": {"split": lambda text: text.split(" ")},
        "letters": {"split": list},
        "other words": ({"goes": lambda word, peer, owner: len(word) % dist.get_world_size() == peer},
                        When("totals", lambda got, want: isinstance(got, dict) and got.keys() != want.keys())),
        "uncounted": lists,
        "again": (lambda *given: [word_count(*given), word_count(*given)][1], When("calls")),
        "stuck": lambda text, *others: word_count(text, *others) if text else {},
    })
def word_count(text, owner, exchange, *, split=str.split, goes=lambda word, peer, owner: owner(word) == peer,
               take=lambda arrived: arrived, add=operator.add, keeps=lambda word, owner: True):
    """The totals of this rank's words.

    never exchanged: Call it once, with a parcel for each rank.
    all to all: You sent all counts to all ranks, so that every rank has every word; each count should go to the owner
        of its word, and to nobody else.
    strangers: every word should travel to its owner only, else each rank receives the whole library.
    own text: You counted only this rank's own text: the parcels that came from the others are to be added.
    own words: These are the counts of this rank's own text, for all its words: a rank has the totals of the words it
        owns.
    replaced: What comes later replaced what came before: add up the counts of a word that several parcels have.
    without own: You left out what this rank counted itself: its own parcel belongs to the sum.
    texts: You counted in how many texts a word occurs: how often it occurs is wanted.
    empty word: You split at every single space, and then an empty text has one word, which is empty: `text.split()` has
        none there.
    letters: You counted letters: `text.split()` has the words.
    other words: A rank has the totals of the words that it owns, of all of them and of no others: `owner(word)` says
        whose a word is.
    uncounted: count before you send, so that a parcel is a dictionary word: count and each word travels once.
    again: once is enough, with a parcel for each rank.
    stuck: Every rank calls `exchange`, also one that has nothing to say: others have something for it.
    right: map, shuffle, reduce: each total is on one rank, and only counts that were needed there travelled.
    """
    counts, totals = Counter(split(text)), {}
    parcels = [{word: n for word, n in counts.items() if goes(word, peer, owner)}
               for peer in range(dist.get_world_size())]
    for parcel in take(exchange(parcels)):
        for word, n in parcel.items():
            totals[word] = add(totals.get(word, 0), n)
    return {word: n for word, n in totals.items() if keeps(word, owner)}


# 4.4 ----------------------------------------------------------------------------------------------------------------

def pull(parameter, worker):
    """The gradient of half the squared distance to the worker's own number."""
    return parameter - worker


def steep(parameter, worker):
    return 2 * parameter + 3 * worker


def since(arrivals, update):
    """The arrivals between this one and the same worker's one before."""
    before = [i for i in range(update) if arrivals[i] == arrivals[update]]
    return arrivals[before[-1] + 1 if before else 0:update]


def ages(age):
    return {"age": age}


@exercise(
    "4.4", "A gradient that is too old", minutes=20, difficulty=2, answer="replay",
    replaces=("zerocourse.classics.parameter_server:*",),
    cases=[(0.0, pull, [1, 2, 1, 1, 2], 0.5), (8.0, pull, [1, 2, 3, 1, 2, 3], 0.25), (4.0, pull, [1, 1, 1], 0.5),
           (1.0, steep, [3, 3, 1, 3, 1, 2, 2], 0.125), (2.0, pull, [], 0.5)],
    mistakes={
        "newest": {"at": lambda read, server: server},
        "read before": {"reads": lambda old, new: old},
        "read once": {"reads": None, "age": lambda arrivals, i: i},
        "added": {"sign": 1},
        "divided": {"share": lambda arrivals: len(set(arrivals))},
        "no rate": {"rate": lambda lr: 1},
        "exchanged": {"slope": lambda gradient, value, worker: gradient(worker, value)},
        "one late": {"shown": lambda old, new: old},
        "itself": ages(lambda arrivals, i: len(since(arrivals, i)) + 1),
        "its last one": ages(lambda arrivals, i: len(since(arrivals, i)) + (arrivals[i] in arrivals[:i])),
        "one too few": (ages(lambda arrivals, i: len(since(arrivals, i)) - 1),
                        ages(lambda arrivals, i: max(0, len(since(arrivals, i)) - 1))),
        "first is fresh": ages(lambda arrivals, i: len(since(arrivals, i)) * (arrivals[i] in arrivals[:i])),
        "since the start": ages(lambda arrivals, i: i),
        "other workers": ages(lambda arrivals, i: len(set(arrivals)) - 1),
        "workers between": ages(lambda arrivals, i: len(set(since(arrivals, i)))),
    })
def replay(start, gradient, arrivals, lr, *, at=lambda read, server: read, reads=lambda old, new: new, sign=-1,
           share=lambda arrivals: 1, rate=lambda lr: lr, slope=lambda gradient, value, worker: gradient(value, worker),
           shown=lambda old, new: new, age=lambda arrivals, i: len(since(arrivals, i))):
    """After each arrival the server's parameter, and the age of the gradient.

    newest: You computed each gradient at the server's newest parameter: a worker knows only the one it read, and others
        have updated since.
    read before: A worker reads when its update is done: it gets the parameter with its own gradient in it, not the one
        before.
    read once: The workers read only once: after each of its updates a worker reads again.
    added: You added the gradient: descent subtracts it.
    divided: You divided by the number of workers: here the server applies lr x gradient as it comes.
    no rate: You subtracted the gradient itself: lr times the gradient is wanted.
    exchanged: You called `gradient(worker, parameter)`: the parameter comes first.
    one late: You noted the parameter as it was before the update: it is wanted after each arrival.
    itself: You counted the update itself: only those of others between the worker's read and its update make it old.
    its last one: You counted the worker's own update before this one: it read when that was done, so its next gradient
        knows of it.
    one too few: Your ages are one too small: every update since the worker's read counts, the first and the last too.
    first is fresh: A worker's first gradient can be old, too: all read the start, and others may have come first.
    since the start: You said how many updates there were since the beginning: count from the worker's last read.
    other workers: You took the number of other workers: that is the average when all are equally fast, here count.
    workers between: You counted the other workers that came in between: count their updates, one worker may bring
        several.
    right: parameters and ages are right; nobody had to wait, and some gradients were old.
    """
    server, read, log = start, {}, []
    for update, worker in enumerate(arrivals):
        old = server
        step = rate(lr) * slope(gradient, at(read.get(worker, start), server), worker)
        server += sign * step / share(arrivals)
        log.append((shown(old, server), age(arrivals, update)))
        if reads:
            read[worker] = reads(old, server)
    return log
