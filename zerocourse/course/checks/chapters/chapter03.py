"""The checks of chapter 03, rank maps: divisions of small models, in one process; 3.6 has ranks."""

import math
from functools import partial

from ....layout import rankmap
from ..exercise import exercise
from ..inside import Raised
from ..lab import Lab
from ..words import a, call_text, value_text
from . import map_probe as probe
from . import moving_house  # noqa: F401  (3.6 is there)
from .map_probe import REPLACED

# 3.1 ----------------------------------------------------------------------------------------------------------------

def _owned(random):
    shapes, world_size = probe.some_shapes(random), random.randint(1, 5)
    return shapes, probe.some_owner(random, shapes, world_size), world_size


@exercise("3.1", "How uneven is it?", minutes=10, difficulty=1, answer="imbalance", own=probe.own_imbalance,
          replaces=REPLACED, sample=_owned)
def imbalance(lab: Lab):
    compare = partial(lab.compare, close=1e-6)  # the answer may have computed in fp32
    right, shapes = probe.ratio(), {"a": (4, 5), "b": (10,), "c": (2, 5), "d": (3, 2, 4)}
    everywhere = [(shapes, {"a": 0, "b": 1, "c": 0, "d": 1}, 2), (shapes, {"a": 0, "b": 1, "c": 1, "d": 2}, 3)]
    compare(everywhere, right, [
        ("You counted tensors: they are of very different sizes, so count their elements.",
         probe.ratio(lambda shape: 1)),
        ("You added up the lengths of a shape: a tensor's elements are their product.", probe.ratio(sum)),
        ("You took the first length only: a tensor's elements are the product of all lengths.",
         probe.ratio(lambda shape: shape[0])),
        ("You divided by the smallest load: the mean load is what every rank would have if all were even.",
         probe.ratio(rule=lambda load: max(load) / min(load))),
        ("You divided the mean by the largest: it is the other way round, so that 1 is the least.",
         probe.ratio(rule=lambda load: sum(load) / len(load) / max(load))),
        ("You returned the largest rank's share of all: divide by the mean, not by the sum.",
         probe.ratio(rule=lambda load: max(load) / sum(load))),
        ("You took the difference from the mean, and a ratio is wanted.",
         probe.ratio(rule=lambda load: max(load) - sum(load) / len(load))),
        ("You divided with //: the ratio is a float.",
         probe.ratio(rule=lambda load: max(load) // (sum(load) / len(load)))),
        ("You rounded the mean: divide with / and not with //.",
         probe.ratio(rule=lambda load: max(load) / (sum(load) // len(load)))),
    ])
    idle = [(shapes, {"a": 0, "b": 0, "c": 2, "d": 2}, 4), (shapes, dict.fromkeys(shapes, 1), 3)]
    compare(idle, right, [
        ("You took the mean over the ranks that own something: a rank that owns nothing counts too.",
         probe.ratio(rule=lambda load: max(load) * sum(map(bool, load)) / sum(load))),
        ("You took as many ranks as the owners tell of: a rank that owns nothing counts too, also the last ones.",
         lambda shapes, owner, world_size: right(shapes, owner, max(owner.values()) + 1)),
    ])
    small = [({"a": (), "b": (3,)}, {"a": 0, "b": 1}, 2), ({"a": (), "b": (), "c": ()}, {"a": 0, "b": 0, "c": 1}, 2)]
    compare(small, right, [
        ("A tensor of shape () has one element: the product of no numbers is 1.",
         probe.ratio(lambda shape: math.prod(shape) if shape else 0))])
    compare([({"a": (0, 3)}, {"a": 1}, 2), ({}, {}, 3)], right, allow=("ZeroDivisionError", "ValueError"),
                tell=lambda case, got, want: f"it {_came(got)}, and when nobody owns anything 1.0 is right: all "
                                             "ranks have the same")
    return "the largest load over the mean, with ranks that own nothing, and where there is nothing to own."


def _came(got) -> str:
    return f"raised {got.kind}" if isinstance(got, Raised) else f"returned {value_text(got)}"


# 3.2 ----------------------------------------------------------------------------------------------------------------

@exercise("3.2", "The largest first", minutes=15, difficulty=1, answer="greedy_map", own=rankmap.greedy, replaces=REPLACED,
          sample=lambda random: (probe.some_shapes(random), random.randint(1, 5)))
def greedy_map(lab: Lab):
    cases = [({"a": (3,), "b": (40,), "c": (5, 5), "d": (10, 2), "e": (11,), "f": (2, 3)}, ranks) for ranks in (2, 3)]
    lab.compare(cases, rankmap.greedy, [
        ("You dealt the tensors in turn: greedy asks each time which rank has the least.", rankmap.round_robin),
        ("You sorted by size, and then dealt in turn: greedy asks each time which rank has the least.", probe.in_turn),
        ("You took the tensors in the order of the model: sort them, the largest first.",
         lambda shapes, n: probe.biggest_to_least(shapes, n, order=lambda names, shapes: names)),
        ("You took the smallest first: then the largest comes last, and nothing is left to make up for it.",
         lambda shapes, n: probe.biggest_to_least(shapes, n, order=_rising)),
        ("You gave each tensor to the rank that has the fewest tensors: count elements.",
         probe.fewest_tensors),
        ("You sorted by the first length of the shape: sort by the number of elements.",
         lambda shapes, n: probe.biggest_to_least(shapes, n, order=lambda names, s: sorted(
             names, key=lambda name: -s[name][0]))),
        ("You sorted by the shape itself: sort by the number of elements.",
         lambda shapes, n: probe.biggest_to_least(shapes, n, order=lambda names, s: sorted(
             names, key=s.__getitem__, reverse=True))),
        ("When two ranks have the same load, the tensor goes to the lower rank.",
         lambda shapes, n: probe.biggest_to_least(shapes, n, last=True)),
    ])
    equal = [({"d": (2, 3), "a": (6,), "c": (3, 2), "b": (6, 1), "e": ()}, ranks) for ranks in (1, 2, 3, 4)]
    lab.compare([*equal, ({"a": (0,), "b": (0, 2), "c": (1,)}, 2), ({"a": (2,)}, 3)], rankmap.greedy, [
        ("Of two tensors of the same size, the one that is first in the model goes first: yours goes by its name.",
         lambda shapes, n: probe.biggest_to_least(shapes, n, order=lambda names, s: sorted(
             names, key=lambda name: (-math.prod(s[name]), name)))),
        ("Of two tensors of the same size, the one that is first in the model goes first: yours goes by its name, "
         "backwards.", lambda shapes, n: probe.biggest_to_least(shapes, n, order=lambda names, s: sorted(
             names, key=lambda name: (math.prod(s[name]), name), reverse=True))),
        ("Of two tensors of the same size, the one that is first in the model goes first: yours takes the last.",
         lambda shapes, n: probe.biggest_to_least(shapes, n, order=lambda names, s: _rising(names, s)[::-1])),
        ("When two ranks have the same load, the tensor goes to the lower rank.",
         lambda shapes, n: probe.biggest_to_least(shapes, n, last=True)),
    ])
    return "every tensor to the rank that has the least, with every tie as the package breaks it."


def _rising(names, shapes):
    return sorted(names, key=lambda name: math.prod(shapes[name]))


# 3.3 ----------------------------------------------------------------------------------------------------------------

RUNS = [([6, 6, 6, 6], 2), ([9, 1, 1, 1], 2), ([1, 1, 1, 9], 2), ([5, 4, 3, 6, 2], 3), ([2, 2, 2, 7, 1, 1], 3),
        ([8, 1, 1, 1, 1, 8], 3), ([3, 8, 2, 2, 2, 5, 5, 1], 4), ([10, 1], 4), ([4, 0, 4, 0], 2), ([7], 1)]
MANY = [((17 * i * i + 5) % 97 + 1) for i in range(90)]


@exercise("3.3", "The fairest runs", minutes=30, difficulty=2, answer="fairest_runs", replaces=REPLACED, timeout=8)
def fairest_runs(lab: Lab):
    cases = [({f"t{i}": (size,) for i, size in enumerate(sizes)}, ranks) for sizes, ranks in [*RUNS, (MANY, 8)]]
    answers = lab.calls(cases)
    worst = None
    for (shapes, ranks), owner in zip(cases, answers, strict=True):
        sizes = [math.prod(shape) for shape in shapes.values()]
        case = f"for tensors of {value_text(sizes)} elements on {ranks} ranks"
        if not isinstance(owner, dict) or set(owner) != set(shapes):
            lab.wrong(f"{case}, it returned {value_text(owner)}: a dictionary with a rank for every tensor is right.")
        if bad := [rank for rank in owner.values() if type(rank) is not int or not 0 <= rank < ranks]:
            lab.wrong(f"{case}, it gives a tensor to rank {value_text(bad[0])}: the ranks are the integers from 0 to "
                      f"{ranks - 1}.")
        order = [owner[name] for name in shapes]
        if order != sorted(order):
            lab.wrong(f"{case}, the owners in the order of the model are {value_text(order)}: these are no runs of "
                      "neighbours. Going through the model, the rank may only stay or rise.")
        load, least = max(probe.loads(shapes, owner, ranks)), probe.smallest_limit(shapes, ranks)
        if load > least and worst is None:
            worst = f"{case}, the owners are {value_text(order)}: the largest load is {load}, and {least} is possible."
    if worst is None:
        return "no runs of neighbours have a smaller largest load, and 90 tensors on 8 ranks take no time."
    tellers = [
        *[("You gave each rank as many tensors as the others: sizes differ.", counts) for counts in probe.EQUAL_COUNTS],
        ("You closed a run as soon as it reached the mean: the last tensor of a run can make it far too large.",
         lambda shapes, ranks: probe.until_full(shapes, ranks, late=True)),
        ("You closed a run before it would pass the mean: what is left over falls to the last rank. The limit has to "
         "be found; the mean is only the least that it can be.",
         lambda shapes, ranks: probe.until_full(shapes, ranks, late=False)),
        ("You cut where a tensor's middle passes the next N-th, as the package's `contiguous` does: that is near, but "
         "not always the fairest.", rankmap.contiguous),
        ("You gave everything to one rank.", lambda shapes, ranks: dict.fromkeys(shapes, 0)),
    ]
    heavy = [max(probe.loads(shapes, owner, ranks)) for (shapes, ranks), owner in zip(cases, answers, strict=True)]
    why = next((sentence for sentence, fn in tellers
                if heavy == [max(probe.loads(shapes, fn(shapes, ranks), ranks)) for shapes, ranks in cases]), "")
    lab.wrong(f"{worst} {why}".rstrip())


# 3.4 ----------------------------------------------------------------------------------------------------------------

def _any_owner(random):
    shapes, world_size = probe.some_shapes(random), random.randint(1, 5)
    return shapes, world_size, random.choice([None, probe.some_owner(random, shapes, world_size)])


def _mistaken(sentence: str, **how):
    return sentence, lambda *case: probe.row(*case, **how)


@exercise("3.4", "A row and its cuts", minutes=20, difficulty=2, answer="row_layout", own=probe.own_layout,
          replaces=REPLACED, sample=_any_owner)
def row_layout(lab: Lab):
    even, ragged = {"a": (2, 2), "b": (8,), "c": (4,)}, {"a": (2, 2), "b": (5,), "c": ()}
    lab.compare([(even, 2, None), (even, 4, None), (even, 1, None)], probe.row, [
        ("There are N + 1 bounds, the first is 0 and the last is the end of the row: you left out one of them.",
         lambda *case: (probe.row(*case)[0], probe.row(*case)[1][1:])),
        ("There are N + 1 bounds, the first is 0 and the last is the end of the row: you left out one of them.",
         lambda *case: (probe.row(*case)[0], probe.row(*case)[1][:-1])),
        ("You returned the number of a tensor: its offset is the number of elements before it.",
         lambda *case: ({name: i for i, name in enumerate(case[0])}, probe.row(*case)[1])),
    ])
    lab.compare([(ragged, 4, None), (ragged, 3, None), ({"a": (2,), "b": (0, 4), "c": ()}, 5, None)], probe.row, [
        _mistaken("You rounded the size of a slice down and let the last rank have the rest: slices are equal, so "
                  "round up, and pad the row at its end.", down=True),
        _mistaken("You stopped at the last parameter: the last slices are padded, so all are equal.", clipped=True),
        _mistaken("You padded every parameter: the row as a whole is padded, once, at its end.", each=True),
        ("You rounded the size of a slice down: the last elements then belong to nobody.",
         lambda shapes, n, owner: (probe.row(shapes, n, owner)[0],
                                   [rank * (sum(map(math.prod, shapes.values())) // n) for rank in range(n + 1)])),
    ])
    owners = [(ragged, 2, {"a": 1, "b": 0, "c": 1}), (even, 3, {"a": 2, "b": 1, "c": 0}),
              (even, 4, {"a": 3, "b": 1, "c": 1}), (even, 3, {"a": 0, "b": 0, "c": 0})]
    lab.compare(owners, probe.row, [
        _mistaken("You left out the owners: with an owner map the row is sorted by owner, and slices are as long as "
                  "what their rank owns.", by_owner=False),
        _mistaken("You kept the model's order in the row: what belongs to one rank has to lie together, so sort by "
                  "owner first.", sorts=False),
        ("You cut the sorted row into equal slices: with an owner map a slice is as long as what its rank owns.",
         lambda shapes, n, owner: (probe.row(shapes, n, owner)[0], probe.row(shapes, n, None)[1])),
        _mistaken("You left out the ranks that own nothing: such a rank has an empty slice, from a bound to the "
                  "same bound.", gaps=False),
        ("A rank that owns nothing has an empty slice where the rank before it ends: its bound is not 0.",
         _zero_bounds),
        ("You sorted the names of one owner: tensors of one rank stay in the order of the model.",
         lambda shapes, n, owner: probe.row({name: shapes[name] for name in sorted(shapes)}, n, owner)),
    ])
    swapped = [({"b": (2,), "a": (3,), "c": (1,)}, 2, {"b": 0, "a": 0, "c": 1})]
    lab.compare(swapped, probe.row, [
        ("You sorted the names of one owner: tensors of one rank stay in the order of the model.",
         lambda shapes, n, owner: probe.row({name: shapes[name] for name in sorted(shapes)}, n, owner))])
    for case, (offsets, _) in zip(owners, lab.calls(owners), strict=True):
        order = list(probe.row(*case)[0])
        if list(offsets) != order:
            lab.wrong(f"`{call_text('row_layout', case)}`: the offsets are right, but they come in the order "
                      f"{list(offsets)}. The row has the order {order}, and who walks along it wants theirs.")
    return "equal slices with padding at the end, and whole tensors sorted by owner: both are a row and N + 1 bounds."


def _zero_bounds(shapes, world_size, owner):
    """The end of each rank's last tensor, 0 where there is none."""
    offsets, bounds = probe.row(shapes, world_size, owner)
    load = probe.loads(shapes, owner, world_size)
    return offsets, [0, *(bound if load[rank] else 0 for rank, bound in enumerate(bounds[1:]))]


# 3.5 ----------------------------------------------------------------------------------------------------------------

def _any_slice(random):
    shapes, world_size, owner = _any_owner(random)
    return shapes, *probe.own_layout(shapes, world_size, owner), random.randrange(world_size)


def _range(sentence: str, **how):
    return sentence, lambda *case: probe.parts(*case, **how)


@exercise("3.5", "What lies in a slice", minutes=25, difficulty=2, answer="shard_ranges", own=probe.own_ranges,
          replaces=REPLACED, sample=_any_slice)
def shard_ranges(lab: Lab):
    shapes = {"a": (2, 2), "b": (5,), "c": (1,), "d": (2, 7), "e": (3,)}
    flat = [(shapes, *probe.row(shapes, ranks, None), rank) for ranks in (2, 4, 8) for rank in range(ranks)]
    lab.compare(flat, probe.parts, [
        _range("You left out the tensors that a cut goes through: a slice may have a part of a tensor.", whole=True),
        _range("You left out a tensor that began in an earlier slice: the rest of it lies here.", begins=True),
        _range("start and stop count from the beginning of the parameter, and not of the row.", row_numbers=True),
        _range("`at` counts from the beginning of the slice, and not of the row.", row_at=True),
        _range("start, stop and `at` all count from the beginning of the row: start and stop belong to the parameter, "
               "`at` to the slice.", row_numbers=True, row_at=True),
        _range("stop is the first element that is no longer in the range, as in Python's slices.", inclusive=True),
        _range("A range has at least one element: where a parameter only touches the slice, there is none.",
               touching=True),
        ("You left out a tensor that goes beyond both ends of the slice.",
         lambda *case: [part for part in probe.parts(*case) if not _beyond(case, part[0])]),
    ])
    empty = {"a": (2,), "x": (0, 3), "b": (3,), "s": ()}
    small = [(empty, *probe.row(empty, ranks, None), rank) for ranks in (1, 2, 4, 7) for rank in range(ranks)]
    lab.compare(small, probe.parts, [
        _range("A tensor without elements has no range anywhere.", empty=True),
        ("You returned the padding as a range: only parameters have ranges.", _with_padding)])
    owner = {"a": 2, "b": 0, "c": 2, "d": 0, "e": 3}
    owned = [(shapes, *probe.row(shapes, 4, owner), rank) for rank in range(4)]
    lab.compare(owned, probe.parts, [
        ("The ranges come in the order in which they lie in the slice, which is that of the offsets.",
         lambda *case: probe.parts(*case, order=list(case[0])))])
    mixed = {"a": (2,), "b": (3,), "c": (2,)}
    lab.compare([(mixed, {"c": 0, "a": 2, "b": 4}, [0, 4, 8], rank) for rank in range(2)], probe.parts, [
        ("The ranges come in the order in which they lie in the slice: the offsets tell it, the shapes do not.",
         lambda *case: probe.parts(*case, order=list(case[0])))])
    return "whole tensors, beginnings, middles and ends; nothing for padding and for what has no elements."


def _beyond(case, name) -> bool:
    shapes, offsets, bounds, rank = case
    end = offsets[name] + math.prod(shapes[name])
    return offsets[name] < bounds[rank] and end > bounds[rank + 1]


def _with_padding(shapes, offsets, bounds, rank):
    """The last tensor's range goes on into the padding."""
    longer = probe.parts(shapes, offsets, bounds, rank)
    if longer and (gap := bounds[rank + 1] - bounds[rank] - longer[-1][3] - longer[-1][2] + longer[-1][1]):
        name, start, stop, at = longer[-1]
        longer[-1] = name, start, stop + gap, at
    return longer
