"""What the tests of exercises share: the answers in a set, a set with blanks filled, a process's environment."""

import functools
import os
import types
from pathlib import Path

import nbformat

from tools.exercises import EXERCISES, ROOT, sets
from zerocourse.course.checks import exercises
from zerocourse.course.grading.notebook import read_cells

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


def environment(**more) -> dict[str, str]:
    """For a process that is to find the package wherever it runs."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}
