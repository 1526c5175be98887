"""The exercises that ask to beat a number: the reader's best beside ours, and a bound that no answer can pass.

  zerocourse board                           in the folder that `zerocourse course`
                                             or `make lab` made, or below it
  zerocourse board my-course
  zerocourse board --folder submitted        the best of a class

The numbers are bytes, units of a schedule and simulated seconds, which the examiner makes: no time of this machine is
among them. An answer that keeps the rules of its exercise has a number, also where it is not good enough to pass. With
--folder the exercises of the board are graded as `zerocourse check --folder` does, and what that has found is used.
"""

from pathlib import Path

from ...launch.processes.parent import cores
from .. import Outcome
from ..arguments import Checked, check_file, path, refuse_ignored, whole
from ..terminal import table
from .check_command import JOBS_A_CORE, progress_on_stderr
from .progress_command import folder_of_learner

HELP = "exercises that ask to beat a number: your best, ours and a bound"


def configure(parser):
    which = parser.add_mutually_exclusive_group()
    which.add_argument("folder_of_learner", nargs="?", action=Checked, read=path, metavar="DIR",
                       help="the learner's folder (the one this is run in)")
    which.add_argument("--folder", action=Checked, read=path, metavar="DIR", help="a class: every notebook below DIR")
    parser.add_argument("--csv", action=Checked, read=path, metavar="FILE",
                        help="a class: the table of `check --folder`, beside which verdicts are kept (default DIR/grades.csv)")
    parser.add_argument("--jobs", action=Checked, read=whole(1, JOBS_A_CORE * cores()), default=1, metavar="N",
                        help="a class: notebooks at once (default 1)")


def run(args) -> Outcome:
    if args.folder:
        found, whose = of_class(args), "the class's best"
    else:
        refuse_ignored(args.given, ("--csv", "--jobs"), "without --folder: it is for a class's notebooks")
        found, whose = of_reader(folder_of_learner(args.folder_of_learner)), "yours"
    rows = lines(found)
    text = table([["exercise", "what is made small", whose, "ours", "bound", *(["whose"] if args.folder else [])],
                  *([row["exercise"], row["what"], *map(text_of, (row["best"], row["ours"], row["bound"])),
                     *([", ".join(row["who"])] * bool(args.folder))] for row in rows)], "<<>>>" + "<" * bool(args.folder))
    because = [f"{row['exercise']}, {row['what']}: no answer is below the bound, because {row['because']}." for row in rows]
    return Outcome("\n".join([*text, "", *because]), {"board": rows})


Found = dict[tuple[str, str], list[tuple[float, str]]]  # (exercise, name of the number) → numbers, and whose they are


def of_reader(folder: Path) -> Found:
    from ...course.learner.record import events
    from ...course.learner.remembered.summary import number

    found: Found = {}
    for event in events(folder):
        if event["kind"] == "best" and (value := number(event.get("value"))) is not None:
            found.setdefault((event["id"], str(event.get("what"))), []).append((value, "you"))
    return found


def of_class(args) -> Found:
    from ...course.checks.exercise import exercises
    from ...course.grading.classroom import grade_folder, notebooks_in
    from ...course.grading.gradebook import Gradebook
    from ...course.grading.student import Limits

    kept = (args.csv or args.folder / "grades.csv").with_suffix(".json")
    notebooks = notebooks_in(args.folder)
    check_file(kept, "what --csv keeps")
    with progress_on_stderr(len(notebooks), "notebook") as bar:
        rows = grade_folder(args.folder, [id for id, asked in exercises().items() if asked.board], Limits(), args.jobs, Gradebook(kept),
                            on_done=lambda _: bar.update(), if_there=True)
    found: Found = {}
    for row in rows:
        for id, verdict in row.verdicts.items():
            for what, value in verdict.numbers.items():
                found.setdefault((id, what), []).append((value, row.student))
    return found


def lines(found: Found) -> list[dict]:
    """A row for each number of the board, with those who have the best."""
    from ...course.checks.exercise import exercises

    rows = []
    for id, asked in exercises().items():
        for board in asked.board:
            numbers = found.get((id, board.what), [])
            best = min((value for value, _ in numbers), default=None)
            rows.append({"exercise": id, "title": asked.title, "what": board.what, "best": best, "ours": board.ours, "bound": board.bound,
                         "because": board.because, "who": sorted({who for value, who in numbers if value == best})})
    return rows


def text_of(value: float | None) -> str:
    from ...course.checks.board import number_text

    return number_text(value)
