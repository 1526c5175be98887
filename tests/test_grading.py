"""`zerocourse check` and `list`, a class's notebooks, and nbgrader: the same verdicts everywhere, and no harm done."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from exercise_sets import SETS, answering, environment, filled

from tools.exercises import EXERCISES, ROOT
from zerocourse.course.checks import exercises
from zerocourse.cli import main
from zerocourse.course.grading.examiner import grade
from zerocourse.course.grading.notebook import ids_of, read_cells
from zerocourse.course.grading.student import Limits
from zerocourse.errors import BadInput

SET = "01_memory_math"
HANGS_IN_CELL = "def count_params(*case):\n    return 1\nwhile True:\n    pass\n"
ENDS_ITS_PROCESS = "import os\nos._exit(7)"
WRONG = "def count_params(layers, width, vocab, block_size, tied):\n    return 12 * layers * width**2"


@pytest.fixture
def notebook(tmp_path):
    """`notebook(nb)` writes it and returns its path."""
    def write(nb, name="mine"):
        path = tmp_path / f"{name}.ipynb"
        nbformat.write(nb, path)
        return path
    return write


def statuses(verdicts) -> dict[str, str]:
    return {id: verdict.status for id, verdict in verdicts.items()}


# one notebook

def test_cells_are_found_with_their_exercises():
    cells = read_cells(SETS[SET])
    assert ids_of(cells) == [f"1.{n}" for n in range(1, 6)] and cells[0].id is None and "check(" not in cells[1].source


def test_the_command_grades_a_solution(capsys):
    assert main(["check", "--answers", str(SETS[SET]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {f"1.{n}" for n in range(1, 6)}
    assert all(set(each) == {"status", "message"} and each["status"] == "passed" for each in found.values())


def test_the_command_grades_the_folder_it_is_in(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(["check", "1.2", "1.1"]) == 1
    out = capsys.readouterr().out
    assert "○ 1.1 not done: not done yet: `count_params` is still a blank" in out and out.endswith("0 of 2 passed\n")


@pytest.mark.parametrize("args, words", [
    (["9.9"], "there is no exercise '9.9'"),
    (["--answers", "nowhere.ipynb"], "nowhere.ipynb cannot be read"),
    (["--answers", str(ROOT / "README.md")], "is not a notebook"),
    (["--answers", str(ROOT / "notebooks" / "00_start_here.ipynb")], "has no answers"),
    (["--folder", str(ROOT / "nowhere")], "is not a folder"),
    (["--folder", str(ROOT / "zerocourse")], "there is no notebook (.ipynb) below"),
    (["--csv", "x.csv"], "--csv needs --folder"),
    (["--seconds", "0"], "must be positive"),
    (["--memory", "4G"], "'4G' is not a size"),
    (["1.1"], "there are no exercise notebooks here"),
])
def test_bad_input_is_one_sentence(capsys, monkeypatch, tmp_path, args, words):
    monkeypatch.chdir(tmp_path)
    assert main(["check", *args]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_only_answer_cells_run(notebook):
    nb = filled(SET)
    nb.cells.insert(3, nbformat.v4.new_code_cell("import os; os._exit(9)"))
    assert set(statuses(grade(notebook(nb))).values()) == {"passed"}


@pytest.mark.parametrize("source, words", [
    ("def count_params(:\n", "its cell does not run: SyntaxError"),
    ("1 / 0", "its cell does not run: ZeroDivisionError: division by zero (line 1: `1 / 0`)"),
    ("count = 1", "there is no `count_params` in the answer's cell"),
    (ENDS_ITS_PROCESS, "its cell ended its process (exit code 7)"),
    (WRONG, "is right"),
    ("import sys\nsys.exit()", "its cell does not run: SystemExit"),
    ("kept = [bytearray(10**8) for _ in range(1000)]", "MemoryError"),
])
def test_one_bad_cell_leaves_the_others_alone(notebook, source, words):
    verdicts = grade(notebook(answering(SET, "answer_1_1", source)))
    assert statuses(verdicts) == {"1.1": "failed", **{f"1.{n}": "passed" for n in range(2, 6)}}
    assert words in verdicts["1.1"].message


def test_a_cell_that_never_ends_is_stopped(notebook, survivors):
    verdicts = grade(notebook(answering(SET, "answer_1_1", HANGS_IN_CELL)), ["1.1", "1.2"], Limits(cell_seconds=3))
    assert statuses(verdicts) == {"1.1": "failed", "1.2": "passed"}
    assert verdicts["1.1"].message == "its cell did not end within 3 s"
    assert not survivors("/answers", 5)


def test_what_an_answer_started_ends_with_it(notebook, survivors):
    starts = "import subprocess\nsubprocess.Popen(['sleep', '90'], start_new_session=True)\ncount_params = print"
    grade(notebook(answering(SET, "answer_1_1", starts)), ["1.1"])
    assert not survivors("/answers", 0.5)


def test_magics_in_an_answer_are_left_out(notebook):
    solution = next(cell for cell in read_cells(SETS[SET]) if cell.id == "1.1").source
    verdicts = grade(notebook(answering(SET, "answer_1_1", f"%matplotlib inline\n!ls\n{solution}")), ["1.1"])
    assert verdicts["1.1"].passed, verdicts


def test_a_notebook_has_so_much_time(notebook):
    verdicts = grade(notebook(answering(SET, "answer_1_1", HANGS_IN_CELL)), limits=Limits(seconds=3))
    assert set(statuses(verdicts).values()) == {"failed"}
    assert "ran out of time before this answer was checked" in verdicts["1.5"].message


def test_an_answer_that_is_not_there_is_bad_input(notebook):
    with pytest.raises(BadInput, match=r"has no answer to 5\.1: it has 1\.1"):
        grade(SETS[SET], ["5.1"])


def test_the_list(capsys):
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["1.1"] == {"title": "Count GPT-2", "minutes": 10, "difficulty": 1, "chapter": 1}
    assert list(found) == list(exercises())
    assert main(["list", "1"]) == 0
    assert "1.5  A step, moment by moment   60 minutes  ●●●" in capsys.readouterr().out
    assert main(["list", "77"]) == 2 and "chapter 77 has no exercises" in capsys.readouterr().err


# a class

def test_a_class_is_graded_into_one_table(capsys, tmp_path, survivors):
    students = {"ada": filled(SET), "bob": nbformat.read(EXERCISES / f"{SET}.ipynb", as_version=4),
                "cyd": filled(SET, lambda grade_id: grade_id != "answer_1_3"),
                "dan": answering(SET, "answer_1_2", ENDS_ITS_PROCESS)}
    for name, nb in students.items():
        (tmp_path / "class" / name).mkdir(parents=True)
        nbformat.write(nb, tmp_path / "class" / name / f"{SET}.ipynb")
    (tmp_path / "class" / "eve.ipynb").write_text("not a notebook")
    table = tmp_path / "grades.csv"
    assert main(["check", "--folder", str(tmp_path / "class"), "--csv", str(table), "--jobs", "2", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    rows = {row["notebook"].partition("/")[0]: row for row in csv.DictReader(table.open(encoding="utf-8"))}
    assert {name: row["passed"] for name, row in rows.items()} == {"ada": "5", "bob": "0", "cyd": "4", "dan": "3",
                                                                   "eve.ipynb": "0"}
    assert rows["cyd"]["1.3"] == "not done" and "ended its process" in rows["dan"]["1.2 message"]
    assert "is not a notebook" in rows["eve.ipynb"]["problem"] and "problem" in found["eve.ipynb"]
    assert found[f"ada/{SET}.ipynb"]["1.1"]["status"] == "passed"
    assert not survivors("/answers", 5)


# nbgrader

@pytest.mark.timeout(400)
def test_nbgrader_hands_out_collects_and_grades(tmp_path):
    """Full marks for the solution, none for the blank, of notebooks from exercises/ and from nbgrader itself."""
    from nbgrader.api import Gradebook

    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # nbgrader starts `alembic` by its name
    env = environment(PATH=path, HOME=str(tmp_path), JUPYTER_CONFIG_DIR=str(tmp_path / "config"),
                      IPYTHONDIR=str(tmp_path / "ipython"))

    def nbgrader(*words):
        ended = subprocess.run([sys.executable, "-m", "nbgrader", *words, "--course-dir", str(tmp_path)], cwd=tmp_path,
                               env=env, capture_output=True, text=True, timeout=380)
        assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]

    name = f"{SET}.ipynb"
    for folder in ("source/set", "submitted/ada/set", "submitted/bob/set"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "source/set" / name).write_text(SETS[SET].read_text())
    nbgrader("generate_assignment", "set")
    handed_out = nbformat.read(tmp_path / "release/set" / name, as_version=4)
    for cell in handed_out.cells:
        assert "BEGIN" not in cell.source
    nbformat.write(filled(SET), tmp_path / "submitted/ada/set" / name)
    nbformat.write(handed_out, tmp_path / "submitted/bob/set" / name)
    nbgrader("autograde", "set", "--ExecutePreprocessor.timeout=120")
    nbgrader("generate_feedback", "set")
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as book:
        scores = {name: book.find_submission("set", name) for name in ("ada", "bob")}
        assert scores["ada"].max_score == sum(each.difficulty for each in exercises(1).values())
        assert (scores["ada"].score, scores["bob"].score) == (scores["ada"].max_score, 0)
    feedback = (tmp_path / "feedback/bob/set" / name.replace(".ipynb", ".html")).read_text()
    assert "not done yet: `count_params` is still a blank" in feedback.replace("<code>", "`").replace("</code>", "`")
