"""Grades the answers to exercises: those in exercises/ here, in one notebook, or in a whole class's notebooks.

  zerocourse check                  every notebook in exercises/, or in those
                                    that `make lab` made in learning/
  zerocourse check 1.1 1.2          these answers there
  zerocourse check --answers my/01_memory_math.ipynb
  zerocourse check --folder submitted --csv grades.csv --report report
  zerocourse check --folder submitted --canvas canvas.csv --roster exported.csv
  zerocourse check --answers submission.ipynb --gradescope results.json

Only the answer cells and the cells they build on are run, each notebook in a process of its own with a limit of time
and memory. Exit status 0 when every answer passed, 1 when not. With --folder it is 0 when every notebook could be
read, whatever the grades. What was graded is kept beside the table (grades.json beside grades.csv), and the next run
grades only the notebooks whose answers have changed. docs/classes.md has more.
"""

import sys
from pathlib import Path

from ...errors import BadInput
from ...launch.processes.parent import cores
from ...launch.progress_bar import progress_bar
from .. import Outcome
from ..arguments import Checked, check_file, check_folder, path, refuse_ignored, seconds, size, whole

HELP = "grade answers to the exercises"
LEAST_MEMORY = "512MiB"  # a process that imports torch takes half of it before any answer runs
JOBS_A_CORE = 4


def configure(parser):
    parser.add_argument("ids", nargs="*", metavar="ID", help="exercises, such as 5.1, or 5 for those of chapter 05; all by default")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--answers", action=Checked, read=path, metavar="NOTEBOOK",
                       help="the notebook with the answers (those in exercises/)")
    which.add_argument("--folder", action=Checked, read=path, metavar="DIR",
                       help="class mode: grade every notebook below DIR")
    parser.add_argument("--csv", action=Checked, read=path, metavar="FILE",
                        help="class mode: write the grades here (default DIR/grades.csv)")
    parser.add_argument("--report", action=Checked, read=path, metavar="DIR",
                        help="class mode: write a page of the class here, and one for each student")
    parser.add_argument("--canvas", action=Checked, read=path, metavar="FILE",
                        help="class mode: write the points here as a gradebook that Canvas imports")
    parser.add_argument("--roster", action=Checked, read=path, metavar="FILE",
                        help="class mode: the gradebook that Canvas has exported, by which it knows students")
    parser.add_argument("--gradescope", action=Checked, read=path, metavar="FILE",
                        help="write the verdicts here as the results.json of a Gradescope autograder")
    parser.add_argument("--jobs", action=Checked, read=whole(1, JOBS_A_CORE * cores()), default=1, metavar="N",
                        help="class mode: notebooks at once (default 1)")
    parser.add_argument("--seconds", action=Checked, read=seconds, default=300.0, metavar="S",
                        help="limit for one notebook (default 300)")
    parser.add_argument("--memory", action=Checked, read=size(LEAST_MEMORY), default=4 * 2**30, metavar="SIZE",
                        help="limit for one notebook (default 4GiB)")


def run(args) -> Outcome:
    from ...course.checks.exercise import find  # here and below, because torch takes two seconds to import
    from ...course.grading.examiner import grade
    from ...course.grading.student import Limits

    args.ids = [id for word in args.ids for id in _ids_of_chapter(word) or [word]]
    for id in args.ids:
        if id.endswith(".ipynb"):
            raise BadInput(f"{id} is a notebook: say --answers {id}")
        find(id)  # a misspelt id is reported before anything runs
    limits = Limits(args.seconds, args.memory)
    if args.folder:
        return _folder(args, limits)
    refuse_ignored(args.given, ("--csv", "--report", "--canvas", "--roster", "--jobs"), "without --folder: it is for a class's notebooks")
    if args.gradescope:
        check_file(args.gradescope, "--gradescope")
    verdicts = {}
    todo = _notebooks(args)
    with progress_on_stderr(sum(map(len, todo.values())), "answer") as bar:
        for path, ids in todo.items():
            found = grade(path, ids, limits, on_verdict=lambda _: bar.update())
            verdicts |= found
            _remember(path, found)
    if args.gradescope:
        from ...course.grading.grade_tables import save_gradescope
        save_gradescope(verdicts.values(), args.gradescope)
    passed = sum(verdict.passed for verdict in verdicts.values())
    where = ", ".join(dict.fromkeys(str(Path(path).parent) for path in todo))
    text = "\n".join([*map(str, verdicts.values()), f"{passed} of {len(verdicts)} passed" + f", in {where}" * (where != ".")])
    data = {id: {"status": verdict.status, "message": verdict.message} for id, verdict in verdicts.items()}
    return Outcome(text, data, passed == len(verdicts))


def _ids_of_chapter(word: str) -> list[str]:
    """The exercises of the chapter with this number; none where the word is something else."""
    from .list_command import exercises

    return [id for id, each in exercises().items() if word.isdecimal() and each["chapter"] == int(word)]


def _notebooks(args) -> dict[str | Path, list[str]]:
    """Which answers to grade, by notebook."""
    from ...course.grading.notebook import ids_of, read_cells
    from ...course.learner.folder import use_folder_of_make_lab

    if args.answers:
        return {args.answers: args.ids or ids_of(read_cells(args.answers))}
    here = use_folder_of_make_lab()
    paths = sorted(path for folder in (here, here / "exercises") for path in folder.glob("[0-9][0-9]_*.ipynb") if _ids(path))
    if not paths:
        raise BadInput("there are no exercise notebooks here: name one with --answers, or run this where exercises/ is")
    chosen = {path: [id for id in _ids(path) if id in args.ids or not args.ids] for path in paths}
    missing = [id for id in args.ids if not any(id in ids for ids in chosen.values())]
    if missing:
        raise BadInput(f"no notebook here has an answer to {', '.join(missing)}: name one with --answers")
    return {path: ids for path, ids in chosen.items() if ids}


def _remember(path: str | Path, verdicts: dict) -> None:
    """In the record of a learner's folder, where the notebook lies in it."""
    from ...course.checks.exercise import find
    from ...course.grading.notebook import read_cells
    from ...course.learner.folder import learner_folder
    from ...course.learner.remembered.verdicts import remember_verdict

    if (folder := learner_folder()) and folder in Path(path).resolve().parents:
        cells = read_cells(path)
        for id, verdict in verdicts.items():
            remember_verdict(verdict, find(id).points, (cell.source for cell in cells if cell.id == id))


def _ids(path: Path) -> list[str]:
    """The ids of the exercises in a notebook; none if it is another kind of notebook."""
    from ...course.grading.notebook import ids_of, read_cells

    try:
        return ids_of(read_cells(path))
    except BadInput:
        return []


def progress_on_stderr(total: int, unit: str):
    """A progress bar on stderr, if that is a terminal."""
    return progress_bar(total, unit=unit, file=sys.stderr)


def _folder(args, limits) -> Outcome:
    from ...course.grading.classroom import grade_folder, notebooks_in
    from ...course.grading.grade_tables import read_roster, save_canvas, save_csv
    from ...course.grading.gradebook import Gradebook
    from ...course.grading.report.student_pages import save_report

    refuse_ignored(args.given, ("--gradescope",), "with --folder: it is for one notebook")
    if args.roster and not args.canvas:
        refuse_ignored(args.given, ("--roster",), "without --canvas: it says by which ids Canvas knows the students")
    folder, table = args.folder, args.csv or args.folder / "grades.csv"
    notebooks, kept = notebooks_in(folder), table.with_suffix(".json")
    outputs = {"--csv": table, "what --csv keeps": kept} | ({"--canvas": args.canvas} if args.canvas else {})
    for name, file in outputs.items():
        check_file(file, name)
        read = dict.fromkeys(notebooks, "one of the notebooks") | ({args.roster: "the roster"} if args.roster else {})
        if file.exists() and (what := next((what for each, what in read.items() if file.samefile(each)), None)):
            raise BadInput(f"{name} is {file}, which is {what}: name another file")
    if table in (kept, args.canvas):
        raise BadInput(f"--csv is {table}, which another output is, too: name a file that ends in .csv")
    if args.report:
        check_folder(args.report, "--report")
    if args.roster:
        read_roster(args.roster)
    book = Gradebook(kept)
    with progress_on_stderr(len(notebooks), "notebook") as bar:
        rows = grade_folder(folder, args.ids, limits, args.jobs, book, on_done=lambda _: bar.update())
    save_csv(rows, table)
    said = [f"grades are in {table}"]
    if args.report:
        save_report(rows, args.report)
        said.append(f"the class's page is {args.report / 'index.html'}, and those of students are beside it")
    if args.canvas:
        missing = save_canvas(rows, args.canvas, args.roster)
        said.append(f"{args.canvas} is for Canvas" + f", without {', '.join(missing)}, who are not in {args.roster}" * bool(missing))
    data = {row.name: row.as_dict() for row in rows}
    unread, anew = sum(bool(row.problem) for row in rows), sum(bool(row.anew) for row in rows)
    but = f", {unread} of them could not be graded" * bool(unread) + f", {len(rows) - unread - anew} as in the last run" * (anew + unread < len(rows))
    return Outcome("\n".join([*map(str, rows), "", f"{len(rows)} notebooks{but}", *said]), data, not unread)
