"""The checks of what chapter 06 asks for itself: 06.w1, when a bucket leaves, and 06.w2, what stays of it."""

import gc
import weakref

import numpy
import torch

from ....checks import Trial, When, exercise

# 06.w1 ----------------------------------------------------------------------------------------------------------------

def gradient_came(name, waiting, send):
    """The gradient of a parameter is complete: send what may leave now.

    waiting: the buckets that have not left, in the order in which they must leave, the
        same on every rank. Each is (the bucket's name, the set of the parameters whose
        gradients it still waits for). Take out of the set what came, and out of the
        list what has left.
    send(bucket): lets the bucket of that name leave.
    A bucket must not leave before those that stand before it, even if it is full.
    """
    for _, missing in waiting:
        missing.discard(name)
    while waiting and not waiting[0][1]:
        bucket, _ = waiting.pop(0)
        send(bucket)


IN_ORDER = ([("h.1", "cd"), ("h.0", "ab")], "dcba")
MIXED = ([("h.2", "ef"), ("h.1", "cd"), ("h.0", "ab")], "cfdeba")
LATE = ([("h.1", "b"), ("h.0", "a"), ("root", "xy")], "xaby")


def departures_of(answer, buckets, arrivals):
    """After which gradient each bucket left, and what is still waited for at the end."""
    waiting, left = [(bucket, set(names)) for bucket, names in buckets], []
    for name in arrivals:
        answer(name, waiting, lambda bucket, name=name: left.append(f"{bucket} after {name}"))
    return {"order": [each.split()[0] for each in left], "left": left, "waiting": [bucket for bucket, _ in waiting]}


def keeps_list(name, waiting, send):
    for bucket, missing in waiting:
        if name in missing:
            missing.discard(name)
            if not missing:
                send(bucket)


@exercise(
    "06.w1", "When a bucket leaves", minutes=12, difficulty=2, answer="gradient_came", own=gradient_came,
    trials=[Trial([IN_ORDER], departures_of), Trial([MIXED, LATE], departures_of)],
    mistakes={
        "as soon as it is full": {"may_leave": lambda waiting, place: not waiting[place][1]},
        "full buckets overtake, list kept": keeps_list,
        "one at a time": {"most": 1},
        "at its first gradient": {"may_leave": lambda waiting, place: place == 0 and len(waiting[0][1]) < 2},
        "never": {"may_leave": lambda waiting, place: False},
        "all at the end": {"may_leave": lambda waiting, place: place == 0 and not any(missing for _, missing in waiting)},
        "sent again": ({"removes": False}, When("order", lambda got, want: len(got) > len(set(got)))),
        "first bucket alone": {"looks_at": lambda waiting: waiting[:1]},
        "last bucket first": {"last_first": True},
    })
def departing(name, waiting, send, *, may_leave=lambda waiting, place: place == 0 and not waiting[0][1], most=99, removes=True,
              looks_at=lambda waiting: waiting, last_first=False):
    """most: how many may leave at once.   looks_at: the buckets from which the name is taken."""
    for _, missing in looks_at(waiting):
        missing.discard(name)
    if last_first:
        waiting.reverse()
    sent = 0
    while sent < most:
        place = next((place for place in range(len(waiting)) if may_leave(waiting, place)), None)
        if place is None:
            break
        send(waiting.pop(place)[0] if removes else waiting[place][0])
        sent += 1
        if not removes:
            break
    if last_first:
        waiting.reverse()


# 06.w2 ----------------------------------------------------------------------------------------------------------------

def keep_slice(kept, bucket, own):
    """What a rank keeps of a bucket: its slice, added to what it has kept before.

    kept: the sum over the earlier micro-batches, (length of the slice,), or None before
        the first.
    bucket: (n,), in which the slice `own` is summed over the ranks.
    Returns the new sum. The bucket's memory must be free as soon as nobody else holds
    the bucket.
    """
    part = bucket[own].clone()
    return part if kept is None else kept + part


def kept_of(answer, micro_batches):
    """What is kept after some micro-batches, and whether a bucket's memory is still alive."""
    kept, alive, own = None, [], slice(4, 8)
    for number in range(micro_batches):
        memory = numpy.arange(12, dtype=numpy.float32) * (number + 1)  # its life is that of the bucket's memory
        alive.append(weakref.ref(memory))
        kept = answer(kept, torch.from_numpy(memory), own)
        del memory
    gc.collect()
    is_tensor = isinstance(kept, torch.Tensor)
    return {"kind": "a tensor" if is_tensor else type(kept).__name__, "shape": list(kept.shape) if is_tensor else [],
            "sum": kept, "alive": sum(each() is not None for each in alive)}


@exercise(
    "06.w2", "What stays of a bucket", minutes=8, difficulty=1, answer="keep_slice", own=keep_slice,
    trials=[Trial([(1,), (2,), (3,)], kept_of)],
    mistakes={
        "view": ({"part": lambda bucket, own: bucket[own]}, When("alive")),
        "replaced": {"add": lambda kept, part: part},
        "whole bucket": {"part": lambda bucket, own: bucket.clone()},
        "whole bucket's memory": {"part": lambda bucket, own: bucket},
        "first slice": {"part": lambda bucket, own: bucket[:own.stop - own.start].clone()},
        "first alone": {"add": lambda kept, part: kept},
        "averaged": {"add": lambda kept, part: (kept + part) / 2},
        "joined": {"add": lambda kept, part: torch.cat([kept, part])},
        "nothing returned": {"returns": lambda total: None},
    })
def keeping(kept, bucket, own, *, part=lambda bucket, own: bucket[own].clone(), add=lambda kept, part: kept + part,
            returns=lambda total: total):
    """The right sum."""
    mine = part(bucket, own)
    return returns(mine if kept is None else add(kept, mine))
