"""What the record says of an answer that was checked, in a notebook or by `zerocourse check`."""

import linecache
from collections.abc import Callable, Iterable

from ....errors import BadInput
from ..folder import learner_folder
from ..record import answer_hash, events, remember
from .summary import CheckedExercise, summarized

NO_ANSWER = "usage", "broken", "not done"  # codes of verdicts that say nothing of an answer


def remember_verdict(verdict, points: int, sources: Iterable[str]) -> None:
    """Append the verdict on an answer, and each number that it has for the board, with the hash of the answer.

    verdict: a `Verdict`.   points: what the exercise is worth.   sources: of the cells of the answer.
    """
    if verdict.code in NO_ANSWER:
        return
    answer = answer_hash(sources)
    remember("verdict", verdict.id, passed=verdict.passed, code=verdict.code, hash=answer, points=points if verdict.passed else 0)
    for what, value in verdict.numbers.items():
        remember("best", verdict.id, what=what, value=value, hash=answer)


def remembered() -> dict[str, CheckedExercise]:
    """By id, what the learner's folder remembers of exercises; nothing without a folder, or where it cannot be read."""
    try:
        return summarized(events(folder)).checked if (folder := learner_folder()) else {}
    except (OSError, BadInput):  # `remember` says so
        return {}


def cell_sources(answers: Iterable[Callable]) -> list[str]:
    """The source of each cell, or file, in which these functions are defined."""
    files = dict.fromkeys(answer.__code__.co_filename for answer in answers if hasattr(answer, "__code__"))
    return ["".join(linecache.getlines(file)) for file in files]
