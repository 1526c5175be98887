"""The numbers of the exercises that ask to beat one, which `zerocourse board` shows beside ours and a bound.

Each is made by the trials of the exercise: bytes, a makespan, what is sent, simulated seconds. None is a time of the machine.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Board:
    """A number that an answer is to make small.

    what: its name with its unit, such as "bytes held at the peak".
    of(seen) -> number: `seen[trial][rank][case]` is what the trials saw. None where there is no number.
    ours: that of the solution.   bound: what no answer can be below.   because: why it cannot, as a sentence's end.
    goal: what an answer may have otherwise than the reference and still keep the rules, by the names of what is seen: what
        says only whether its number is good enough.
    """

    what: str
    of: Callable[[list], float | None]
    ours: float
    bound: float
    because: str
    goal: Collection[str]


def number_text(value: float | None) -> str:
    """For tables: "767,220", "0.2211", "–" for none."""
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
