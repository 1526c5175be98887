"""Who writes nothing gets to the end of a set of exercises: blanks are called blanks, and no cell fails because of them.

The cells of most sets are answers and checks alone, which run in `test_exercises.py`: here run those that have others. The
blanks of a chapter run in `test_notebooks.py`, just before the authors' answers, with which the rest of the chapter goes on.
Whole copies of two chapters and a set run in `test_kaggle.py`, in the place where only the wheel is.
"""

from pathlib import Path

import lab_kernel
import nbformat
import pytest
from exercise_sets import faults_of_a_run
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook, new_output
from test_kaggle import RUN

from zerocourse.course.learner.handout import hand_out
from zerocourse.course.learner.originals import copies_of_all
from zerocourse.course.learner.record import events

SECONDS = 300  # for a notebook, on a busy machine
COPIES = copies_of_all()


def has_other_cells(name: str) -> bool:
    """Has the set cells that are neither answers, checks nor given ones, beside the first cell and the table of progress?"""
    cells = [cell for cell in nbformat.reads(COPIES[name], as_version=4).cells if cell.cell_type == "code"]
    return name.replace("/", "_").removesuffix(".ipynb") not in RUN and any(
        "nbgrader" not in cell.metadata and "given" not in cell.metadata.get("tags", [])
        and not cell.source.startswith(("progress(", "# This cell is the same")) for cell in cells)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("learner") / "learning"
    hand_out(folder)
    return folder


@pytest.mark.parametrize("name", [name for name in COPIES if name.startswith("exercises/") and has_other_cells(name)])
@pytest.mark.timeout(SECONDS + 20)
def test_a_copy_runs_with_its_blanks(name, folder, tmp_path, monkeypatch):
    for variable, value in lab_kernel.add_kernel(tmp_path).items():
        monkeypatch.setenv(variable, value)
    notebook, before = nbformat.read(folder / name, as_version=4), len(events(folder))
    NotebookClient(notebook, timeout=SECONDS, kernel_name=lab_kernel.NAME, allow_errors=True, coalesce_streams=True,
                   resources={"metadata": {"path": (folder / name).parent}}).execute()
    assert list(faults_of_a_run(notebook)) == []
    assert not [event for event in events(folder)[before:] if event["kind"] == "prediction"], "nobody has predicted anything"


def cell(source: str, said: str = "", **more):
    outputs = [new_output("stream", name="stdout", text=said)] if said else []
    return new_code_cell(source, outputs=outputs, execution_count=1, **more)


@pytest.mark.parametrize("broken, fault", [
    (new_code_cell("1 + 1"), "did not run"),
    (cell('check("5.1", f)', "✓ 5.1 passed"), "a blank is not called one"),
    (cell('check("05.w1", f)'), "a blank is not called one"), (cell('predict("05.x", ...)'), "nobody has predicted"),
    (cell('step = yours_or_ours("05.w1", f)', "goes on with your"), "does not go on with ours"),
    (new_code_cell("1 / 0", execution_count=1, outputs=[new_output("error", ename="ZeroDivisionError", evalue="no")]), "ended with Zero")])
def test_a_fault_of_a_run_is_noticed(broken, fault):
    sound = [cell("1 + 1"), cell('check("5.1", f)', "f is still a blank"), cell('yours_or_ours("05.w1", f)', "with **ours**")]
    assert list(faults_of_a_run(new_notebook(cells=sound))) == []
    found = list(faults_of_a_run(new_notebook(cells=[*sound, broken])))
    assert len(found) == 1 and fault in found[0], found
