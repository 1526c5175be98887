"""The check of 22.5: slices of a flat buffer that begin where a kernel reads 16 bytes at a time."""

from ....checks import exercise

CASES = [(100, 4, 16), (96, 3, 16), (1000, 3, 16), (1000, 8, 8), (5, 4, 16), (64, 4, 1), (50, 4, 4), (33, 2, 16), (0, 2, 16), (100, 4, 24)]


@exercise(
    "22.5", "Slices that begin at sixteen", minutes=20, difficulty=2, cases=CASES,
    mistakes={
        "not aligned": {"step_of": lambda numel, ranks, multiple: -(-numel // ranks)},
        "rounded down": {"step_of": lambda numel, ranks, multiple: max(numel // ranks // multiple, 1) * multiple},
        "one block more": {"step_of": lambda numel, ranks, multiple: (-(-numel // ranks) // multiple + 1) * multiple},
        "aligned bytes": {"step_of": lambda numel, ranks, multiple: -(-numel // ranks // max(multiple // 4, 1)) * max(multiple // 4, 1)},
        "whole rounds": {"step_of": lambda numel, ranks, multiple: -(-numel // (ranks * multiple)) * multiple * 2},
        "bits": {"step_of": lambda numel, ranks, multiple: (-(-numel // ranks) + multiple - 1) & -multiple},
        "behind the end": {"end": lambda at, numel: at},
        "lengths": {"pair": lambda start, stop: (start, stop - start)},
        "none for the last": {"keep": lambda slices: [each for each in slices if each[0] < each[1]]},
    })
def even_slices(numel, ranks, multiple, *, step_of=lambda numel, ranks, multiple: -(-numel // (ranks * multiple)) * multiple,
                end=min, pair=lambda start, stop: (start, stop), keep=list):
    """[(start, stop) of each rank]."""
    step = step_of(numel, ranks, multiple)
    return keep([pair(end(rank * step, numel), end((rank + 1) * step, numel)) for rank in range(ranks)])
