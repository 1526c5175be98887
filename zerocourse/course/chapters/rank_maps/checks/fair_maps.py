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
from .....measure.drawn.balance import Balance
from ....checks import Trial, When, exercise
from ....checks.words import value_text
from .row_slices import REPLACED, some_owner, some_shapes

# 3.1 ----------------------------------------------------------------------------------------------------------------

MODEL = {"a": (4, 5), "b": (10,), "c": (2, 5), "d": (3, 2, 4)}


@exercise(
    "3.1", "How uneven is it?", minutes=10, difficulty=1, replaces=REPLACED, sample=some_owner,
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
    """The largest load over the mean load."""
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
    "3.2", "The largest first", minutes=15, difficulty=1, own=rankmap.greedy, replaces=REPLACED,
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
    """Who owns what."""
    sizes, names = {name: size(shape) for name, shape in shapes.items()}, list(shapes)
    load, count, owner = [0] * world_size, [0] * world_size, {}
    names.sort(key=lambda name: key(sizes[name], list(shapes).index(name), name, shapes[name]))
    for turn, name in enumerate(names):
        owner[name] = own = rank(load, count, turn)
        load[own] = add(load[own], sizes[name])
        count[own] += 1
    return owner


# 3.3 ----------------------------------------------------------------------------------------------------------------

NAMES = [f"h.{block}.{part}.{kind}" for block in range(6) for part in ("ln_1", "attn.qkv", "attn.out", "ln_2", "mlp.up", "mlp.down")
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
    """On what the owners depend, and how many tensors the ranks get."""
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
    "3.3", "Every rank by itself", minutes=15, difficulty=2, replaces=REPLACED, timeout=4,
    trials=[Trial([(60, 2), (60, 3), (40, 4), (72, 8)], agreed)],
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
        "uneven": ({"digest": lambda name: ord(name[0])}, {"digest": lambda name: 0}, {"digest": len}),
    })
def map_by_name(shapes, world_size, *, digest=lambda name: crc32(name.encode()), rank=operator.mod):
    """Owners from names."""
    return {name: rank(digest(name), world_size) for name in shapes}
