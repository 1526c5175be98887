"""The check of 15.4: when states are read, updated and written."""

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
