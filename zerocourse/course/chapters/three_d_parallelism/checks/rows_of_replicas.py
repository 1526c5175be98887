"""The check of 18.3: find the bug in what tells the ranks of a mesh which samples are theirs."""

import math

from ....checks import Trial, exercise

ORDER = ("pp", "dp", "tp")


def coordinate(rank, order, sizes, axis="dp"):
    stride = math.prod(sizes[behind] for behind in order[order.index(axis) + 1:])
    return rank // stride % sizes[axis]


def case(rank, rows, **sizes):
    return list(range(100, 100 + rows)), rank, ORDER, {"pp": 1, "dp": 1, "tp": 1} | sizes


@exercise(
    "18.3", "Find the bug: a batch for each rank", minutes=20, difficulty=2,
    cases=[case(1, 8, dp=2), case(1, 8, dp=2, tp=2), case(2, 8, dp=2, tp=2), case(5, 8, pp=2, dp=2, tp=2), case(3, 4, pp=4),
           case(7, 12, pp=2, dp=3, tp=2), (list(range(8)), 5, ("dp", "pp", "tp"), {"pp": 2, "dp": 2, "tp": 2}),
           (list(range(6)), 4, ("tp", "dp"), {"dp": 3, "tp": 2})],
    trials=[Trial([case(2, 7, dp=3), case(0, 7, dp=3), case(5, 7, dp=4, tp=2)])],  # what does not divide comes last
    mistakes={
        "the bug": {"mine": lambda rank, order, sizes: rank, "replicas": lambda sizes: math.prod(sizes.values())},
        "a rank's share": {"replicas": lambda sizes: math.prod(sizes.values()), "mine": coordinate},
        "the rank": {"mine": lambda rank, order, sizes: rank % sizes["dp"]},
        "divided by tp": {"mine": lambda rank, order, sizes: rank // sizes.get("tp", 1) % sizes["dp"]},
        "reversed": {"mine": lambda rank, order, sizes: coordinate(rank, order[::-1], sizes)},
        "interleaved": {"interleaved": True},
        "dropped": {"dropped": True},
    })
def own_rows(batch, rank, order, sizes, *, mine=coordinate, replicas=lambda sizes: sizes["dp"], interleaved=False,
             dropped=False):
    """Replica number i, that is the rank's coordinate along dp, has the i-th part of the batch.

    the bug: The bug is still there: each rank takes other rows. The ranks of one replica compute one model together, so they
        need the same samples, and only ranks that differ along `dp` have others.
    a rank's share: Replicas have their own rows now, but each takes as few as if every rank had its own: most of the batch
        is read by nobody.
    the rank: You took `rank` modulo the number of replicas: the coordinate along `dp` depends on the axes behind it, too.
    divided by tp: You assumed that `tp` alone is behind `dp`, which is one system's order: here `order` says it.
    reversed: You read `order` from the wrong end: its last axis counts first.
    interleaved: You gave the replicas every n-th row: parts one after the other are wanted, so that the order of the batch
        stays.
    dropped: You left rows out where the replicas do not divide the batch: every row must be read by one replica, and the
        first ones have one more.
    right: the same rows in a replica, other rows in each replica, and each row once.
    """
    parts, own = replicas(sizes), mine(rank, order, sizes)
    if interleaved:
        return batch[own::parts]
    size, more = divmod(len(batch), parts)
    more = 0 if dropped else more
    start = own * size + min(own, more)
    return batch[start : start + size + (own < more)]
