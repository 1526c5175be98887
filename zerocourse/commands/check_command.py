"""Grades the answers to exercises: those in exercises/ here, in one notebook, or in a whole class's notebooks.

  zerocourse check                                   every notebook in exercises/
  zerocourse check 1.1 1.2                           these answers in exercises/
  zerocourse check --answers my/01_memory_math.ipynb
  zerocourse check --folder submitted --csv grades.csv

Only the answer cells and the cells they build on are run, each notebook in a process of its own with a limit of time
and memory. Exit status 0 when every answer passed, 1 when not. With --folder it is 0 when every notebook could be
read, whatever the grades.
"""

import sys
from pathlib import Path

from ..course.checks.exercise import find
from ..course.checks.verdict import Verdict
from ..course.grading.classroom import grade_folder, notebooks_in, save_csv
from ..course.grading.examiner import grade
from ..course.grading.notebook import ids_of, read_cells
from ..course.grading.student import Limits
from ..errors import BadInput
from ..formulas.units import parse_bytes
from . import Outcome

HELP = "grade answers to the exercises"


def configure(parser):
    parser.add_argument("ids", nargs="*", metavar="ID", help="exercises, such as 5.1; all by default")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--answers", metavar="NOTEBOOK", help="the notebook with the answers (those in exercises/)")
    which.add_argument("--folder", metavar="DIR", help="class mode: grade every notebook below DIR")
    parser.add_argument("--csv", metavar="FILE", help="class mode: write the grades here (default DIR/grades.csv)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="class mode: notebooks at once (default 1)")
    parser.add_argument("--seconds", type=float, default=300, metavar="S", help="limit for one notebook (default 300)")
    parser.add_argument("--memory", default="4GiB", metavar="SIZE", help="limit for one notebook (default 4GiB)")


def run(args) -> Outcome:
    for id in args.ids:
        if id.endswith(".ipynb"):
            raise BadInput(f"{id} is a notebook: say --answers {id}")
        find(id)  # a misspelt one is told before anything runs
    if args.seconds <= 0 or args.jobs < 1:
        raise BadInput("--seconds and --jobs must be positive")
    limits = Limits(args.seconds, parse_bytes(args.memory))
    if args.folder:
        return _folder(args, limits)
    if args.csv:
        raise BadInput("--csv needs --folder: it is for a class's notebooks")
    verdicts: dict[str, Verdict] = {}
    todo = _notebooks(args)
    with _bar(sum(map(len, todo.values())), "answer") as bar:
        for path, ids in todo.items():
            verdicts |= grade(path, ids, limits, on_verdict=lambda _: bar.update())
    passed = sum(verdict.passed for verdict in verdicts.values())
    text = "\n".join([*map(str, verdicts.values()), f"{passed} of {len(verdicts)} passed"])
    data = {id: {"status": verdict.status, "message": verdict.message} for id, verdict in verdicts.items()}
    return Outcome(text, data, passed == len(verdicts))


def _notebooks(args) -> dict[str | Path, list[str]]:
    """Which answers to grade, by notebook."""
    if args.answers:
        return {args.answers: args.ids or ids_of(read_cells(args.answers))}
    found = sorted(path for folder in (".", "exercises") for path in Path(folder).glob("[0-9][0-9]_*.ipynb")
                   if _ids(path))
    if not found:
        raise BadInput("there are no exercise notebooks here: name one with --answers, or run this where exercises/ is")
    chosen = {path: [id for id in _ids(path) if id in args.ids or not args.ids] for path in found}
    missing = [id for id in args.ids if not any(id in ids for ids in chosen.values())]
    if missing:
        raise BadInput(f"no notebook here has an answer to {', '.join(missing)}: name one with --answers")
    return {path: ids for path, ids in chosen.items() if ids}


def _ids(path: Path) -> list[str]:
    """The exercises answered in a notebook; none when it is another kind of notebook."""
    try:
        return ids_of(read_cells(path))
    except BadInput:
        return []


def _bar(total: int, unit: str):
    """Progress on stderr where somebody watches."""
    from tqdm import tqdm
    return tqdm(total=total, unit=unit, disable=None, file=sys.stderr)


def _folder(args, limits: Limits) -> Outcome:
    folder = Path(args.folder)
    with _bar(len(notebooks_in(folder)), "notebook") as bar:
        rows = grade_folder(folder, args.ids, limits, args.jobs, on_done=lambda _: bar.update())
    path = Path(args.csv) if args.csv else folder / "grades.csv"
    save_csv(rows, path)
    data = {row.name: row.as_dict() for row in rows}
    unread = sum(bool(row.problem) for row in rows)
    but = f", {unread} of them could not be graded" if unread else ""
    text = "\n".join([*map(str, rows), "", f"{len(rows)} notebooks{but}; grades are in {path}"])
    return Outcome(text, data, not unread)
