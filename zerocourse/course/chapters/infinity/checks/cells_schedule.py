"""The check of what chapter 15 asks for itself: 15.w1, when the states of each block are read, updated and written."""

from ....checks import exercise


def schedule_of(buffers, reads, steps, writes):
    """When the read, the update and the write of each block begin, each as early as it can.

    buffers: so many blocks fit into the host's memory. A buffer takes the next block when
        its last one has been written.
    reads, steps, writes: how long each of the three takes, block by block.
    The disk reads one block at a time and writes one at a time, and it can do both at once.
    One block is updated at a time. All three go in the order of the blocks.
    Returns a list of (read, update, write), the moments at which they begin.
    The first is 0.
    """
    read_ends = step_ends = write_ends = 0
    begins, free = [], [0] * buffers
    for block, (read, step, write) in enumerate(zip(reads, steps, writes)):
        at_read = max(read_ends, free[block % buffers])
        read_ends = at_read + read
        at_step = max(step_ends, read_ends)
        step_ends = at_step + step
        at_write = max(write_ends, step_ends)
        write_ends = free[block % buffers] = at_write + write
        begins.append((at_read, at_step, at_write))
    return begins


RUNS = [(4, [1] * 5, [1] * 5, [1] * 5), (1, [1, 2], [1, 1], [2, 1]), (2, [1] * 6, [1] * 6, [1] * 6),
        (3, [3, 1, 2, 5, 1], [2, 2, 1, 1, 4], [1, 6, 1, 2, 2]), (2, [1, 1, 1, 1], [1, 1, 1, 1], [5, 5, 5, 5]),
        (3, [1] * 6, [4] * 6, [1] * 6)]


@exercise(
    "15.w1", "A schedule of reads and writes", minutes=15, difficulty=2, answer="schedule_of", own=schedule_of, cases=RUNS,
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
        "ends": {"told": lambda begins, ends: tuple(ends.values())},
    })
def begins_of(buffers, reads, steps, writes, *, more=0, free=lambda ends: ends["write"], read_after=("read",), step_after=("step",),
              write_after=("write",), told=lambda begins, ends: begins):
    """The right moments."""
    ends, begins, freed = {"read": 0, "step": 0, "write": 0}, [], []
    for block, (read, step, write) in enumerate(zip(reads, steps, writes, strict=True)):
        held = max(1, buffers + more)
        at_read = max([freed[block - held] if block >= held else 0, *(ends[lane] for lane in read_after)])
        at_step = max([at_read + read, *(ends[lane] for lane in step_after)])
        at_write = max([at_step + step, *(ends[lane] for lane in write_after)])
        ends = {"read": at_read + read, "step": at_step + step, "write": at_write + write}
        begins.append(told((at_read, at_step, at_write), ends))
        freed.append(free(ends))
    return begins
