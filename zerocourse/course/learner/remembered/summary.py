"""What a learner's record comes to: exercises by chapter and by kind, and how predictions compare with what was measured."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

KINDS = {"find the bug": ("Find the bug", "Fix", "Repair"), "read": ("Read this", "Read these", "Read the ", "Read a "),
         "choose and defend": ("Choose", "Defend"), "beat this number": ("Beat", "The fewest bytes"), "write": ("",)}
"""The kinds of exercises, each by how the titles begin."""


def kind_of(title: str) -> str:
    return next(kind for kind, beginnings in KINDS.items() if title.startswith(beginnings))


@dataclass
class CheckedExercise:
    """An exercise that was checked. code: of the mistake in the last answer, None where that passed.   hash: of the answer that
    passed last."""

    tries: int = 0
    passed: bool = False
    code: str | None = None
    points: int = 0
    hash: str | None = None


@dataclass
class JudgedPrediction:
    """A prediction. ratio: predicted by measured.   right: for what is no number. Both None: not measured, or made too late."""

    quantity: str
    ratio: float | None = None
    right: bool | None = None


@dataclass
class Summary:
    """What a record says, by id in the order of the first event."""

    checked: dict[str, CheckedExercise] = field(default_factory=dict)
    predicted: dict[str, JudgedPrediction] = field(default_factory=dict)

    def ratios(self) -> dict[str, dict[str, float]]:
        """Those that can stand on a logarithmic axis: {quantity: {id: predicted / measured}}, by name."""
        found: dict[str, dict[str, float]] = {}
        for id, each in self.predicted.items():
            if each.ratio is not None and each.ratio > 0:
                found.setdefault(each.quantity, {})[id] = each.ratio
        return dict(sorted(found.items()))


def chapter_of(id: str) -> int | None:
    """Of an exercise, "5.1", or of a prediction, "05.states"; None of an id that begins otherwise."""
    number = id.partition(".")[0]
    return int(number) if number.isdecimal() else None


def summarized(events: Iterable[Mapping]) -> Summary:
    """Of a record. An exercise that passed once has passed; of a prediction the first guess counts that was judged."""
    summary = Summary()
    for event in events:
        id = event["id"]
        if event["kind"] == "verdict":
            checked = summary.checked.setdefault(id, CheckedExercise())
            checked.tries += 1
            checked.code = event.get("code")
            if event.get("passed") is True:
                checked.passed, checked.hash, checked.points = True, event.get("hash"), number(event.get("points")) or checked.points
        elif event["kind"] == "prediction" and event.get("guess") is not None:
            summary.predicted.setdefault(id, JudgedPrediction(str(event.get("quantity") or "other")))
        elif event["kind"] == "measured" and id in summary.predicted:
            predicted = summary.predicted[id]
            if predicted.ratio is None and predicted.right is None:
                predicted.ratio = number(event.get("ratio"))
                predicted.right = event["right"] if isinstance(event.get("right"), bool) else None
    return summary


def number(value) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None
