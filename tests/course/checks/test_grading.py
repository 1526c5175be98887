"""`zerocourse check` and `list`, a class's notebooks, and nbgrader: the same verdicts everywhere, and no harm done."""

import csv
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import torch
from exercise_sets import SETS, answering, environment, filled

from tools.exercises import EXERCISES, ROOT
from zerocourse.cli import main
from zerocourse.course.checks import exercises
from zerocourse.course.checks.plain import Raised, can_travel, decode, encode
from zerocourse.course.checks.trace import call
from zerocourse.course.checks.verdict import Verdict
from zerocourse.course.grading import classroom
from zerocourse.course.grading.classroom import notebooks_in
from zerocourse.course.grading.confine import landlock_version
from zerocourse.course.grading.examiner import grade
from zerocourse.course.grading.notebook import ids_of, read_cells
from zerocourse.course.grading.student import Limits
from zerocourse.errors import BadInput
from zerocourse.launch.processes.parent import current_parent
from zerocourse.launch.ranks import Ranks

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
    assert "○ 1.1 not done: `count_params` is still a blank" in out and out.endswith("0 of 2 passed, in exercises\n")


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


def test_helpers_of_one_name_in_two_answers_are_two_helpers(notebook):
    """As in the notebook, where each check runs after its own cell."""
    nb = filled(SET)
    for cell in nb.cells:
        for name, arguments in {"count_params": "layers, width, vocab, block_size, tied", "state_bytes": "params, stage, ranks"}.items():
            if cell.cell_type == "code" and cell.source.startswith(f"def {name}("):
                helper = cell.source.replace(f"def {name}(", "def solve(")
                cell.source = f"{helper}\n\ndef {name}({arguments}):\n    return solve({arguments})"
    assert sum("def solve(" in cell.source for cell in nb.cells) == 2
    assert set(statuses(grade(notebook(nb), ["1.1", "1.2"])).values()) == {"passed"}


def test_a_cell_that_never_ends_is_stopped(notebook):
    verdicts = grade(notebook(answering(SET, "answer_1_1", HANGS_IN_CELL)), ["1.1", "1.2"], Limits(cell_seconds=3))
    assert statuses(verdicts) == {"1.1": "failed", "1.2": "passed"}
    assert verdicts["1.1"].message == "its cell did not end within 3 s"


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
    registered = exercises()  # the list is read from the source, these were run
    assert list(found) == list(registered)
    assert found == {id: {name: getattr(registered[id], name) for name in each} for id, each in found.items()}
    assert main(["list", "1"]) == 0
    assert "1.5  A step, moment by moment   60 min  ●●●" in capsys.readouterr().out
    assert main(["list", "77"]) == 2 and "chapter 77 has no exercises" in capsys.readouterr().err


# mischief

WRONG_LATER = """
def state_bytes(params, stage, ranks):
    whole, shared = [(16, 0), (4, 12), (2, 14), (0, 16)][stage]
    return whole * params + shared * (params // ranks)
"""
PATCHES = {  # what a cell, or an answer when it is called, may do to the modules that make the verdict
    "Lab": "import zerocourse.course.checks.lab as lab\nlab.Lab.compare = lab.Lab.run = lambda *a, **k: None",
    "harness": "import zerocourse.course.checks.harness as harness\nharness.judge = lambda lab: 'right'\n"
               "harness.first_difference = lambda *a: None",
    "no records": "import zerocourse.course.checks.trace as trace\ntrace.record = lambda *a: []",
    "one record": "import zerocourse.course.checks.trace as trace\ntrace.record = lambda *a: [{}] * len(a[-2])",
    "no report": "import zerocourse.course.checks.inside as inside\ninside.perform = lambda *a: {'kind': 'value'}",
    "compare": "import zerocourse.course.checks.compare as c, zerocourse.course.checks.trace as trace\n"
               "c.difference = lambda *a, **k: None\nc.same = trace.same = lambda *a, **k: True",
    "check": "import zerocourse.course.checks as checks\nfrom zerocourse.course.checks.verdict import Verdict\n"
             "checks.check = checks.judge = lambda id, *a: Verdict('1.2', 'passed', 'right')",
    "examiner": "import zerocourse.course.grading.student as student\n"
                "student.pack_answers = lambda *a: {'packed': 'garbage!'}",
    "torch": "import torch\ntorch.equal = torch.allclose = lambda *a, **k: True\ntorch.manual_seed = print",
    "pickle": "import pickle, cloudpickle\npickle.loads = cloudpickle.dumps = lambda *a: 1 / 0",
    "no JSON": "import json\njson.dump = lambda value, file: file.write('[' * 100_000)",
}


def indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.splitlines())


@pytest.mark.parametrize("where", ["in its cell", "when it is called"])
@pytest.mark.parametrize("patch", PATCHES)
def test_patching_the_checker_makes_no_wrong_answer_right(notebook, patch, where):
    """1.2 is wrong in its second trial and patches in the first; 1.1 is wrong, 1.4 is right."""
    code = PATCHES[patch]
    source = f"{code}\n{WRONG_LATER}" if where == "in its cell" else \
        WRONG_LATER.replace("ranks):\n", "ranks):\n" + indented(code))
    nb = answering(SET, "answer_1_2", source)
    next(cell for cell in nb.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == "answer_1_1").source = WRONG
    verdicts = grade(notebook(nb), ["1.2", "1.1", "1.4"])
    if where == "when it is called" or patch not in ("examiner", "pickle", "no JSON"):
        assert statuses(verdicts) == {"1.2": "failed", "1.1": "failed", "1.4": "passed"}, verdicts
    else:  # nothing that the notebook's process sends can be read
        assert set(statuses(verdicts).values()) == {"failed"}, verdicts


def test_an_answer_does_not_decide_over_others_on_its_ranks(notebook):
    """On two ranks: 5.2 is right, and leaves the ranks' torch and checker in disorder; 5.3 is a blank."""
    nb = filled("05_zero1", lambda grade_id: grade_id != "answer_5_3")
    cell = next(cell for cell in nb.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == "answer_5_2")
    cell.source += """
import zerocourse.course.checks.inside as inside
solved = clip_slices
def clip_slices(slices, max_norm, comm):
    inside.perform = lambda *a: 1 / 0
    return solved(slices, max_norm, comm)
"""
    verdicts = grade(notebook(nb), ["5.2", "5.3", "5.1"])
    assert statuses(verdicts) == {"5.2": "passed", "5.3": "not done", "5.1": "passed"}, verdicts


RIGHT = next(cell for cell in read_cells(SETS[SET]) if cell.id == "1.1").source
WRAPPED = f"{RIGHT}\nsolved = count_params\ndef count_params(*case):\n"


@pytest.mark.parametrize("status, source, words", [
    ("passed", f"import os\nos.fork()\n{RIGHT}", "right"),
    ("passed", f"import os\nif os.fork() == 0:\n    while True: pass\n{RIGHT}", "right"),
    ("passed", f"import os\n{WRAPPED}    os.fork()\n    return solved(*case)", "right"),
    ("passed", f"import os\n{WRAPPED}    if os.fork() == 0:\n        while True: pass\n    return solved(*case)",
     "right"),
    ("passed", "import subprocess\nsubprocess.Popen(['sleep', '90'], start_new_session=True)\n" + RIGHT, "right"),
    ("passed", f"import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin).start()\n{RIGHT}",
     "right"),
    ("passed", (f"import threading, time\n{WRAPPED}    threading.Thread(target=time.sleep, args=[90]).start()\n"
                "    return solved(*case)"), "right"),
    ("failed", f"import sys\n{WRAPPED}    sys.exit(0)", "it ended the program (exit or sys.exit)"),
    ("failed", f"import os\n{WRAPPED}    os._exit(0)", "the process in which it ran ended with exit code 0"),
    ("failed", f"import os\n{WRAPPED}    os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ("failed", f"{WRAPPED}    return [bytearray(10**8) for _ in range(1000)]", "it ran out of memory"),
    ("failed", f"{WRAPPED}    return object()", "cannot be sent from one process to another"),
    ("failed", f"{WRAPPED}    return float('nan')", "nan"),
    ("failed", "count_params = 7", "it needs a function, and was given int"),
])
def test_what_an_answer_starts_or_ends(notebook, status, source, words, survivors):
    path = notebook(answering(SET, "answer_1_1", source))
    grade(SETS[SET], ["1.1", "1.2"])  # the processes that stay
    ours = f"ZEROCOURSE_RUN={current_parent().run_id}"
    before = len(survivors(ours, 0))
    verdicts = grade(path, ["1.1", "1.2"])
    assert statuses(verdicts) == {"1.1": status, "1.2": "passed"} and words in verdicts["1.1"].message, verdicts
    deadline = time.monotonic() + 5
    while len(left := survivors(ours, 0)) > before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(left) <= before, left


def test_an_endless_answer_ends_with_the_notebooks_time(notebook):
    path = notebook(answering(SET, "answer_1_1", f"{WRAPPED}    while True: pass"))
    grade(SETS[SET], ["1.1"])  # everything is started
    started = time.monotonic()
    verdicts = grade(path, ["1.1", "1.2"], Limits(seconds=5))
    assert time.monotonic() - started < 16  # the check's own limit for one trip is 20 s
    assert statuses(verdicts) == {"1.1": "failed", "1.2": "failed"} and "did not end within" in verdicts["1.1"].message
    assert "ran out of time" in verdicts["1.2"].message


@pytest.mark.skipif(landlock_version() < 6, reason="needs Linux with Landlock")
@pytest.mark.parametrize("mischief", [
    "open(zerocourse.course.checks.__file__, 'a').close()",
    "open(zerocourse.__path__[0] + '/errors2.py', 'w').close()",
    "os.kill(int(os.environ['EXAMINER']), 0)",
    "open(zerocourse.__path__[0] + '/../solutions/01_memory_math.ipynb').close()",
])
@pytest.mark.parametrize("where", ["in its cell", "when it is called"])
def test_nothing_is_written_to_the_checkers_files_and_no_solution_is_read(notebook, monkeypatch, mischief, where):
    monkeypatch.setenv("EXAMINER", str(os.getpid()))
    source = "import os, zerocourse.course.checks\n"
    source += f"{mischief}\n{RIGHT}" if where == "in its cell" else f"{WRAPPED}    {mischief}\n    return solved(*case)"
    verdicts = grade(notebook(answering(SET, "answer_1_1", source)), ["1.1", "1.2"])
    assert statuses(verdicts) == {"1.1": "failed", "1.2": "passed"} and "PermissionError" in verdicts["1.1"].message


RUNS_WHEN_LOADED = f"""
class Trap:
    def __reduce__(self):
        return exec, ("print('loaded in a rank')",)
{RIGHT}
solved = count_params
def count_params(*case, trap=Trap()):
    return solved(*case)
"""
NO_PICKLES = """
import os
import sys
from zerocourse.cli import main
from zerocourse.course.checks import exercises
exercises()
def refuse(event, args):
    if event == "pickle.find_class":
        print("a pickle was loaded:", args, file=sys.stderr)
        os._exit(5)
sys.addaudithook(refuse)
sys.exit(main(["check", "1.1", "1.2", "--answers", sys.argv[1], "--json"]))
"""


SENDS_A_PICKLE = f"""
import zerocourse.launch.processes.payload as payload
def send(value, path):
    open(path, "wb").write(b"cos\\nsystem\\n(S'true'\\ntR.")
{WRAPPED}    payload.save = payload.save_json = send
    return solved(*case)
"""


@pytest.mark.parametrize("source, status", [(RUNS_WHEN_LOADED, "passed"), (SENDS_A_PICKLE, "failed")])
def test_only_ranks_load_a_learners_pickle(notebook, source, status):
    """The audit hook sees every pickle of this process that names a class or a function."""
    path = notebook(answering(SET, "answer_1_1", source))
    ended = subprocess.run([sys.executable, "-c", NO_PICKLES, str(path)], capture_output=True, text=True, timeout=100,
                           env=environment())
    assert ended.returncode == (status != "passed"), ended.stderr
    assert [each["status"] for each in json.loads(ended.stdout).values()] == [status, "passed"]


def test_ranks_do_load_a_learners_pickle(notebook):
    verdict = grade(notebook(answering(SET, "answer_1_1", RUNS_WHEN_LOADED)), ["1.1"])["1.1"]
    assert verdict.passed and "loaded in a rank" in verdict.printed


def fork_and_return():
    child = os.fork()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else "the child's"


def test_a_child_of_a_rank_ends_without_an_answer():
    with Ranks(1, init=False, quiet=True) as ranks:
        assert ranks.run(fork_and_return) == [0]


@pytest.mark.parametrize("value", [
    None, True, 3, -2**70, 0.1, math.inf, "ä", b"x", 1j, range(3), [1, [2.5, None]], (1, ("a",)), {"a": {1: (2, 3)}},
    {1, 2}, frozenset("a"), {(1, 2): [torch.float16]}, torch.device("cpu"), Raised("ValueError", "no", "Misfit"),
])
def test_values_travel_as_data(value):
    found = decode(json.loads(json.dumps(encode(value))))
    assert found == value and type(found) is type(value)


def test_an_error_of_a_class_of_its_own_is_one_of_that_from_which_it_is_derived():
    class Misfit(ValueError):
        pass

    def answer(value):
        raise Misfit

    answer.misfit = ""
    found = call(answer, 3)["returned"]
    assert found == Raised("ValueError", "", "ValueError") and found.name == "Misfit"


@pytest.mark.parametrize("tensor", [
    torch.arange(6.0).reshape(2, 3).t(), torch.tensor(2.5, dtype=torch.bfloat16), torch.zeros(3, 0), torch.ones(2) > 0,
    torch.tensor([math.nan, -0.0, math.inf]), torch.tensor([1 + 2j]).conj(), torch.nn.Parameter(torch.ones(1)),
    torch.tensor(7), torch.empty(3, 2, device="meta"), torch.ones(1, 2)[:, 1], torch.ones(1, 2).sort(dim=1).values[:, -1],
])
def test_tensors_travel_as_data(tensor):
    found = decode(json.loads(json.dumps(encode({"it": tensor}))))["it"]
    assert (found.dtype, found.shape, found.device) == (tensor.dtype, tensor.shape, tensor.device)
    assert found.is_meta or torch.equal(found.nan_to_num(), tensor.detach().nan_to_num())


@pytest.mark.parametrize("value", [object(), print, [lambda: 0], {"a": torch.nn.Linear(1, 1)}, [1 << 20_000]])
def test_other_values_do_not_travel(value):
    assert not can_travel(value)


@pytest.mark.parametrize("data", [
    {}, {"tensor": ["float32", [2**60], ""]}, {"tensor": ["load", [1], "AAAA"]}, {"pickle": "gAR9lC4="}, {"dict": 3},
    {"tensor": ["float32", [1]]}, {"raised": []}, {"dict": [[[1], 2]]}, {"a": 1, "b": 2}, {"device": "nowhere"},
])
def test_what_is_no_encoding_is_refused(data):
    with pytest.raises(ValueError, match="no value that a rank may send"):
        decode([data])


# a class

def test_a_class_may_be_named_from_below_and_in_a_hidden_folder(tmp_path, monkeypatch):
    (tmp_path / ".kept" / "class" / ".ipynb_checkpoints").mkdir(parents=True)
    for name in ("ada.ipynb", ".ipynb_checkpoints/ada.ipynb"):
        (tmp_path / ".kept" / "class" / name).write_text("")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert [path.name for path in notebooks_in(Path("../.kept/class"))] == ["ada.ipynb"]


def test_a_class_is_graded_into_one_table_and_then_only_what_has_changed(capsys, tmp_path, monkeypatch):
    students = {"ada": filled(SET), "bob": nbformat.read(EXERCISES / f"{SET}.ipynb", as_version=4),
                "cyd": filled(SET, lambda grade_id: grade_id != "answer_1_3"),
                "dan": answering(SET, "answer_1_2", ENDS_ITS_PROCESS)}
    for name, nb in students.items():
        (tmp_path / "class" / name).mkdir(parents=True)
        nbformat.write(nb, tmp_path / "class" / name / f"{SET}.ipynb")
    (tmp_path / "class" / "eve.ipynb").write_text("not a notebook")
    table = tmp_path / "grades.csv"
    words = ["check", "--folder", str(tmp_path / "class"), "--csv", str(table), "--report", str(tmp_path / "report"), "--jobs", "2", "--json"]
    assert main(words) == 1
    found = json.loads(capsys.readouterr().out)
    rows = {row["notebook"].partition("/")[0]: row for row in csv.DictReader(table.open(encoding="utf-8"))}
    assert {name: row["passed"] for name, row in rows.items()} == {"ada": "5", "bob": "0", "cyd": "4", "dan": "3",
                                                                   "eve.ipynb": "0"}
    assert rows["cyd"]["1.3"] == "not done" and "ended its process" in rows["dan"]["1.2 message"]
    assert "is not a notebook" in rows["eve.ipynb"]["problem"] and "problem" in found["eve.ipynb"]
    assert found[f"ada/{SET}.ipynb"]["1.1"] == {"status": "passed", "message": found[f"ada/{SET}.ipynb"]["1.1"]["message"], "code": None,
                                                "points": 1}
    assert rows["dan"]["1.2 code"] == "raised" and rows["ada"]["1.2 code"] == "" and (rows["cyd"]["points"], rows["dan"]["points"]) == ("7", "6")
    assert (tmp_path / "report" / "index.html").exists() and (tmp_path / "report" / "students" / "dan.html").exists()
    nbformat.write(answering(SET, "answer_1_1", WRONG), tmp_path / "class" / "ada" / f"{SET}.ipynb")
    graded = []
    monkeypatch.setattr(classroom, "new_ranks", lambda *how, **more: Counting(graded))
    first = table.read_text()
    assert main(words) == 1
    again = json.loads(capsys.readouterr().out)
    assert graded == [("ada", ["1.1", "1.2", "1.3", "1.4", "1.5"])]
    assert again[f"ada/{SET}.ipynb"]["1.1"]["code"] == "made up" and again[f"bob/{SET}.ipynb"] == found[f"bob/{SET}.ipynb"]
    assert [line for line in table.read_text().splitlines() if not line.startswith("ada")] == \
        [line for line in first.splitlines() if not line.startswith("ada")]


class Counting:
    """An examiner that notes what it is asked to grade, and has one verdict for all of it."""

    def __init__(self, graded: list):
        self.graded = graded

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def run(self, fn, path, ids, limits, timeout):
        self.graded.append((path.parent.name, ids))
        return [[vars(Verdict(id, "failed", "no", code="made up")) for id in ids]]


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
    assert "`count_params` is still a blank" in feedback.replace("<code>", "`").replace("</code>", "`")
