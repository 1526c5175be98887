"""The checks of chapter 03, rank maps: here 3.1 to 3.3, divisions of small models, in one process."""

import bisect
import functools
import itertools
import math
import operator
import statistics

from .....layout import rankmap
from .....layout.balance import Balance
from ...exercise import exercise
from ...harness import When
from ...trace import Trial
from ...words import value_text
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

RUNS = [([6, 6, 6, 6], 2), ([9, 1, 1, 1], 2), ([1, 1, 1, 9], 2), ([5, 4, 3, 6, 2], 3), ([2, 2, 2, 7, 1, 1], 3),
        ([8, 1, 1, 1, 1, 8], 3), ([3, 8, 2, 2, 2, 5, 5, 1], 4), ([10, 1], 4), ([4, 0, 4, 0], 2), ([7], 1),
        ([3, 3, 8, 1], 3)]
MANY = [((17 * i * i + 5) % 97 + 1) for i in range(90)], 8


def divided(answer, sizes, ranks):
    """What kind of division it is, and its largest load: several may be right.

    case: tensors of {0} elements on {1} ranks
    complete: it returned {_owner}.
    given: it gives a tensor to rank {got}.
    runs: the owners in the order of the model are {_order}.
    load: the owners are {_order}, so the largest load is {got}, and {want} is possible.
    """
    shapes = {f"t{i}": (size,) for i, size in enumerate(sizes)}
    owner = answer(dict(shapes), ranks)
    if not isinstance(owner, dict) or set(owner) != set(shapes):
        return {"complete": False, "_owner": value_text(owner)}
    order = [owner[name] for name in shapes]
    strange = [rank for rank in order if type(rank) is not int or not 0 <= rank < ranks]
    load = [sum(size for size, own in zip(sizes, order, strict=True) if own == rank) for rank in range(ranks)]
    return {"complete": True, "given": next(iter(strange), None), "runs": not strange and order == sorted(order),
            "load": max(load), "_order": value_text(order), "_last": ranks - 1}


def closed(full):
    """Runs that end where full(load, next size, mean load, largest size)."""
    def runs(shapes, world_size):
        sizes, rank, load, owner = list(map(math.prod, shapes.values())), 0, 0, {}
        for name, size in zip(shapes, sizes, strict=True):
            if load and rank < world_size - 1 and full(load, size, sum(sizes) / world_size, max(sizes)):
                rank, load = rank + 1, 0
            owner[name], load = rank, load + size
        return owner
    return runs


def below_the_limit(shapes, world_size):
    """Runs that end before they reach the least limit that is enough."""
    sizes = list(map(math.prod, shapes.values()))

    def owners(limit):
        rank, load, owners = 0, 0, []
        for size in sizes:
            rank, load = (rank + 1, size) if load + size >= limit else (rank, load + size)
            owners.append(rank)
        return owners

    least, most = max(sizes), sum(sizes)
    limit = least + bisect.bisect_left(range(least, most), True, key=lambda limit: owners(limit)[-1] < world_size)
    return dict(zip(shapes, owners(limit), strict=True))


def numbered(rank):
    """By the number of a tensor alone: rank(number, tensors, ranks)."""
    return lambda shapes, ranks: {name: rank(number, len(shapes), ranks) for number, name in enumerate(shapes)}


@exercise(
    "3.3", "The fairest runs", minutes=30, difficulty=2, answer="fairest_runs", replaces=REPLACED, timeout=4,
    trials=[Trial(RUNS, divided), Trial([MANY], divided)],
    mistakes={
        "incomplete": (lambda shapes, ranks: [0] * len(shapes), When("complete")),
        "no such rank": (lambda shapes, ranks: {name: rank + 1 for name, rank in fairest_runs(shapes, ranks).items()},
                         When("given")),
        "limit reached": below_the_limit,
        "no runs": (rankmap.greedy, When("runs")),
        "as many tensors": (numbered(lambda number, tensors, ranks: number // -(-tensors // ranks)),
                            numbered(lambda number, tensors, ranks: number * ranks // tensors),
                            numbered(lambda number, tensors, ranks: min(number // max(1, tensors // ranks), ranks - 1)),
                            numbered(lambda number, tensors, ranks: next(
                                rank for rank in range(ranks) if number < (rank + 1) * (tensors // ranks)
                                + min(rank + 1, tensors % ranks)))),
        "late": closed(lambda load, size, mean, most: load >= mean),
        "early": (closed(lambda load, size, mean, most: load + size > mean),
                  closed(lambda load, size, mean, most: load + size > max(mean, most))),
        "nearest": closed(lambda load, size, mean, most: load + size - mean > mean - load),
        "middles": rankmap.contiguous,
        "squares": {"cost": lambda load: load**2, "join": operator.add},
        "one rank": numbered(lambda *_: 0),
        "hung": lambda shapes, ranks: fairest_runs(shapes, ranks) if len(shapes) < 20
        else next(number for number in itertools.count() if number < 0),
    })
def fairest_runs(shapes, world_size, *, cost=lambda load: load, join=max):
    """Runs of neighbours.

    incomplete: a dictionary with a rank for every tensor is right.
    no such rank: the ranks are the integers from 0 to {_last}.
    limit reached: You closed a run before it reached the limit: it may be exactly as large as the limit.
    no runs: these are no runs of neighbours. Going through the model, the rank may only stay or rise.
    as many tensors: You gave each rank as many tensors as the others: sizes differ.
    late: You closed a run as soon as it reached the mean: the last tensor of a run can make it far too large.
    early: You closed a run before it would pass the mean: what is left over falls to the last rank. The limit has to be
        found; the mean is only the least that it can be.
    nearest: You closed each run where it is nearest to the mean: what a run lacks or has too much of falls to the last
        rank. The limit has to be found; the mean is only the least that it can be.
    middles: You cut where a tensor's middle passes the next N-th, as the package's `contiguous` does: that is near, but
        not always the fairest.
    squares: You made the sum of squares, or the variance, as small as it can be: the largest load is what everybody
        waits for.
    one rank: You gave everything to one rank.
    hung: Do you try every division? With 90 tensors on 8 ranks there are billions: ask how many ranks a limit needs,
        and halve the interval in which the limit lies.
    right: no runs of neighbours have a smaller largest load, and 90 tensors on 8 ranks take no time.
    """
    ends = [0, *itertools.accumulate(map(math.prod, shapes.values()))]

    @functools.cache
    def best(first, ranks):
        """(cost of the tensors from the first on, where their first run ends)."""
        if ranks == 1:
            return cost(ends[-1] - ends[first]), len(shapes)
        return min((join(cost(ends[cut] - ends[first]), best(cut, ranks - 1)[0]), cut)
                   for cut in range(first, len(ends)))

    cuts = [0]
    for rank in range(world_size):
        cuts.append(best(cuts[-1], world_size - rank)[1])
    return {name: next(rank for rank in range(world_size) if number < cuts[rank + 1])
            for number, name in enumerate(shapes)}
