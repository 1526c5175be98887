"""What the checks say to a bank of wrong answers, now and before: a tool for moving an exercise, not a test.

  python tests/compare_bank.py record FILE [ID...]    keep what is said now, as JSON
  python tests/compare_bank.py FILE [ID...]           what is said now beside what FILE has, and a count

SAME: to the letter. LOST: no mistake is named any more, or the status is another. OTHER: the rest, so read both
sentences. BANK=DIR in the environment takes `wrong_answers` from the tests of another checkout, since the answers that
FILE was made with are deleted here when their exercise has moved.
"""

import json
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), *filter(None, [os.environ.get("BANK")]), str(HERE)]
NAMELESS = ("difference", "broken", "usage")

from exercise_sets import answers_to  # noqa: E402
from wrong_answers import bank  # noqa: E402

from tools.exercises import SOLUTIONS  # noqa: E402
from zerocourse.course.checks import check, exercises  # noqa: E402


def said_now(id: str) -> dict[str, list]:
    """By the name of each wrong answer of the bank: [phrase, status, message, code]."""
    exercise, said = exercises()[id], {}
    for phrase, answer in bank().get(id, []):
        answers = [answer]
        if len(exercise.answers) > 1:
            known = zip(exercise.answers, answers_to(exercise, SOLUTIONS), strict=True)
            answers = [getattr(answer, name, solution) for name, solution in known]
        verdict = check(id, *answers)
        said[f"{answer.__module__.rpartition('.')[2]}.{answer.__name__}"] = [
            phrase, verdict.status, verdict.message, getattr(verdict, "code", None)]
    return said


def record(path: str, ids: list[str]) -> None:
    found = json.loads(Path(path).read_text()) if Path(path).exists() else {}
    for id in ids or list(exercises()):
        if id not in found:
            began = time.monotonic()
            found[id] = said_now(id)
            Path(path).write_text(json.dumps(found, indent=1))
            print(f"{id}: {len(found[id])} answers in {time.monotonic() - began:.1f} s", flush=True)


def compare(path: str, ids: list[str]) -> None:
    before = json.loads(Path(path).read_text())
    for id in ids or list(before):
        counts = {"same": 0, "other": 0, "lost": 0}
        for name, (phrase, status, message, code) in said_now(id).items():
            _, old_status, old_message, *_ = before[id].get(name, (None, "not recorded", ""))
            kind = "same" if (status, message) == (old_status, old_message) else \
                "other" if status == old_status and code not in NAMELESS else "lost"
            counts[kind] += 1
            if kind != "same":
                gone = "" if phrase in message else f" (without {phrase!r})"
                print(f"{id} {name} [{code}] {kind.upper()}{gone}\n  before: {old_status}: {old_message}\n"
                      f"  now:    {status}: {message}")
        print(f"{id}: {', '.join(f'{count} {kind}' for kind, count in counts.items())}", flush=True)


if __name__ == "__main__":
    first, *rest = sys.argv[1:] or ["--help"]
    if first == "--help":
        print(__doc__)
    elif first == "record":
        record(rest[0], rest[1:])
    else:
        compare(first, rest)
