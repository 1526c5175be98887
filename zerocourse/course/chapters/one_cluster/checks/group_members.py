"""The check of 18.1: the ranks that differ from a rank along one axis of a mesh."""

import math

from ....checks import exercise

SIZES = {"dp": 3, "pp": 4, "tp": 2}
MEGATRON, PICOTRON = ("pp", "dp", "tp"), ("dp", "pp", "tp")
FIXED = ("cp", *MEGATRON)


def strides_of(order, sizes):
    """How far apart neighbours along each axis are; the last one counts first."""
    return {axis: math.prod(sizes[behind] for behind in order[at + 1:]) for at, axis in enumerate(order)}


def with_itself(order, sizes):
    return {axis: math.prod(sizes[behind] for behind in order[at:]) for at, axis in enumerate(order)}


@exercise(
    "18.1", "Who shares my axis?", minutes=15, difficulty=1,
    replaces=("zerocourse.layout.mesh:Mesh.group_of", "zerocourse.layout.mesh:Mesh.groups", "zerocourse.layout.mesh:Mesh.coordinates"),
    cases=[(5, "tp", MEGATRON, SIZES), (5, "dp", MEGATRON, SIZES), (17, "pp", MEGATRON, SIZES), (17, "pp", PICOTRON, SIZES),
           (9, "dp", PICOTRON, SIZES), (0, "dp", ("dp",), {"dp": 4}), (3, "tp", ("pp", "tp"), {"pp": 4, "tp": 1}),
           (13, "cp", ("cp", "tp", "pp", "dp"), {"dp": 2, "pp": 2, "cp": 2, "tp": 3})],
    mistakes={
        "reversed": lambda rank, axis, order, sizes: group_along(rank, axis, order[::-1], sizes),
        "order of the sizes": lambda rank, axis, order, sizes: group_along(rank, axis, tuple(sizes), sizes),
        "always one order": lambda rank, axis, order, sizes: group_along(rank, axis, [each for each in FIXED if each in sizes], sizes),
        "neighbours": {"strides": lambda order, sizes: dict.fromkeys(order, 1)},
        "own size": {"strides": with_itself},
        "rank 0": {"first": lambda rank, own, stride: 0},
        "from this rank on": {"first": lambda rank, own, stride: rank},
        "to the end": lambda rank, axis, order, sizes: list(range(
            rank % strides_of(order, sizes)[axis], math.prod(sizes.values()), strides_of(order, sizes)[axis])),
        "a ring": {"among": lambda ranks, rank: [*ranks[ranks.index(rank):], *ranks[:ranks.index(rank)]]},
        "without itself": {"among": lambda ranks, rank: [each for each in ranks if each != rank]},
        "coordinates": {"among": lambda ranks, rank: list(range(len(ranks)))},
        "other axes": {"others": True},
    })
def group_along(rank, axis, order, sizes, *, strides=strides_of, own=lambda rank, stride, size: rank // stride % size,
                first=lambda rank, own, stride: rank - own * stride, among=lambda ranks, rank: ranks, others=False):
    """The coordinate along the axis goes from 0 to its size, and the others stay."""
    stride, size = strides(order, sizes)[axis], sizes[axis]
    mine = own(rank, stride, size)
    if others:
        return [each for each in range(math.prod(sizes.values())) if each // stride % size == mine]
    start = first(rank, mine, stride)
    return among([start + stride * at for at in range(size)], rank)
