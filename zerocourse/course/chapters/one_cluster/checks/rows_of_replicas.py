"""The check of 18.3: find the bug in what tells the ranks of a mesh which samples are theirs."""

import math

from ....checks import Trial, exercise

ORDER = ("pp", "dp", "tp")


def coordinate(rank, order, sizes, axis="dp"):
    stride = math.prod(sizes[behind] for behind in order[order.index(axis) + 1:])
    return rank // stride % sizes[axis]


def case(rank, rows, **sizes):
    return list(range(100, 100 + rows)), rank, ORDER, {"pp": 1, "dp": 1, "tp": 1} | sizes


def rounded_up(size, more, parts):
    """As `torch.chunk` does: how many rows each has more than `size`."""
    rows, each = size * parts + more, size + bool(more)
    return [min(each, max(0, rows - each * part)) - size for part in range(parts)]


@exercise(
    "18.3", "Find the bug: a batch for each rank", minutes=20, difficulty=2,
    cases=[case(1, 8, dp=2), case(1, 8, dp=2, tp=2), case(2, 8, dp=2, tp=2), case(5, 8, pp=2, dp=2, tp=2), case(3, 4, pp=4),
           case(7, 12, pp=2, dp=3, tp=2), (list(range(8)), 5, ("dp", "pp", "tp"), {"pp": 2, "dp": 2, "tp": 2}),
           (list(range(6)), 4, ("tp", "dp"), {"tp": 2, "dp": 3})],
    trials=[Trial([case(2, 7, dp=3), case(0, 7, dp=3), case(5, 7, dp=4, tp=2), case(3, 2, dp=4), case(1, 2, dp=4)])],  # do not divide: last
    mistakes={
        "the bug": {"mine": lambda rank, order, sizes: rank, "replicas": lambda sizes: math.prod(sizes.values())},
        "a rank's share": {"replicas": lambda sizes: math.prod(sizes.values()), "mine": coordinate},
        "the rank": {"mine": lambda rank, order, sizes: rank % sizes["dp"]},
        "divided by tp": {"mine": lambda rank, order, sizes: rank // sizes.get("tp", 1) % sizes["dp"]},
        "order of sizes": {"mine": lambda rank, order, sizes: coordinate(rank, tuple(sizes), sizes)},
        "reversed": {"mine": lambda rank, order, sizes: coordinate(rank, order[::-1], sizes)},
        "interleaved": {"interleaved": True},
        "dropped": {"more_for": lambda size, more, parts: [0] * parts},
        "rest for one": tuple({"more_for": rest} for rest in (lambda size, more, parts: [more] + [0] * (parts - 1),
                                                              lambda size, more, parts: [0] * (parts - 1) + [more])),
        "rounded up": {"more_for": rounded_up},
    })
def own_rows(batch, rank, order, sizes, *, mine=coordinate, replicas=lambda sizes: sizes["dp"], interleaved=False,
             more_for=lambda size, more, parts: [each < more for each in range(parts)]):
    """Replica number i, that is the rank's coordinate along dp, has the i-th part of the batch."""
    parts, own = replicas(sizes), mine(rank, order, sizes)
    if interleaved:
        return batch[own::parts]
    size, more = divmod(len(batch), parts)
    more = more_for(size, more, parts)
    start = own * size + sum(more[:own])
    return batch[start : start + size + more[own]]
