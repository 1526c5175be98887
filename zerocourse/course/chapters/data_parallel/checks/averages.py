"""The checks of 4.2 and 4.3: gradients averaged over the ranks, and words counted together."""

import operator
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn

from .....comm.torch_private import disable_current_modes
from ....checks import MISUSED, Trial, When, Wrong, exercise
from ....checks.observers.wire import Wire, sorted_values
from ....checks.words import a, value_text

# 4.2 ----------------------------------------------------------------------------------------------------------------

def averages(answer, _, all_used):
    """What the answer does to the gradients of a small model; every rank has the same model and its own data."""
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
            "gradients": {name: grads[name] for name in whole}, "_verb": ", ".join(wire.verbs)}


def first(names):
    """The first of them; "" where there is none."""
    return next(iter(names), "")


def row(tensors):
    return torch.cat([torch.zeros(0), *(tensor.flatten() for tensor in tensors)])


def gathered(gradient):
    everyone = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
    dist.gather(gradient, everyone if dist.get_rank() == 0 else None)


def from_the_left(gradient):
    rank, ranks, received = dist.get_rank(), dist.get_world_size(), torch.empty_like(gradient)
    work = dist.isend(gradient.clone(), (rank + 1) % ranks)
    dist.recv(received, (rank - 1) % ranks)
    work.wait()
    gradient += received


def unsent(gradient):
    """What brings nothing to anybody."""


@exercise(
    "4.2", "Average the gradients", minutes=15, difficulty=1, timeout=15,
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
        "one other": ({"bring": from_the_left, "factor": lambda ranks: 1 / 2}, {"bring": from_the_left}),
        "largest": {"bring": lambda grad: dist.all_reduce(grad, dist.ReduceOp.MAX), "factor": lambda ranks: 1},
        "zeros for None": ({"unused": torch.zeros_like}, When("new")),
        "None taken": ({"unused": lambda param: dist.all_reduce(param.grad)},
                       {"unused": lambda param: param.grad.flatten()}),
    })
def average_gradients(model, *, what=lambda param: param.grad, bring=dist.all_reduce, factor=lambda ranks: 1 / ranks,
                      unused=lambda param: None):
    """The average over all ranks in every `param.grad`."""
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
    """The answer's totals on this rank, and the parcels it gave to `exchange`."""
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
        with disable_current_modes():
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
    "4.3", "Count words together", minutes=20, difficulty=2, timeout=15,
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
        "own twice": {"take": lambda arrived: [*arrived, arrived[dist.get_rank()]]},
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
    """The totals of this rank's words."""
    counts, totals = Counter(split(text)), {}
    parcels = [{word: n for word, n in counts.items() if goes(word, peer, owner)}
               for peer in range(dist.get_world_size())]
    for parcel in take(exchange(parcels)):
        for word, n in parcel.items():
            totals[word] = add(totals.get(word, 0), n)
    return {word: n for word, n in totals.items() if keeps(word, owner)}
