"""An answer that was checked is in the record, with the mistake in it and its numbers."""

import linecache

import nbformat
from exercise_sets import answering

from zerocourse.cli import main
from zerocourse.course import checks
from zerocourse.course.checks import check
from zerocourse.course.learner.folder import MARK
from zerocourse.course.learner.record import FILE, answer_hash, events, remember

WRONG = "def count_params(layers, width, vocab, block_size, tied):\n    return 12 * layers * width**2\n"
KEEPS_ALL = "def keep(operations, budget):\n    return [each['name'] for each in operations]\n"


def defined(source: str, name: str, file: str = "<a cell>"):
    """As IPython runs a cell: its source can be looked up by the name of its file."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space = {"__name__": "__main__"}
    exec(compile(source, file, "exec"), space)
    return space[name]


def without_time(event: dict) -> dict:
    return {name: value for name, value in event.items() if name != "at"}


def test_a_wrong_answer_is_remembered_with_its_mistake_and_the_hash_of_its_cell(folder):
    verdict = check("1.1", defined(WRONG, "count_params"))
    event, = events(folder)
    assert verdict.code and without_time(event) == {"kind": "verdict", "id": "1.1", "passed": False, "code": verdict.code,
                                                    "hash": answer_hash([WRONG]), "points": 0}


def test_a_number_for_the_board_is_remembered_too(folder):
    check("13.7", defined(KEEPS_ALL, "keep"))
    verdict, best = map(without_time, events(folder))
    assert verdict["code"] == "all kept"
    assert best == {"kind": "best", "id": "13.7", "what": "bytes kept in all cases", "value": 15284, "hash": answer_hash([KEEPS_ALL])}


def test_progress_in_a_notebook_knows_of_earlier_sessions(folder, monkeypatch):
    monkeypatch.setattr(checks, "_last", {})
    remember("verdict", "1.2", passed=True, code=None, hash="abc", points=1)
    remember("verdict", "1.3", passed=False, code="x", hash="abc", points=0)
    check("1.1", defined(WRONG, "count_params"))
    assert str(checks.progress(1)).splitlines()[-1] == "1 of 5 passed"
    assert [verdict and verdict.status for verdict in checks.progress(1).values()] == ["failed", "passed", "failed", None, None]


def test_a_record_that_cannot_be_read_is_no_progress(folder, monkeypatch):
    monkeypatch.setattr(checks, "_last", {})
    (folder / MARK / FILE).mkdir()
    assert all(verdict is None for id, verdict in checks.progress(2).items())


def test_what_says_nothing_of_an_answer_is_not_remembered(folder):
    assert check("1.1", 7).code == check("nowhere", print).code == "usage"
    check("1.1", defined(WRONG, "count_params"), own_allowed=True)  # as tests do
    assert check("1.1", defined("def count_params(*case):\n    raise NotImplementedError", "count_params")).status == "not done"
    assert events(folder) == []


def test_a_right_answer_has_its_points_each_time(folder):
    right = defined("def count_params(layers, width, vocab, block_size, tied):\n"
                    "    block = 12 * width**2 + 13 * width\n"
                    "    return (vocab + block_size + (0 if tied else vocab)) * width + layers * block + 2 * width\n", "count_params")
    assert check("1.1", right).passed and check("1.1", right).passed  # the second is not run again
    assert [(event["passed"], event["code"], event["points"]) for event in events(folder)] == [(True, None, 1)] * 2


def test_the_command_remembers_what_lies_in_the_folder_with_the_same_hash(folder, tmp_path_factory, capsys):
    mine, anothers = folder / "01_memory_math.ipynb", tmp_path_factory.mktemp("another") / "01_memory_math.ipynb"
    for path in (mine, anothers):
        nbformat.write(answering("01_memory_math", "answer_1_1", WRONG), path)
    assert main(["check", "1.1", "--answers", str(mine)]) == main(["check", "1.1", "--answers", str(anothers)]) == 1
    check("1.1", defined(WRONG, "count_params"))
    first, second = map(without_time, events(folder))
    assert first == second and first["passed"] is False
