"""The chapters. A room has what one chapter alone uses: what it measures and draws, and in `checks` its exercises.

A room is named as its notebook is, and `NUMBERS` says which number the chapter has, with which the names of its notebooks and
the ids of its exercises begin.
"""

from pathlib import Path

NUMBERS = {
    "start_here": 0, "memory_math": 1, "meta_device": 2, "rank_maps": 3, "data_parallel": 4, "zero1": 5, "zero2": 6, "zero3": 7,
    "overlap": 8, "what_goes_wrong": 9, "mixed_precision": 10, "engine": 11, "checkpoints": 12, "activations": 13, "offload": 14,
    "infinity": 15, "tensor_parallel": 16, "pipelines": 17, "one_cluster": 18, "long_sequences": 19, "slow_links": 20,
    "experts": 21, "kernels": 22, "inference": 23, "rlhf": 24, "scale": 25, "claims": 26,
}
NEEDS = {  # by number, the chapters without which one does not follow; what these need themselves is not named again
    0: (), 1: (0,), 2: (1,), 3: (1,), 4: (1,), 5: (3, 4), 6: (5,), 7: (2, 6), 8: (7,), 9: (7,), 10: (7,), 11: (10,), 12: (11,), 13: (4,),
    14: (8, 10), 15: (14,), 16: (7, 13), 17: (13,), 18: (16, 17), 19: (16,), 20: (8, 18), 21: (19,), 22: (19,), 23: (22,),
    24: (23,), 25: (20,), 26: (15, 25),
}
PATHS = {"two hours": (0, 5), "a day": (0, 1, 3, 4, 5), "the whole course": tuple(NEEDS)}  # each has the chapters of the one before
TOPICS = {number: topic for topic, number in NUMBERS.items()}


def with_exercises() -> list[int]:
    """The chapters that have exercises."""
    return [number for topic, number in NUMBERS.items() if (Path(__file__).parent / topic / "checks").is_dir()]


def notebook_name(number: int) -> str:
    """Of a chapter's notebook, and of its exercises."""
    return f"{number:02}_{TOPICS[number]}.ipynb"
