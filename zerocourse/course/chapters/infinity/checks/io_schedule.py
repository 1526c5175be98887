"""The check of 15.4: when states are read, updated and written."""

from ....checks import exercise
from .cells_schedule import begins_of

# 15.4 ---------------------------------------------------------------------------------------------------------------

RUNS = [(4, [1] * 5, [1] * 5, [1] * 5), (1, [1, 2], [1, 1], [2, 1]), (2, [1] * 6, [1] * 6, [1] * 6),
        (3, [3, 1, 2, 5, 1], [2, 2, 1, 1, 4], [1, 6, 1, 2, 2]), (2, [1, 1, 1, 1], [1, 1, 1, 1], [5, 5, 5, 5]),
        (8, [2, 2, 2], [5, 1, 1], [1, 4, 1]), (3, [1] * 6, [4] * 6, [1] * 6), (4, [1] * 5, [5] * 5, [1] * 5), (2, [], [], [])]


@exercise(
    "15.4", "A step with b buffers", minutes=45, difficulty=3, cases=RUNS,
    mistakes={
        "handed out before written": {"free": lambda ends: ends["step"]},
        "one buffer too many": {"more": 1},
        "one buffer too few": {"more": -1},
        "endless buffers": ({"more": 1000}, {"more": 1000, "most": min}),
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
    """When read, step and write of each block begin, and what follows from that. order: knobs of `begins_of`."""
    moments = begins_of(buffers, reads, steps, writes, told=lambda begins, ends: (begins, ends), **order)
    starts = [tuple(ends.values()) if tells == "ends" else begins for begins, ends in moments]
    taken = [(begins[0], written_at(ends)) for begins, ends in moments]
    seconds = max((end for _, end in taken), default=0)
    held = max((sum(first <= moment < last for first, last in taken) for moment, _ in taken), default=0)
    return {"begins": starts, "seconds": seconds, "idle": idle(seconds, steps), "held": most(held, buffers)}
