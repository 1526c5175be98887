"""The forms of a prediction: a number with its unit, a place such as step 14, one of several, an order, a curve by a few points.

A form reads what a learner typed, says it, and sets it beside what was measured.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import BadInput
from ...formulas.units import BYTE_UNITS, gb, gib
from ..show.alternative_text import short

UNITS = {"bytes": BYTE_UNITS, "seconds": {"µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600},
         "share": {"%": 0.01}, "factor": {"times": 1, "x": 1, "×": 1}}
"""Quantity → unit in lower case → how many bytes, seconds, shares of 1 or factors it is. Every other unit is what is counted, in
words, such as "samples", or nothing for a plain number; its quantity is "count"."""
NUMBER = re.compile(r"(\d[\d,_]*\.?\d*|\.\d+)(e[+-]?\d+)?\s*(.*)", re.IGNORECASE)
OPEN = "–"


class AnswerForm:
    """quantity: by which progress groups predictions.   unit: of the numbers in the record.   wants: what to type, in words.
    judged: what `judge` returns, "ratio" (guess by measured value) or "right" (whether they are equal)."""

    quantity: str
    unit: str | None = None
    wants: str
    judged = "right"

    def read(self, typed: object):
        """The answer, None if it is open (`...`). Raises BadInput for what is none."""
        return None if typed is ... else self.parse(typed)

    def parse(self, typed: object):
        raise NotImplementedError

    def say(self, answer) -> str:
        return str(answer)

    def recorded(self, answer):
        """The answer as it stands in the record."""
        return answer

    def taken(self, measured: object):
        """What was measured, as answers are. Raises BadInput for what is no answer."""
        return self.parse(measured)

    def judge(self, guess, value) -> float | bool | None:
        """None for a guess that is open (None), and for a ratio by 0."""
        return None if guess is None else guess == value

    def row(self, who: str, guess, value) -> dict[str, str]:
        """The columns of the comparison."""
        judged = self.judge(guess, value)
        verdict = {None: OPEN, True: "yes", False: "no"}[judged] if self.judged == "right" or judged is None else short(judged)
        return {who: OPEN if guess is None else self.say(guess), "found": self.say(value), self.judged: verdict}


@dataclass(frozen=True)
class Number(AnswerForm):
    """A number in `unit`: a learner types 12 or "12 GB", or another unit of the same quantity. Answers and measured values are in
    bytes, seconds, shares of 1, factors, or counts."""

    unit: str
    judged = "ratio"

    def __post_init__(self):
        if self.quantity == "count" and not re.fullmatch(r"([a-z][a-z-]{3,}( .*)?)?", self.unit):
            known = ", ".join(unit for units in UNITS.values() for unit in units)
            raise BadInput(f"{self.unit!r} is no unit: there are {known}, and what is counted, such as samples")

    @property
    def quantity(self) -> str:
        return next((quantity for quantity, units in UNITS.items() if self.unit.lower() in units), "count")

    @property
    def wants(self) -> str:
        if not self.unit:
            return "a number"
        return (f"a number {'of' if self.quantity in ('factor', 'count') else 'in'} {self.unit}"
                + ', or with another unit, such as "300 MB"' * (self.quantity == "bytes"))

    @property
    def scale(self) -> float:
        """How many bytes, or the like, the unit is."""
        return self._scale_of(self.unit)

    def parse(self, typed) -> float:
        found = NUMBER.fullmatch(str(typed).strip())
        scale = self._scale_of(found[3] or self.unit) if found else None
        if isinstance(typed, bool) or scale is None:
            raise BadInput(f"{typed!r} is not {self.wants}")
        return float(re.sub("[,_]", "", found[1]) + (found[2] or "")) * scale

    def _scale_of(self, unit: str) -> float | None:
        if self.quantity != "count":
            return UNITS[self.quantity].get(unit.lower())
        return 1 if self.unit.startswith(unit.lower().removesuffix("s")) else None  # "1 sample", or "16 bytes" per parameter

    def say(self, answer: float) -> str:
        if self.quantity == "bytes":
            return (gib if self.unit.lower().endswith("ib") else gb)(answer)
        number = short(self.recorded(answer))
        unit = re.sub(r"s\b", "", self.unit, count=1) if number == "1" and self.quantity == "count" else self.unit
        return f"{number} {unit}".strip().replace(" %", "%")

    def recorded(self, answer: float) -> float:
        return answer / self.scale

    def judge(self, guess: float | None, value: float) -> float | None:
        return None if guess is None or not value else guess / value

    def taken(self, measured) -> float:
        return float(measured)


@dataclass(frozen=True)
class Ordinal(AnswerForm):
    """The number of one `thing` in a row, such as step 14: a learner types 14 or "step 14". Beside what was measured stands the
    difference, because the ratio of two such numbers says nothing."""

    thing: str
    quantity = "place"

    @property
    def wants(self) -> str:
        return f"the number of a {self.thing}, such as 3"

    def parse(self, typed) -> int:
        found = re.fullmatch(rf"({re.escape(self.thing)}\s*)?(\d+)", str(typed).strip(), re.IGNORECASE)
        if found is None:
            raise BadInput(f"{typed!r} is not {self.wants}")
        return int(found[2])

    def say(self, answer: int) -> str:
        return f"{self.thing} {answer}"

    def row(self, who, guess, value) -> dict[str, str]:
        return {who: OPEN if guess is None else self.say(guess), "found": self.say(value),
                "difference": OPEN if guess is None else f"{guess - value:+d}" if guess != value else "0"}


class OneOf(AnswerForm):
    """One of several words. Where there are two, a measured True is the first of them."""

    quantity = "choice"

    def __init__(self, *options: str):
        self.options = {option.lower(): option for option in options}
        self.wants = "one of " + ", ".join(f'"{option}"' for option in options)

    def parse(self, typed) -> str:
        if (option := self.options.get(str(typed).strip().lower())) is None:
            raise BadInput(f"{typed!r} is not {self.wants}")
        return option

    def taken(self, measured: object) -> str:
        return list(self.options.values())[not measured] if isinstance(measured, bool) else self.parse(measured)


class Order(OneOf):
    """All of several things, from the first to the last: a list, or one text with commas."""

    quantity = "order"

    def __init__(self, *things: str):
        super().__init__(*things)
        self.wants = self.wants.replace("one", "all", 1) + ", in your order, in [ ]"

    def parse(self, typed) -> list[str] | None:
        given = typed.split(",") if isinstance(typed, str) else typed if isinstance(typed, Sequence) else [typed]
        if given and all(each is ... for each in given):
            return None
        found = [self.options.get(str(each).strip().lower(), "") for each in given]
        if sorted(found) != sorted(self.options.values()):
            raise BadInput(f"{typed!r} is not {self.wants}")
        return found

    def say(self, answer: list[str]) -> str:
        return ", ".join(answer)


class Curve(AnswerForm):
    """The heights of a curve at a few places, as numbers in `unit`; a height may stay open (`...`).

    Answers and measured values are lists of what `Number` has, with None for what is open.
    """

    judged = "ratio"

    def __init__(self, unit: str, at: Sequence[float]):
        self.unit, self.at, self.number = unit, tuple(at), Number(unit)
        self.quantity = self.number.quantity
        self.wants = f"[ ] with {len(at)} numbers in {unit}, for {', '.join(map(short, at))}"

    def parse(self, typed) -> list[float | None] | None:
        if isinstance(typed, str) or not isinstance(typed, Sequence) or len(typed) != len(self.at):
            raise BadInput(f"{typed!r} is not {self.wants}")
        heights = list(map(self.number.read, typed))
        return heights if any(height is not None for height in heights) else None

    def say(self, answer: list[float | None]) -> str:
        return ", ".join(OPEN if height is None else self.number.say(height) for height in answer)

    def recorded(self, answer: list[float | None]) -> list[float | None]:
        return [None if height is None else self.number.recorded(height) for height in answer]

    def taken(self, measured: Mapping[float, float]) -> list[float]:
        """measured: place → height in `unit`."""
        if missing := [place for place in self.at if place not in measured]:
            raise BadInput(f"a curve is predicted at {missing} and not measured there, but at {sorted(measured)}")
        return [measured[place] * self.number.scale for place in self.at]

    def judge(self, guess: list[float | None] | None, value: list[float]) -> float | None:
        """The ratio of the place where it is farthest from 1."""
        return None if guess is None else self.number.judge(*self._farthest(guess, value)[1:])

    def row(self, who, guess, value) -> dict[str, str]:
        place, *pair = (None, None, 0) if guess is None else self._farthest(guess, value)
        return {"farthest off at": OPEN if place is None else short(place)} | self.number.row(who, *pair)

    def _farthest(self, guess: list[float | None], value: list[float]) -> tuple[float, float, float]:
        """A place, and what was guessed and measured there."""
        def off(at_place: tuple[float, float | None, float]) -> float:
            ratio = self.number.judge(*at_place[1:])
            return -1 if ratio is None else abs(math.log(ratio)) if ratio else math.inf
        return max(zip(self.at, guess, value, strict=True), key=off)
