"""What the tests of exercises share: the answers in a set, a set with blanks filled or left, a process's environment."""

import functools
import os
import re
import types
from collections.abc import Iterator
from pathlib import Path

import nbformat

from tools.exercises import EXERCISES, ROOT, sets
from zerocourse.course.checks import exercises
from zerocourse.course.grading.notebook import read_cells

CHECK, PREDICTION = (re.compile(rf'^{called}\("', re.M) for called in ("check", "predict"))
SETS = {path.stem: path for path in sets()}
IDS = [f"chapter{each.chapter:02}-{id}" for id, each in exercises().items()]  # so that -k chapter05 chooses a chapter


def exercise_of(name: str):
    """The exercise of a test's id."""
    return exercises()[name.partition("-")[2]]


@functools.cache
def answers_in(folder: Path, chapter: int) -> types.SimpleNamespace:
    """All names that the given and answer cells of a chapter's set define."""
    module = types.ModuleType("__main__")  # so that its functions travel to ranks by value
    path = next(folder.glob(f"{chapter:02}_*.ipynb"))
    for number, cell in enumerate(read_cells(path)):
        exec(compile(cell.source, f"<{path.stem} {number}>", "exec"), vars(module))
    return types.SimpleNamespace(**vars(module))


def answers_to(exercise, folder: Path) -> list:
    """What a set answers to an exercise."""
    return [getattr(answers_in(folder, exercise.chapter), name) for name in exercise.answers]


def filled(exercise_set: str, from_solution=lambda grade_id: True):
    """The notebook that a student has who took the set from exercises/ and answered some of it as the solution does."""
    notebook = nbformat.read(EXERCISES / f"{exercise_set}.ipynb", as_version=4)
    solution = nbformat.read(SETS[exercise_set], as_version=4)
    known = {cell.metadata.nbgrader.grade_id: cell.source for cell in solution.cells if "nbgrader" in cell.metadata}
    for cell in notebook.cells:
        about = cell.metadata.get("nbgrader")
        if about and about.solution and from_solution(about.grade_id):
            cell.source = known[about.grade_id]
    return notebook


def answering(exercise_set: str, grade_id: str, source: str):
    """A student's set with one answer cell of their own, the rest as the solution."""
    notebook = filled(exercise_set)
    cell = next(cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == grade_id)
    cell.source = source
    return notebook


def faults_of_a_run(notebook) -> Iterator[str]:
    """Of a copy that has run with all its blanks left: every cell has ended, with no error but those that are meant, a blank is
    called one, also in a prediction, and the chapter goes on with ours."""
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        errors = [f"{output.ename}: {output.evalue}" for output in cell.outputs if output.output_type == "error"]
        said, start = " ".join(map(str, cell.outputs)), cell.source[:60]
        if not cell.execution_count:
            yield f"did not run: {start}"
        if errors and "raises-exception" not in cell.metadata.get("tags", []):
            yield f"{start} ended with {errors[0]}"
        if CHECK.search(cell.source) and "still a blank" not in said:
            yield f"a blank is not called one: {start} says {said}"
        if PREDICTION.search(cell.source) and "No prediction yet" not in said:
            yield f"nobody has predicted anything: {start} says {said}"
        if "yours_or_ours(" in cell.source and "ours" not in said:
            yield f"does not go on with ours: {start} says {said}"


def environment(**more) -> dict[str, str]:
    """For a process that is to find the package wherever it runs."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}
