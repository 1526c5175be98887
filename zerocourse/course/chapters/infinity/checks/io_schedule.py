"""The checks of 15.4 and 15.7: when states are read, updated and written, and what a timeline says about that."""

from ....checks import exercise
from .cells_schedule import begins_of

# 15.4 ---------------------------------------------------------------------------------------------------------------

RUNS = [(4, [1] * 5, [1] * 5, [1] * 5), (1, [1, 2], [1, 1], [2, 1]), (2, [1] * 6, [1] * 6, [1] * 6),
        (3, [3, 1, 2, 5, 1], [2, 2, 1, 1, 4], [1, 6, 1, 2, 2]), (2, [1, 1, 1, 1], [1, 1, 1, 1], [5, 5, 5, 5]),
        (8, [2, 2, 2], [5, 1, 1], [1, 4, 1]), (3, [1] * 6, [4] * 6, [1] * 6), (2, [], [], [])]


@exercise(
    "15.4", "A step with b buffers", minutes=45, difficulty=3, cases=RUNS,
    mistakes={
        "handed out before written": {"free": lambda ends: ends["step"]},
        "one buffer too many": {"more": 1},
        "one buffer too few": {"more": -1},
        "endless buffers": {"more": 1000},
        "one after the other": {"read_after": ("read", "step", "write")},
        "reads wait for steps": {"read_after": ("read", "step")},
        "steps wait for writes": {"step_after": ("step", "write")},
        "steps at once": {"step_after": ()},
        "writes at once": {"write_after": ()},
        "reads at once": {"read_after": ()},
        "ends": {"tells": "ends"},
        "until the last update": {"written_at": lambda ends: ends["step"]},
        "updates": {"idle": lambda seconds, steps: sum(steps)},
        "all buffers": {"most": lambda held, buffers: buffers},
    })
def schedule(buffers, reads, steps, writes, *, tells="starts", written_at=lambda ends: ends["write"],
             idle=lambda seconds, steps: seconds - sum(steps), most=lambda held, buffers: held, **order):
    """When read, step and write of each block begin, and what follows from that. order: knobs of `begins_of`.

    handed out before written: You gave a buffer to the next block as soon as its block was updated: it is still being
        written, and the next states would overwrite what the disk has not got yet.
    one buffer too many: One block too many is in memory: block k waits for the buffer of block k − b.
    one buffer too few: You use one buffer less than there are: block k waits for block k − b, and the first b wait for
        none.
    endless buffers: You read ahead without end: only b blocks are in memory at once.
    one after the other: You begin a block when the one before is written: then nothing overlaps.
    reads wait for steps: You begin a read when the block before is updated: reading needs the disk and a buffer, and no
        more.
    steps wait for writes: You begin an update when the block before is written: only a later read may have to wait for
        that.
    steps at once: You let several blocks be updated at once: the host updates one at a time.
    writes at once: You let several blocks be written at once: the disk writes one at a time.
    reads at once: You let several blocks be read at once: the disk reads one at a time.
    ends: You returned when things end, and when they begin is wanted.
    until the last update: You ended with the last update: the step is over when the last block is written.
    updates: In `idle` you have the seconds of the updates: those in which there is none are wanted.
    all buffers: In `held` you returned `buffers`: not all of them need ever be in use.
    right: and from three buffers on all three lanes can be busy at once.
    """
    moments = begins_of(buffers, reads, steps, writes, told=lambda begins, ends: (begins, ends), **order)
    starts = [tuple(ends.values()) if tells == "ends" else begins for begins, ends in moments]
    taken = [(begins[0], written_at(ends)) for begins, ends in moments]
    seconds = max((end for _, end in taken), default=0)
    held = max((sum(first <= moment < last for first, last in taken) for moment, _ in taken), default=0)
    return {"begins": starts, "seconds": seconds, "idle": idle(seconds, steps), "held": most(held, buffers)}


# 15.7 ---------------------------------------------------------------------------------------------------------------

def timeline(text):
    """Events from "read 0 2, step 2 5" (verb, start, end)."""
    return [{"verb": verb, "start": float(start), "end": float(end)}
            for verb, start, end in (row.split() for row in text.split(", "))]


TIMELINES = [timeline(text) for text in (
    "read 0 4, step 4 5, write 5 7", "step 3 9, read 0 3, write 9 10", "read 0 3, read 1 4, step 4 9, write 9 10",
    "write 6 8, read 0 1, step 1 3, read 1 2, step 3 5, write 3 6, step 8 8.5",
    "read 0 1, step 1 2, read 9 10, step 10 13, write 13 14",
    "read 0 5, read 1 2, read 4 6, step 6 9, step 9 12.5, write 12.5 18",
    "step 0 2, read 2 3, read 3 4, read 4 5, write 5 6",
    "up 0 9, read 0 2, step 2 3, write 3 4, backward 0 30")]


def seconds_of(intervals):
    """During which at least one of them is under way."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


@exercise(
    "15.7", "Read this timeline: what bounds the step?", minutes=20, difficulty=2,
    cases=[(each,) for each in TIMELINES],
    mistakes={
        "added up": {"busy": lambda each: sum(end - start for start, end in each)},
        "from first to last": {"busy": lambda each: max(end for _, end in each) - min(start for start, _ in each)},
        "the longest one": {"busy": lambda each: max(end - start for start, end in each)},
        "the most": {"rank": lambda each: len(each)},
        "the last": {"rank": lambda each: max(end for _, end in each)},
        "the least": {"rank": lambda each: -seconds_of(each)},
        "all lanes": {"lanes": None},
        "not sorted": {"busy": lambda each: sum(
            max(0.0, end - max(start, max((other for _, other in each[:at]), default=start)))
            for at, (start, end) in enumerate(each))},
        "the whole step": {"whole": True},
    })
def bound_by(events, *, busy=seconds_of, rank=None, lanes=("read", "step", "write"), whole=False):
    """The lane that is busy longest, and for how many seconds.

    added up: You added up the durations: two reads at once take their seconds together, so count each moment once.
    from first to last: You took the time from the first beginning to the last end: in between the lane may stand still.
    the longest one: You looked for the longest event: a lane with many short ones can be busy longer.
    the most: You counted events: how long a lane is busy decides.
    the last: You took the lane that ends last: something always does, and that need not be what is slow.
    the least: You took the lane that is busy least.
    all lanes: You took other lanes into account: `read`, `step` and `write` only.
    not sorted: It is right where the events come in the order of time: they may come in any order.
    the whole step: You returned the seconds of the whole step: those in which the lane is busy are wanted.
    right: to make the step faster, this is the lane to look at, and no other.
    """
    found = {}
    for event in events:
        if lanes is None or event["verb"] in lanes:
            found.setdefault(event["verb"], []).append((event["start"], event["end"]))
    lane = max(found, key=lambda verb: (rank or busy)(found[verb]))
    if whole:
        return lane, max(event["end"] for event in events) - min(event["start"] for event in events)
    return lane, busy(found[lane])
