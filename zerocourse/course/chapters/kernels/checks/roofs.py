"""The check of 22.1: how long kernels take at least, and which of them wait for the memory."""

from ....checks import exercise

T4, H100 = (65e12, 320e9), (989e12, 3.35e12)  # operations and bytes per second
STEP = [("matmul", 4 * 10**12, 10**9), ("norm", 3 * 10**8, 2 * 10**9), ("adamw", 2 * 10**9, 3_500_000_000)]
CASES = [(STEP, *T4), (STEP, *H100), (STEP[:1], *T4), (STEP[1:], *H100), ([("decode", 2 * 10**9, 2 * 10**9), ("prompt", 10**13, 4 * 10**9)], *H100),
         ([("even", 100, 10), ("longer", 90, 10)], 100, 10), ([], *T4)]


@exercise(
    "22.1", "Which roof?", minutes=15, difficulty=1, cases=CASES,
    mistakes={
        "added": {"longer": lambda computing, moving: computing + moving},
        "the shorter": {"longer": min},
        "all together": {"together": True},
        "computing alone": {"longer": lambda computing, moving: computing},
        "moving alone": {"longer": lambda computing, moving: moving},
        "the others": {"waits": lambda computing, moving: computing > moving},
        "a tie": {"waits": lambda computing, moving: moving >= computing},
        "bits": {"size": 8},
    })
def least_seconds(kernels, peak, bandwidth, *, longer=max, together=False, waits=lambda computing, moving: moving > computing, size=1):
    """(seconds, names of the kernels that take longer to move than to compute)."""
    found = {name: (operations / peak, size * nbytes / bandwidth) for name, operations, nbytes in kernels}
    seconds = sum((longer(*each) for each in found.values()), 0.0)
    if together:
        seconds = max(sum(each[0] for each in found.values()), sum(each[1] for each in found.values()))
    return seconds, [name for name, each in found.items() if waits(*each)]
