"""Makes exercises/ from solutions/, the only source of an exercise. `python -m tools.exercises` writes all sets,
`--check` says what is stale or out of order, `--run 01` first executes solutions/01_*.ipynb in place.

A set is a notebook. Its author writes, for each exercise of `zerocourse.course.checks`, a text that begins with "## 1.1", a
cell with the answer between `### BEGIN SOLUTION` and `### END SOLUTION`, and a cell `check("1.1", fn)`; cells that the
answers need (imports, constants) have the tag `given`. nbgrader's metadata, its hidden test, and the line with minutes
and difficulty come from here.
"""

import argparse
import copy
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tools import notebooks
from zerocourse.course.checks import Exercise, exercises
from zerocourse.course.learner.copies import learners_copy

ROOT = notebooks.ROOT
SOLUTIONS, EXERCISES = ROOT / "solutions", ROOT / "exercises"
CHECK = re.compile(r'^check\("(\d+\.\d+)", [\w, ]+\)\Z', re.M)
HEADING = re.compile(r"\A## (\d+\.\d+)\b[^\n]*(?:\n+\*\d+ minutes[^\n]*\*)?")
TEST = """### BEGIN HIDDEN TESTS
verdict = {call}
assert verdict.passed, verdict.message
### END HIDDEN TESTS
{call}"""
GIVEN = "given"


def sets(numbers: list[str] = ()) -> list[Path]:
    """The solutions, or those whose names begin with one of `numbers`, in order."""
    paths = sorted(SOLUTIONS.glob("[0-9][0-9]_*.ipynb"))
    return [path for path in paths if not numbers or path.name.startswith(tuple(numbers))]


def stamp(notebook):
    """Put in what does not need an author: the first cell, nbgrader's metadata and test, minutes and difficulty."""
    given = [GIVEN in cell.metadata.get("tags", []) for cell in notebook.cells]
    for cell, is_given in zip(notebook.cells, given, strict=True):
        cell.source = cell.source.rstrip()
        if cell.cell_type == "markdown" and (heading := HEADING.match(cell.source)):
            cell.source = _title(_exercise(heading[1])) + cell.source[heading.end():]
        match = CHECK.search(cell.source) if cell.cell_type == "code" else None
        if match:
            cell.source = TEST.format(call=match[0])
        compared = match or cell.source.startswith("progress(")
        cell.metadata = nbformat.from_dict({"tags": [GIVEN] * is_given + [notebooks.COMPARED] * bool(compared)})
    notebooks.tidy(notebook)
    answers = []
    for cell in notebook.cells:
        if notebooks.SOLUTION in cell.source:
            answers.append(cell)
        elif cell.cell_type == "code" and (match := CHECK.search(cell.source)):
            name = match[1].replace(".", "_")
            for number, answer in enumerate(answers):
                grade_id = f"answer_{name}" + f"_{number}" * (len(answers) > 1)
                answer.metadata.nbgrader = nbformat.from_dict(notebooks.marks(grade_id, solution=True))
            cell.metadata.nbgrader = nbformat.from_dict(notebooks.marks(f"check_{name}", points=_exercise(match[1]).difficulty))
            answers = []
    return notebook


def _exercise(id: str) -> Exercise:
    return exercises(int(id.partition(".")[0]))[id]


def _title(exercise: Exercise) -> str:
    return f"## {exercise.id} {exercise.title}\n\n*{exercise.minutes} minutes · difficulty {exercise.stars}*"


def blank(notebook):
    """The exercise: answers become blanks, hidden tests and outputs are gone."""
    notebook, seen = nbformat.from_dict(learners_copy(notebook)), set()
    for cell in notebook.cells:
        cell.id = notebooks.fresh_id(cell.source, seen)
    nbformat.validate(notebook)
    return notebook


def run(path: Path) -> float:
    """Stamp and execute solutions/NN_topic.ipynb in place. Returns seconds. Raises CellExecutionError."""
    notebook, begun = stamp(nbformat.read(path, as_version=4)), time.monotonic()
    NotebookClient(notebook, timeout=notebooks.SECONDS, kernel_name="python3", record_timing=False,
                   coalesce_streams=True, store_widget_state=False,
                   resources={"metadata": {"path": path.parent}}).execute()
    notebooks.write(stamp(notebook), path)
    return time.monotonic() - begun


def problems(path: Path) -> Iterator[str]:
    """What is stale or missing in a set."""
    source = nbformat.read(path, as_version=4)
    stamped = stamp(copy.deepcopy(source))
    yield from notebooks.problems(path)
    if nbformat.writes(stamped) + "\n" != path.read_text():
        yield "its cells are not as tools/exercises.py leaves them: run `python -m tools.exercises --run`"
    made = EXERCISES / path.name
    if not made.exists() or made.read_text() != nbformat.writes(blank(stamped)) + "\n":
        yield f"exercises/{path.name} is stale: run `make exercises`"
    checked = [match[1] for cell in source.cells if cell.cell_type == "code" and (match := CHECK.search(cell.source))]
    wanted = list(exercises(int(path.name[:2])))
    if checked != wanted:
        yield f"it checks {', '.join(checked)}, and the exercises of the chapter are {', '.join(wanted)}"
    texts = [cell.source for cell in source.cells if cell.cell_type == "markdown"]
    headed = [match[1] for text in texts if (match := HEADING.match(text))]
    if headed != wanted:
        yield f"its headings are {', '.join(headed)}, and the exercises of the chapter are {', '.join(wanted)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.exercises", description=__doc__)
    parser.add_argument("numbers", nargs="*", help="the sets, such as 01 05; all by default")
    parser.add_argument("--check", action="store_true", help="change nothing, and say what is wrong")
    parser.add_argument("--run", action="store_true", help="first execute the solutions in place")
    options, wrong = parser.parse_args(), 0
    for path in sets(options.numbers):
        note = ""
        if options.run:
            try:
                note = f" ran in {run(path):.0f} s"
            except CellExecutionError as error:
                print(f"{path.name}: a cell failed; the file is as it was\n{error}")
                wrong += 1
                continue
        if not options.check:
            EXERCISES.mkdir(exist_ok=True)
            notebooks.write(blank(stamp(nbformat.read(path, as_version=4))), EXERCISES / path.name)
        faults = list(problems(path))
        wrong += bool(faults)
        print(f"{path.name}:{note}", *(faults or ["in order"]), sep="\n  " if faults else " ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
