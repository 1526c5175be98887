"""A class's grades as tables: our own, the gradebook that Canvas imports, and the results that Gradescope reads."""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...errors import BadInput
from .. import chapters
from ..checks.exercise import exercises
from ..checks.verdict import Verdict
from .classroom import Row

WHO = "Student", "ID", "SIS User ID", "SIS Login ID", "Section"  # the columns by which Canvas knows a student
POSSIBLE = "Points Possible"


def ids_in(rows: Iterable[Row]) -> list[str]:
    return sorted({id for row in rows for id in row.verdicts}, key=lambda id: tuple(map(int, id.split("."))))


def save_csv(rows: Sequence[Row], path: Path) -> None:
    """A line a notebook: points, how many passed, the status of every exercise, the codes of mistakes, and what was said to each."""
    ids = ids_in(rows)
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["notebook", "student", "points", "of points", "passed", "of", "problem", *ids, *(f"{id} code" for id in ids),
                        *(f"{id} message" for id in ids)])
        for row in rows:
            each = [row.verdicts.get(id) for id in ids]
            table.writerow([row.name, row.student, row.points, row.of_points, row.passed, len(row.verdicts), row.problem,
                            *(getattr(verdict, what, None) or "" for what in ("status", "code", "message") for verdict in each)])


# Canvas: a line a student, a column a chapter, as Gradebook > Import takes it ---------------------------------------

def save_canvas(rows: Sequence[Row], path: Path, roster: Path | None = None) -> list[str]:
    """Write the gradebook. Returns the students that are not in the roster, whose grades are left out.

    roster: the gradebook as Canvas exports it, by which students are known and columns that are there already are named.
        Without one, what a student's folder is called is taken for the login.
    Raises BadInput for a roster that is something else.
    """
    by_student: dict[str, list[Row]] = {}
    for row in rows:
        by_student.setdefault(row.student, []).append(row)
    head, known = read_roster(roster) if roster else (list(WHO), [])
    numbers = sorted({exercises()[id].chapter for id in ids_in(rows) if id in exercises()})
    missing, lines = [], []
    for student, theirs in by_student.items():
        who = found(student, known) if roster else dict.fromkeys(WHO, "") | {"Student": student, "SIS Login ID": student}
        if who is None:
            missing.append(student)
        else:
            lines.append([*(who.get(column, "") for column in WHO), *(points(theirs, number) for number in numbers)])
    possible = [sum(exercises()[id].points for id in ids_in(rows) if id in exercises() and exercises()[id].chapter == number) for number in numbers]
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([[*WHO, *(column_of(number, head) for number in numbers)],
                                    [f"    {POSSIBLE}", *[""] * (len(WHO) - 1), *possible], *lines])
    return missing


def points(rows: Iterable[Row], number: int) -> int | str:
    """Of a student in a chapter; nothing, which Canvas leaves as it is, where no notebook has an answer to it."""
    ids = [(row, id) for row in rows for id in row.verdicts if id in exercises(number)]
    return sum(row.worth(id) for row, id in ids if row.verdicts[id].passed) if ids else ""


def column_of(number: int, head: Sequence[str]) -> str:
    """A chapter's column: that of the assignment which Canvas has already, "name (its id)", or the name of a new one."""
    name = f"ZeRO {chapters.notebook_name(number).removesuffix('.ipynb').replace('_', ' ')}"
    return next((column for column in head if column.partition(" (")[0] == name), name)


def read_roster(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns of a gradebook that Canvas has exported, and its students."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            known = [row for row in table if any(row.get(column) for column in WHO[1:4])]
            head = list(table.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"--roster is {path}, which cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not {"Student", "ID"} <= {*head} or not known:
        raise BadInput(f"--roster is {path}, which is no gradebook of Canvas: its first line must have Student and ID, as Canvas exports it")
    return head, known


def found(student: str, known: Iterable[dict[str, str]]) -> dict[str, str] | None:
    """The one whose login, id or name it is; or whose id is a part of it, as in the names of files that Canvas hands out."""
    parts = student.split("_")
    return next((who for who in known if student in (who.get(column) for column in WHO[:4]) or (who["ID"] and who["ID"] in parts[1:])), None)


# Gradescope: the results of one notebook, as its autograder's specification has them ---------------------------------

def save_gradescope(verdicts: Iterable[Verdict], path: Path) -> None:
    """results.json: a test for each exercise, and its numbers as a leaderboard."""
    verdicts = list(verdicts)
    asked = {verdict.id: exercises()[verdict.id] for verdict in verdicts}
    tests = [{"number": verdict.id, "name": asked[verdict.id].title, "score": asked[verdict.id].points if verdict.passed else 0,
              "max_score": asked[verdict.id].points, "status": "passed" if verdict.passed else "failed", "output": verdict.message,
              "extra_data": {"code": verdict.code}} for verdict in verdicts]
    board = [{"name": f"{verdict.id} {what}", "value": value, "order": "asc"} for verdict in verdicts for what, value in verdict.numbers.items()]
    path.write_text(json.dumps({"score": sum(test["score"] for test in tests), "stdout_visibility": "hidden", "tests": tests}
                               | ({"leaderboard": board} if board else {}), indent=1), encoding="utf-8")
