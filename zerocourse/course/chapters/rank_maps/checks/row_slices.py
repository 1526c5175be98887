"""The checks of 3.4 and 3.5: a row and its slices, of small models, in one process."""

import itertools
import math

from .....layout.rankmap import Layout
from ....checks import Trial, exercise

REPLACED = ("zerocourse.layout.rankmap:*", "zerocourse.measure.drawn.balance:Balance.build",  # what an answer may not call
            *(f"zerocourse.layout.rankmap:Layout.{method}"
              for method in ("build", "param_slice", "shard_ranges", "slice", "real")))


def some_shapes(random):
    return {f"p{i}": tuple(random.randint(0, 6) for _ in range(random.randint(0, 3)))
            for i in range(random.randint(1, 9))}


def some_owner(random):
    """Random shapes, an owner for each, and a number of ranks."""
    shapes, world_size = some_shapes(random), random.randint(1, 5)
    return shapes, {name: random.randrange(world_size) for name in shapes}, world_size


# 3.4 ----------------------------------------------------------------------------------------------------------------

def own_layout(shapes, world_size, owner):
    layout = Layout.build(shapes, world_size, owner)
    return dict(layout.offset), list(layout.bounds)


def maybe_owner(random):
    shapes, owner, world_size = some_owner(random)
    return shapes, world_size, random.choice([None, owner])


def equal(end, world_size):
    return [rank * -(-end // world_size) for rank in range(world_size + 1)]


def sums(load):
    return [0, *itertools.accumulate(load)]


def offsets(change):
    """The right bounds, with other offsets: change(shapes, right offsets, right bounds, owners)."""
    def row(shapes, world_size, owner):
        begin, bounds = row_layout(shapes, world_size, owner)
        return change(shapes, begin, bounds, owner), bounds
    return row


def in_the_row(answer, *case):
    """The order of the offsets, which comparing dictionaries leaves out."""
    return {"order": list(answer(*case)[0])}


EVEN, RAGGED = {"a": (2, 2), "b": (8,), "c": (4,)}, {"a": (2, 2), "b": (5,), "c": ()}
OWNERS = [(RAGGED, 2, {"a": 1, "b": 0, "c": 1}), (EVEN, 3, {"a": 2, "b": 1, "c": 0}),
          (EVEN, 4, {"a": 3, "b": 1, "c": 1}), (EVEN, 3, {"a": 0, "b": 0, "c": 0}),
          ({"b": (2,), "a": (3,), "c": (1,)}, 2, {"b": 0, "a": 0, "c": 1})]


@exercise(
    "3.4", "A row and its cuts", minutes=20, difficulty=2, own=own_layout, replaces=REPLACED,
    sample=maybe_owner, cases=[(EVEN, ranks, None) for ranks in (2, 4, 1)],
    trials=[Trial([(RAGGED, 4, None), (RAGGED, 3, None), ({"a": (2,), "b": (0, 4), "c": ()}, 5, None)]),
            Trial(OWNERS), Trial(OWNERS, in_the_row)],
    mistakes={
        "a bound less": ({"flat": lambda end, ranks: equal(end, ranks)[1:]},
                         {"flat": lambda end, ranks: equal(end, ranks)[:-1]}),
        "numbers": offsets(lambda shapes, begin, *_: {name: number for number, name in enumerate(begin)}),
        "ends": offsets(lambda shapes, begin, *_: {name: begin[name] + math.prod(shapes[name]) for name in begin}),
        "sizes": {"flat": lambda end, ranks: [-(-end // ranks)] * ranks},
        "one more": {"flat": lambda end, ranks: [rank * (end // ranks + 1) for rank in range(ranks + 1)]},
        "rest to the last": {"flat": lambda end, ranks: [rank * (end // ranks) for rank in range(ranks)] + [end]},
        "rest dealt out": ({"flat": lambda end, ranks: [rank * end // ranks for rank in range(ranks + 1)]},
                           {"flat": lambda end, ranks: [rank * (end // ranks) + min(rank, end % ranks)
                                                    for rank in range(ranks + 1)]},
                           {"flat": lambda end, ranks: [rank * end / ranks for rank in range(ranks + 1)]},
                          {"flat": lambda end, ranks: [round(rank * end / ranks) for rank in range(ranks + 1)]}),
        "scalar": {"size": lambda shape: math.prod(shape) if shape else 0},
        "no padding": {"flat": lambda end, ranks: [min(end, bound) for bound in equal(end, ranks)]},
        "each padded": {"room": lambda count, ranks: -(-count // ranks) * ranks},
        "rounded down": {"flat": lambda end, ranks: [rank * (end // ranks) for rank in range(ranks + 1)]},
        "owners left out": lambda shapes, ranks, owner: row_layout(shapes, ranks, None),
        "unsorted": {"names": lambda shapes, owner: shapes},
        "equal slices": {"owned": lambda load: equal(sum(load), len(load))},
        "as the longest": {"owned": lambda load: [rank * max(load) for rank in range(len(load) + 1)]},
        "no empty slices": {"owned": lambda load: sums(filter(None, load))},
        "bound 0": {"owned": lambda load: [0] + [sum(load[:rank + 1]) if own else 0 for rank, own in enumerate(load)]},
        "in the slice": offsets(lambda shapes, begin, bounds, owner: {
            name: at - bounds[owner[name]] if owner else at for name, at in begin.items()}),
        "by name": {"names": lambda shapes, owner: sorted(shapes, key=lambda name: (owner[name], name))},
        "order": offsets(lambda shapes, begin, *_: {name: begin[name] for name in shapes}),
    })
def row_layout(shapes, world_size, owner, *, names=lambda shapes, owner: sorted(shapes, key=owner.get),
               size=math.prod, room=lambda count, ranks: count, flat=equal, owned=sums):
    """Offsets and bounds."""
    begin, end, load = {}, 0, [0] * world_size
    for name in names(shapes, owner) if owner else shapes:
        begin[name], count = end, size(shapes[name])
        if owner:
            load[owner[name]] += count
        end += count if owner else room(count, world_size)
    return begin, owned(load) if owner else flat(end, world_size)


# 3.5 ----------------------------------------------------------------------------------------------------------------

def own_ranges(shapes, offsets, bounds, rank):
    in_row = {name: shapes[name] for name in offsets}
    layout = Layout(in_row, offsets, tuple(bounds), sum(map(math.prod, shapes.values())))
    return [(part.name, part.start, part.stop, part.at) for part in layout.shard_ranges(layout.slice(rank))]


def some_slice(random):
    shapes, world_size, owner = maybe_owner(random)
    return shapes, *own_layout(shapes, world_size, owner), random.randrange(world_size)


def slices_of(shapes, owner, *worlds):
    """A case for every rank of every world."""
    return [(shapes, *own_layout(shapes, ranks, owner), rank) for ranks in worlds for rank in range(ranks)]


def overlaps(begin, end, first, last):
    return max(begin, first) < min(end, last)


def with_padding(shapes, offsets, bounds, rank):
    """The last tensor's range goes on into the padding."""
    *before, (name, start, _stop, at) = shard_ranges(shapes, offsets, bounds, rank) or [(None, 0, 0, 0)]
    return [*before, (name, start, bounds[rank + 1] - bounds[rank] - at + start, at)] if name else []


def up_to_the_next(shapes, offsets, bounds, rank):
    """Each tensor's range goes on until the next one begins, and the last one's until the row ends."""
    ends = [*offsets.values(), bounds[-1]][1:]
    longer = {name: (end - offsets[name],) for name, end in zip(offsets, ends, strict=True)}
    return shard_ranges(longer, offsets, bounds, rank)


FIVE, THREE = {"a": (2, 2), "b": (5,), "c": (1,), "d": (2, 7), "e": (3,)}, {"a": (2,), "b": (3,), "c": (2,)}
EMPTY = {"a": (2,), "x": (0, 3), "b": (3,), "s": ()}


@exercise(
    "3.5", "What lies in a slice", minutes=25, difficulty=2, own=own_ranges, replaces=REPLACED,
    sample=some_slice, cases=slices_of(FIVE, None, 2, 4, 8),
    trials=[Trial(slices_of(EMPTY, None, 1, 2, 4, 7)),
            Trial([*slices_of(FIVE, {"a": 2, "b": 0, "c": 2, "d": 0, "e": 3}, 4),
                   *((THREE, {"c": 0, "a": 2, "b": 4}, [0, 4, 8], rank) for rank in (0, 1))])],
    mistakes={
        "whole tensors": {"keep": lambda begin, end, first, last: first <= begin < end <= last},
        "beginnings": {"keep": lambda begin, end, first, last: begin < end and first <= begin < last},
        "no middles": {"keep": lambda *at: overlaps(*at) and not (at[0] < at[2] and at[1] > at[3])},
        "row numbers": {"part": lambda start, stop, begin, end, first: (start, stop, start - first)},
        "row at": {"part": lambda start, stop, begin, end, first: (start - begin, stop - begin, start)},
        "row everywhere": {"part": lambda start, stop, begin, end, first: (start, stop, start)},
        "inclusive": {"part": lambda start, stop, begin, end, first: (start - begin, stop - begin - 1, start - first)},
        "length": {"part": lambda start, stop, begin, end, first: (start - begin, stop - start, start - first)},
        "rank 0": lambda shapes, offsets, bounds, rank: shard_ranges(shapes, offsets, bounds, 0),
        "not cut": ({"part": lambda start, stop, begin, end, first: (start - begin, end - begin, start - first)},
                    {"part": lambda start, stop, begin, end, first: (0, stop - begin, start - first)},
                    {"part": lambda start, stop, begin, end, first: (0, end - begin, start - first)},
                    {"part": lambda start, stop, begin, end, first: (0, end - begin, begin - first)}),
        "touching": {"keep": lambda begin, end, first, last: max(begin, first) <= min(end, last)},
        "everywhere": {"keep": lambda *_: True},
        "empty": ({"keep": lambda *at: overlaps(*at) or at[0] == at[1] and at[2] <= at[0] <= at[3]},
                  {"keep": lambda *at: overlaps(*at) or at[0] == at[1] and at[2] <= at[0] < at[3]}),
        "padding": (with_padding, up_to_the_next),
        "order": {"names": lambda shapes, offsets: shapes},
    })
def shard_ranges(shapes, offsets, bounds, rank, *, keep=overlaps, names=lambda shapes, offsets: offsets,
                 part=lambda start, stop, begin, end, first: (start - begin, stop - begin, start - first)):
    """The parts of parameters in a slice."""
    first, last, ranges = bounds[rank], bounds[rank + 1], []
    for name in names(shapes, offsets):
        begin, end = offsets[name], offsets[name] + math.prod(shapes[name])
        if keep(begin, end, first, last):
            ranges.append((name, *part(max(begin, first), min(end, last), begin, end, first)))
    return ranges
