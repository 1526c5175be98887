"""The checks of chapter 03, rank maps: here 3.1 to 3.3, maps of small models, in one process."""

import builtins
import itertools
import math
import operator
import os
import random
import statistics
from collections import Counter
from zlib import crc32

import torch

from .....layout import rankmap
from .....layout.balance import Balance
from ....checks.exercise import exercise
from ....checks.harness import When
from ....checks.trace import Trial
from ....checks.words import value_text
from .row_slices import REPLACED, some_owner, some_shapes

# 3.1 ----------------------------------------------------------------------------------------------------------------

MODEL = {"a": (4, 5), "b": (10,), "c": (2, 5), "d": (3, 2, 4)}


@exercise(
    "3.1", "How uneven is it?", minutes=10, difficulty=1, answer="imbalance", replaces=REPLACED, sample=some_owner,
    own=lambda shapes, owner, world_size: Balance.build(shapes, world_size, lambda *_: owner).imbalance,
    trials=[Trial(cases, close=1e-6) for cases in (  # the answer may have computed in fp32
        [(MODEL, {"a": 0, "b": 1, "c": 0, "d": 1}, 2), (MODEL, {"a": 0, "b": 1, "c": 1, "d": 2}, 3)],
        [(MODEL, {"a": 0, "b": 0, "c": 2, "d": 2}, 4), (MODEL, dict.fromkeys(MODEL, 1), 3)],
        [({"a": (), "b": (3,)}, {"a": 0, "b": 1}, 2), ({"a": (), "b": (), "c": ()}, {"a": 0, "b": 0, "c": 1}, 2)],
        [({"a": (0, 3)}, {"a": 1}, 2), ({}, {}, 3)])],
    mistakes={
        "tensors": {"size": lambda shape: 1},
        "overwritten": {"add": lambda load, size: size},
        "lengths": {"size": sum},
        "one length": ({"size": lambda shape: shape[0]}, {"size": lambda shape: shape[-1]}),
        "over the smallest": {"rule": lambda load: max(load) / min(load)},
        "upside down": {"rule": lambda load: sum(load) / len(load) / max(load)},
        "smallest": {"rule": lambda load: min(load) * len(load) / sum(load)},
        "load": {"rule": max},
        "percent": {"rule": lambda load: 100 * max(load) * len(load) / sum(load)},
        "deviation": {"rule": lambda load: statistics.pstdev(load) * len(load) / sum(load)},
        "share of all": {"rule": lambda load: max(load) / sum(load)},
        "no ratio": {"rule": lambda load: max(load) - sum(load) / len(load)},
        "excess": {"rule": lambda load: max(load) * len(load) / sum(load) - 1},
        "median": {"rule": lambda load: max(load) / statistics.median(load)},
        "of tensors": lambda shapes, owner, ranks: imbalance(shapes, owner, ranks) * len(shapes) / ranks,
        "whole number": {"rule": lambda load: max(load) // (sum(load) / len(load))},
        "mean rounded": {"rule": lambda load: max(load) / (sum(load) // len(load))},
        "rounded": tuple({"rule": lambda load, digits=digits: round(max(load) * len(load) / sum(load), digits)}
                         for digits in (3, 2, 1)),
        "busy ranks": {"rule": lambda load: max(load) * sum(map(bool, load)) / sum(load)},
        "ranks of owners": lambda shapes, owner, _: imbalance(shapes, owner, max(owner.values()) + 1),
        "scalar": {"size": lambda shape: math.prod(shape) if shape else 0},
        "empty tensor": {"size": lambda shape: max(1, math.prod(shape))},
        "nothing": ({"nothing": lambda: 1 / 0}, When("returned", lambda got, want: want == 1)),
    })
def imbalance(shapes, owner, world_size, *, size=math.prod, rule=lambda load: max(load) * len(load) / sum(load),
              nothing=lambda: 1.0, add=operator.add):
    """The largest load over the mean load.

    tensors: You counted tensors: they are of very different sizes, so count their elements.
    overwritten: You let each tensor overwrite the load of those before it: add up what a rank owns.
    lengths: You added up the lengths of a shape: a tensor's elements are their product.
    one length: You took one length of a shape only: a tensor's elements are the product of all lengths.
    over the smallest: You divided by the smallest load: the mean load is what every rank would have if all were even.
    upside down: You divided the mean by the largest: it is the other way round, so that 1 is the least.
    smallest: You divided the smallest load by the mean: it is the largest that is wanted, for which all others wait.
    load: You returned the largest load itself: divide it by the mean.
    percent: You returned percent, and a ratio is wanted.
    deviation: You took the standard deviation: the largest load is wanted, for which all others wait.
    share of all: You returned the largest rank's share of all: divide by the mean, not by the sum.
    no ratio: You took the difference from the mean, and a ratio is wanted.
    excess: You took 1 away: that is by how much the largest is above the mean, and where all are even 1.0 is wanted.
    median: You divided by the median: the mean load is what every rank would have if all were even.
    of tensors: You divided by the mean size of a tensor: the mean load is all elements over the number of ranks.
    whole number: You divided with //: the ratio is a float.
    mean rounded: You rounded the mean: divide with / and not with //.
    rounded: You rounded the ratio: return it as it is.
    busy ranks: You took the mean over the ranks that own something: a rank that owns nothing counts too.
    ranks of owners: You took as many ranks as the owners tell of: a rank that owns nothing counts too, also the last
        ones.
    scalar: A tensor of shape () has one element: the product of no numbers is 1.
    empty tensor: A tensor with a length of 0 has no elements: the product is 0.
    nothing: When nobody owns anything 1.0 is right: all ranks have the same.
    right: the largest load over the mean, with ranks that own nothing, and where there is nothing to own.
    """
    load = [0] * world_size
    for name, rank in owner.items():
        load[rank] = add(load[rank], size(shapes[name]))
    return rule(load) if sum(load) else nothing()


# 3.2 ----------------------------------------------------------------------------------------------------------------

def least(values):
    """The lowest rank among those that have least."""
    values = list(values)
    return values.index(min(values))


def dealt(load, count, turn):
    return turn % len(load)


def back_and_forth(load, count, turn):
    return min(turn % (2 * len(load)), -1 - turn % (2 * len(load)) + 2 * len(load))


SIZES = {"a": (3,), "b": (40,), "c": (5, 5), "d": (10, 2), "e": (11,), "f": (2, 3)}
EQUAL = {"d": (2, 3), "a": (6,), "c": (3, 2), "b": (6, 1), "e": ()}
FEW = {name: (size,) for name, size in zip("abcdef", (6, 5, 4, 2, 1, 1), strict=True)}


@exercise(
    "3.2", "The largest first", minutes=15, difficulty=1, answer="greedy_map", own=rankmap.greedy, replaces=REPLACED,
    sample=lambda random: (some_shapes(random), random.randint(1, 5)),
    cases=[(SIZES, 2), (SIZES, 3)],  # no two of one size
    trials=[Trial([*((EQUAL, ranks) for ranks in (1, 2, 3, 4)), (FEW, 2), ({"a": (0,), "b": (0, 2), "c": (1,)}, 2),
                   ({"a": (2,)}, 3), ({"a": (0,), "b": (0, 2), "s": (), "c": (1,)}, 2)])],
    mistakes={
        "in turn": {"key": lambda size, place, *_: place, "rank": dealt},
        "sorted, in turn": {"rank": dealt},
        "back and forth": {"rank": back_and_forth},
        "unsorted": {"key": lambda size, place, *_: place},
        "smallest first": {"key": lambda size, place, *_: (size, place)},
        "most": {"rank": lambda load, *_: load.index(max(load))},
        "overwritten": {"add": lambda load, size: size},
        "fewest tensors": {"rank": lambda load, count, turn: least(zip(count, load, strict=True))},
        "first length": {"key": lambda size, place, name, shape: (-shape[0], place)},
        "lengths": {"size": sum},
        "shape": {"key": lambda size, place, name, shape: ([-length for length in shape] + [1], place)},
        "higher rank": {"rank": lambda load, *_: len(load) - 1 - least(load[::-1])},
        "tie by count": {"rank": lambda load, count, turn: least(zip(load, count, strict=True))},
        "by name": {"key": lambda size, place, name, _: (-size, name)},
        "by name, backwards": {"key": lambda size, place, name, _: (-size, -ord(name))},
        "last of equals": {"key": lambda size, place, *_: (-size, -place)},
        "scalar": {"size": lambda shape: math.prod(shape) if shape else 0},
    })
def greedy_map(shapes, world_size, *, size=math.prod, key=lambda size, place, *_: (-size, place),
               rank=lambda load, *_: least(load), add=operator.add):
    """Who owns what.

    in turn: You dealt the tensors in turn: greedy asks each time which rank has the least.
    sorted, in turn: You sorted by size, and then dealt in turn: greedy asks each time which rank has the least.
    back and forth: You sorted by size, and then dealt from the first rank to the last and back again: greedy asks each
        time which rank has the least.
    unsorted: You took the tensors in the order of the model: sort them, the largest first.
    smallest first: You took the smallest first: then the largest comes last, and nothing is left to make up for it.
    most: You gave each tensor to the rank that has most: it goes to the one that has the least.
    overwritten: You let each tensor overwrite the load of those before it: add up what a rank owns.
    fewest tensors: You gave each tensor to the rank that has the fewest tensors: count elements.
    first length: You sorted by the first length of the shape: sort by the number of elements.
    lengths: You added up the lengths of a shape: a tensor's elements are their product.
    shape: You sorted by the shape itself: sort by the number of elements.
    higher rank: When two ranks have the same load, the tensor goes to the lower rank.
    tie by count: When two ranks have the same load, the tensor goes to the lower rank: yours goes to the one that has
        fewer tensors.
    by name: Of two tensors of the same size, the one that is first in the model goes first: yours goes by its name.
    by name, backwards: Of two tensors of the same size, the one that is first in the model goes first: yours goes by
        its name, backwards.
    last of equals: Of two tensors of the same size, the one that is first in the model goes first: yours takes the
        last.
    scalar: A tensor of shape () has one element: the product of no numbers is 1.
    right: every tensor to the rank that has the least, with every tie as the package breaks it.
    """
    sizes, names = {name: size(shape) for name, shape in shapes.items()}, list(shapes)
    load, count, owner = [0] * world_size, [0] * world_size, {}
    names.sort(key=lambda name: key(sizes[name], list(shapes).index(name), name, shapes[name]))
    for turn, name in enumerate(names):
        owner[name] = own = rank(load, count, turn)
        load[own] = add(load[own], sizes[name])
        count[own] += 1
    return owner


# 3.3 ----------------------------------------------------------------------------------------------------------------

NAMES = [f"h.{block}.{part}.{kind}" for block in range(6) for part in ("ln_1", "attn.qkv", "attn.out", "ln_2", "mlp.up")
         for kind in ("weight", "bias")]


class ForeignName(str):
    """A name as another process sees it: Python's `hash` of a string begins anew in each."""

    def __hash__(self):
        return hash((str(self), os.environ["RANK"]))


def elsewhere(answer, shapes, ranks, seed=0, rank="0", salt=0):
    """What the answer says in a process with another random state, rank, or hash."""
    random.seed(seed)
    torch.manual_seed(seed)
    os.environ["RANK"], own = rank, builtins.hash
    builtins.hash = lambda value: own(value) ^ 7919 * salt
    try:
        owner = answer({(ForeignName(name) if salt else name): shape for name, shape in shapes.items()}, ranks)
        return {str(name): rank for name, rank in owner.items()} if isinstance(owner, dict) else owner
    finally:
        builtins.hash = own


def agreed(answer, count, ranks):
    """On what the owners depend, and how many tensors the ranks get.

    case: {0} tensors on {1} ranks
    complete: it returned {_owner}.
    given: it gives a tensor to rank {got}.
    again: asked a second time it gives other owners.
    luck: with another random state it gives other owners.
    where: on another rank it gives other owners.
    hash: in another process it gives other owners.
    alone: without the first and the last tensor, the others get other owners.
    spread: one rank owns {_most} of {_all} tensors.
    """
    shapes = {name: (8, 3 + number) for number, name in enumerate(NAMES[:count])}
    owner = elsewhere(answer, shapes, ranks)
    if not isinstance(owner, dict) or set(owner) != set(shapes):
        return {"complete": False, "_owner": value_text(owner)}
    strange = [rank for rank in owner.values() if type(rank) is not int or not 0 <= rank < ranks]
    fewer = dict(list(shapes.items())[1:-1])
    most = max(Counter(owner.values()).values())
    return {"complete": True, "given": next(iter(strange), None), "again": answer(dict(shapes), ranks) == owner,
            "luck": elsewhere(answer, shapes, ranks, seed=1) == owner,
            "where": elsewhere(answer, shapes, ranks, rank="1") == owner,
            "hash": elsewhere(answer, shapes, ranks, salt=1) == owner,
            "alone": elsewhere(answer, fewer, ranks) == {name: owner[name] for name in fewer},
            "spread": most <= 2 * count / ranks, "_most": most, "_all": count, "_last": ranks - 1}


def counting_calls(calls=itertools.count()):
    def changing(shapes, ranks):
        call = next(calls)
        return map_by_name(shapes, ranks, digest=lambda name: crc32(name.encode()) + call)
    return changing


@exercise(
    "3.3", "Every rank by itself", minutes=15, difficulty=2, answer="map_by_name", replaces=REPLACED, timeout=4,
    trials=[Trial([(60, 2), (60, 3), (40, 4)], agreed)],
    mistakes={
        "incomplete": (lambda shapes, ranks: [0] * len(shapes), When("complete")),
        "no such rank": ({"rank": lambda number, ranks: number % ranks + 1}, When("given")),
        "kept count": counting_calls(),
        "luck": {"digest": lambda name: random.randrange(99)},
        "own rank": {"digest": lambda name: crc32(name.encode()) + int(os.environ["RANK"])},
        "hash": {"digest": lambda name: hash(name)},
        "set": lambda shapes, ranks: {name: number % ranks for number, name in enumerate(set(shapes))},
        "others": (lambda shapes, ranks: {name: number % ranks for number, name in enumerate(shapes)},
                   lambda shapes, ranks: {name: number % ranks for number, name in enumerate(sorted(shapes))},
                   rankmap.greedy, rankmap.contiguous),
        "uneven": ({"digest": lambda name: ord(name[0])}, {"digest": lambda name: 0}),
    })
def map_by_name(shapes, world_size, *, digest=lambda name: crc32(name.encode()), rank=operator.mod):
    """Owners from names.

    incomplete: a dictionary with a rank for every tensor is right.
    no such rank: the ranks are the integers from 0 to {_last}.
    kept count: Your function remembers something from one call to the next, and ranks may have called it a different
        number of times.
    luck: You draw at random: ranks have different random states, or will have them one day.
    own rank: You ask for the rank that computes: then every rank comes to a map of its own.
    hash: Python's `hash` of a string is another one in every process, so that its strings cannot be predicted from
        outside. Take a checksum of the name's bytes.
    set: You go through a set of names: its order comes from `hash`, which is another one in every process.
    others: The number of a tensor, or its size beside the others', decides, so that one more tensor in the model gives
        others to new owners. Let the name alone decide.
    uneven: too many names come to the same rank: take a checksum of the whole name.
    right: the same owners in every process, and whatever else is in the model.
    """
    return {name: rank(digest(name), world_size) for name in shapes}
