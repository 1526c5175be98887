"""The checks of what chapter 03 asks for itself: 03.w1, a map that keeps neighbours together, and 03.w2, a flat slice."""

import itertools
import math

from .....layout.rankmap import contiguous
from ....checks import Trial, exercise

# 03.w1 ----------------------------------------------------------------------------------------------------------------

EVEN = {"a": (2, 2), "b": (4,), "c": (4, 1), "d": (2, 1, 2)}
WIDE = {"wte": (6, 4), "h.0": (3, 2), "h.1": (3, 2), "scale": (), "head": (5,)}
LONG = {f"h.{number}": (number + 1,) for number in range(9)}


def elements(shape):
    return math.prod(shape)


def by_start(start, size):
    return 2 * start


def filled_up(shapes, ranks):
    """Each rank until it has its share, and the next."""
    share, rank, held, owner = sum(map(elements, shapes.values())) / ranks, 0, 0, {}
    for name, shape in shapes.items():
        if held >= share and rank < ranks - 1:
            rank, held = rank + 1, 0
        owner[name] = rank
        held += elements(shape)
    return owner


def greedily(shapes, ranks):
    load, owner = [0] * ranks, {}
    for name in sorted(shapes, key=lambda name: -elements(shapes[name])):
        owner[name] = load.index(min(load))
        load[owner[name]] += elements(shapes[name])
    return {name: owner[name] for name in shapes}


@exercise(
    "03.w1", "A map that keeps neighbours together", minutes=12, difficulty=2, answer="contiguous_map", own=contiguous,
    replaces=("zerocourse.layout.rankmap:owners",),
    trials=[Trial([(EVEN, 4), (EVEN, 2), (LONG, 3)]), Trial([(WIDE, 2), (WIDE, 4), (LONG, 7), (LONG, 5), (EVEN, 1)])],
    mistakes={
        "start": {"twice": by_start},
        "end": ({"twice": lambda start, size: 2 * (start + size)}, {"twice": lambda start, size: 2 * (start + size) - 1}),
        "by number": lambda shapes, ranks: {name: number * ranks // len(shapes) for number, name in enumerate(shapes)},
        "round robin": lambda shapes, ranks: {name: number % ranks for number, name in enumerate(shapes)},
        "greedy": greedily,
        "filled up": filled_up,
        "rounded share": {"share": lambda total, ranks: max(1, total // ranks)},
        "first dimension": {"size": lambda shape: shape[0] if shape else 1},
        "dimensions added": {"size": sum},
        "largest first": {"order": lambda shapes: sorted(shapes, key=lambda name: -elements(shapes[name]))},
        "by name": {"order": sorted},
        "last rank first": {"rank": lambda rank, ranks: ranks - 1 - rank},
        "list": lambda shapes, ranks: list(contiguous(shapes, ranks).values()),
    })
def together(shapes, ranks, *, twice=lambda start, size: 2 * start + size, share=lambda total, ranks: total / ranks, size=elements,
             order=list, rank=lambda rank, ranks: rank):
    """twice: two times the place that decides."""
    total, start, owner = sum(map(size, shapes.values())), 0, {}
    for name in order(shapes):
        held = size(shapes[name])
        owner[name] = rank(min(int(twice(start, held) / (2 * share(total, ranks))), ranks - 1), ranks)
        start += held
    return {name: owner[name] for name in shapes}


# 03.w2 ----------------------------------------------------------------------------------------------------------------

def flat_slice(numel, world_size, rank):
    """A rank's slice of a flat buffer that is padded so that all slices are equally long:
    (start, stop, padding).

    start, stop: the slice has the elements [start, stop) of the numel real ones; the
    two are equal where it has none.
    padding: how many elements of padding come after them, so that no slice is longer
    than another.
    """
    length = -(-numel // world_size)  # rounded up
    start = min(rank * length, numel)
    stop = min(start + length, numel)
    return start, stop, length - (stop - start)


def evenly(numel, ranks, rank):
    start, stop = rank * numel // ranks, (rank + 1) * numel // ranks
    return start, stop, -(-numel // ranks) - (stop - start)


def on_the_last(numel, ranks, rank):
    length = -(-numel // ranks)
    padding = length * ranks - numel if rank == ranks - 1 else 0
    return rank * length, (rank + 1) * length - padding, padding


@exercise(
    "03.w2", "A slice of the flat buffer", minutes=8, difficulty=1, answer="flat_slice", own=flat_slice,
    replaces=("zerocourse.layout.rankmap:Layout.build", "zerocourse.formulas.shares:*"),
    trials=[Trial([(12, 4, rank) for rank in range(4)]), Trial(list(itertools.chain(
        ((10, 4, rank) for rank in range(4)), ((5, 4, rank) for rank in range(4)), ((1, 3, rank) for rank in range(3)), [(7, 1, 0)])))],
    mistakes={
        "rounded down": {"length": lambda numel, ranks: numel // ranks},
        "one more": {"length": lambda numel, ranks: numel // ranks + 1},
        "even": evenly,
        "on the last": on_the_last,
        "behind the end": {"cut": lambda place, numel: place},
        "start behind the end": {"cut_start": lambda place, numel: place},
        "padding of all": {"pads": lambda length, held, numel, ranks: length * ranks - numel},
        "no padding": {"pads": lambda length, held, numel, ranks: 0},
        "length": {"returns": lambda start, stop, padding: (start, stop - start, padding)},
        "last element": {"returns": lambda start, stop, padding: (start, stop - 1, padding)},
        "with padding": {"returns": lambda start, stop, padding: (start, stop + padding, padding)},
        "two numbers": {"returns": lambda start, stop, padding: (start, stop)},
    })
def slice_of(numel, ranks, rank, *, length=lambda numel, ranks: -(-numel // ranks), cut=min, cut_start=None,
             pads=lambda length, held, numel, ranks: length - held, returns=lambda *three: three):
    """The right slice."""
    each = length(numel, ranks)
    start, stop = (cut_start or cut)(rank * each, numel), cut((rank + 1) * each, numel)
    return returns(start, stop, pads(each, stop - start, numel, ranks))
