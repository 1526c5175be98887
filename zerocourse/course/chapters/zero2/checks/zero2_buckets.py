"""The checks of chapter 06, ZeRO-2: here 6.1 and 6.2, which are about lists; the others watch tensors."""

from itertools import accumulate

import torch
from torch import nn

from .....zero.buffers.unit import split_into_buffers
from ....checks import exercise

# 6.1 ----------------------------------------------------------------------------------------------------------------

def own_cut(units, bucket_size):
    with torch.device("meta"):
        named = [{str(i): nn.Parameter(torch.empty(size)) for i, size in enumerate(unit)} for unit in units]
    return [[param.numel() for param in row.values()]
            for params in named for row in split_into_buffers(params, bucket_size)]


def from_the_end(units, bucket_size):
    return [bucket[::-1] for bucket in cut_into_buckets([unit[::-1] for unit in units[::-1]], bucket_size)][::-1]


def first_that_fits(units, bucket_size):
    buckets = []
    for unit in units:
        before = len(buckets)
        for size in unit:
            if not (roomy := [bucket for bucket in buckets[before:] if sum(bucket) + size <= bucket_size]):
                buckets.append([])
                roomy = buckets[-1:]
            roomy[0].append(size)
    return buckets


def large_at_once(units, bucket_size):
    """A parameter that is too large goes before the bucket that is open."""
    buckets = []
    for unit in units:
        bucket = []
        for size in unit:
            if size > bucket_size:
                buckets.append([size])
            elif sum(bucket) + size > bucket_size:
                buckets.append(bucket)
                bucket = [size]
            else:
                bucket.append(size)
        buckets += [bucket] if bucket else []
    return buckets


def pieces(size, limit):
    return [limit] * (size // limit) + [size % limit] * (size % limit > 0)


@exercise(
    "6.1", "When a bucket closes", minutes=12, difficulty=1, own=own_cut,
    replaces=("zerocourse.zero.buffers.unit:*",),
    sample=lambda random: ([[random.randint(1, 20) for _ in range(random.randint(1, 6))]
                            for _ in range(random.randint(1, 3))], random.randint(1, 30)),
    cases=[([[5, 4, 3, 1]], 10), ([[4, 4, 4, 4]], 8), ([[5, 2], [2, 5]], 10), ([[3, 20, 3]], 8), ([[20], [1, 9]], 8),
           ([[2, 2, 2], [2], [2, 2]], 100), ([[6, 5, 5, 6]], 10), ([[7, 3, 1], [9, 9]], 10), ([[5, 1, 5, 5, 4]], 6),
           ([[1, 2, 1, 2, 1]], 3)],
    mistakes={
        "across units": {"across": True},
        "last lost": ({"last": False}, {"last": False, "across": True}),
        "closed late": ({"fits": lambda used, size, limit: used < limit},
                        {"fits": lambda used, size, limit: used <= limit}),
        "never full": {"fits": lambda used, size, limit: used + size < limit},
        "empty bucket": {"empty": True},
        "large left out": lambda units, limit: cut_into_buckets(
            [[n for n in unit if n <= limit] for unit in units], limit),
        "large cut": lambda units, limit: cut_into_buckets(
            [[part for n in unit for part in pieces(n, limit)] for unit in units], limit),
        "large joins": {"fits": lambda used, size, limit: size > limit or used + size <= limit},
        "large first": large_at_once,
        "from the end": from_the_end,
        "earlier bucket": first_that_fits,
        "order of the backward": lambda units, limit: cut_into_buckets(units, limit)[::-1],
        "one a unit": {"fits": lambda used, size, limit: True},
        "one a parameter": {"fits": lambda used, size, limit: False},
        "counted parameters": {"counts": lambda size: 1, "fits": lambda used, size, limit: used < limit},
        "total goes on": {"begins": lambda used, size: used},
        "total of the unit before": {"at_the_end": lambda used: used},
        "new one forgotten": {"begins": lambda used, size: -size},
    })
def cut_into_buckets(units, bucket_size, *, fits=lambda used, size, limit: used + size <= limit, across=False,
                     last=True, empty=False, counts=lambda size: size, begins=lambda used, size: 0,
                     at_the_end=lambda used: 0):
    """Buckets of sizes, in the order of the forward."""
    buckets, bucket, used = [], [], 0
    for unit in units:
        for size in unit:
            if (bucket or empty) and not fits(used, size, bucket_size):
                buckets.append(bucket)
                bucket, used = [], begins(used, size)
            bucket.append(size)
            used += counts(size)
        if not across:
            buckets += [bucket] if bucket and last else []
            bucket, used = [], at_the_end(used)
    return buckets + ([bucket] if bucket and last else [])


# 6.2 ----------------------------------------------------------------------------------------------------------------

ABC = [["a", "b"], ["c", "d"], ["e"]]


def gradients_until(bucket, arrivals, end, of=max, first=1):
    """After how many gradients the bucket is full, where what never comes counts as coming at the end."""
    return of(arrivals.index(name) + first if name in arrivals else end for name in bucket)


def those_that_come(none):
    """As above, without the parameters that get no gradient.   none: for a bucket that gets none at all."""
    def until(bucket, arrivals, end):
        return max((arrivals.index(name) + 1 for name in bucket if name in arrivals), default=min(none, end))
    return until


def last_first(full, end):
    return list(accumulate(full[::-1], max))[::-1]


def as_they_fill(full, end):
    return full


@exercise(
    "6.2", "When a bucket leaves", minutes=20, difficulty=2,
    cases=[(ABC, list("edcba")), (ABC, list("dceba")), (ABC, list("abcde")), (ABC, list("edba")), (ABC, list("dcba")),
           (ABC, []), ([["a"], ["b"], ["c"], ["d"]], list("acbd")), ([["a"], ["b"], ["c"]], list("ca")),
           (ABC, list("ecdab"))],
    mistakes={
        "no order": {"leave": as_they_fill},
        "all at the end": {"leave": lambda full, end: [end] * len(full)},
        "first first": {"leave": lambda full, end: list(accumulate(full, max))},
        "from 0": ({"until": lambda bucket, arrivals, end: gradients_until(bucket, arrivals, end, first=0)},
                   lambda buckets, arrivals: [left - 1 for left in departures(buckets, arrivals)],
                   lambda buckets, arrivals: [max(left - 1, 0) for left in departures(buckets, arrivals)]),
        "unused ignored": tuple({"until": those_that_come(none), "leave": leave}
                                for leave in (last_first, as_they_fill) for none in (0, 1, 99)),
        "left out": lambda buckets, arrivals: departures(
            [bucket for bucket in buckets if {*bucket} <= {*arrivals}], arrivals),
        "order of leaving": lambda buckets, arrivals: departures(buckets, arrivals)[::-1],
        "end of all": {"end": lambda buckets, arrivals: sum(map(len, buckets))},
        "after the end": {"end": lambda buckets, arrivals: len(arrivals) + 1},
        "next alone": {"leave": lambda full, end: list(map(max, full, full[1:] + [0]))},
        "one at a time": {"leave": lambda full, end: [
            min(left, end) for left in accumulate(full[::-1], lambda after, own: max(after + 1, own))][::-1]},
        "first gradient": {"until": lambda bucket, arrivals, end: gradients_until(bucket, arrivals, end, min)},
        "one parameter": ({"until": lambda bucket, *when: gradients_until(bucket[:1], *when)},
                          {"until": lambda bucket, *when: gradients_until(bucket[-1:], *when)}),
        "own gradients": lambda buckets, arrivals: [sum(name in arrivals for name in bucket) for bucket in buckets],
    })
def departures(buckets, arrivals, *, end=lambda buckets, arrivals: len(arrivals), until=gradients_until,
               leave=last_first):
    """After how many gradients each bucket leaves."""
    last = end(buckets, arrivals)
    return leave([until(bucket, arrivals, last) for bucket in buckets], last)
