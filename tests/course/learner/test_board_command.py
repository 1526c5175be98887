"""`zerocourse board`: a reader's best beside ours and the bound, and a class's."""

import json

import nbformat
import pytest
from exercise_sets import answering, filled

from zerocourse.cli import main
from zerocourse.course.checks import exercises
from zerocourse.course.learner.folder import MARK
from zerocourse.course.learner.record import remember

SET = "13_activations"
KEEPS_ALL = "def keep(operations, budget):\n    return [each['name'] for each in operations]"


def board(capsys, *words: str) -> dict:
    assert main(["board", *words, "--json"]) == 0
    return {(row["exercise"], row["what"]): row for row in json.loads(capsys.readouterr().out)["board"]}


def test_the_readers_best_is_the_smallest_of_all(folder, capsys):
    for value in (800_000, 767_300, 790_000):
        remember("best", "7.8", what="bytes held at the peak", value=value, hash="abc")
    remember("best", "17.5", what="units of time in all cases", value="few", hash="abc")
    remember("best", "99.1", what="something", value=1, hash="abc")
    found = board(capsys)
    mine = found["7.8", "bytes held at the peak"]
    assert (mine["best"], mine["ours"], mine["bound"]) == (767_300, 767_220, 431_616)
    assert found["17.5", "units of time in all cases"]["best"] is None
    assert [id for id, _ in found] == [id for id, asked in exercises().items() for _ in asked.board]
    assert main(["board"]) == 0
    text = capsys.readouterr().out
    assert "7.8       bytes held at the peak            767,300  767,220  431,616" in text
    assert "17.5      units of time in all cases              –       94       94" in text and max(map(len, text.splitlines())) <= 80


def test_a_class_best_comes_from_its_notebooks(folder, capsys):
    notebooks = {"ada": filled(SET), "bob": answering(SET, "answer_13_7", KEEPS_ALL), "cyd": filled("01_memory_math")}
    for name, notebook in notebooks.items():
        (folder / "class" / name).mkdir(parents=True)
        nbformat.write(notebook, folder / "class" / name / "set.ipynb")
    found = board(capsys, "--folder", "class", "--csv", "grades.csv")
    best = found["13.7", "bytes kept in all cases"]
    assert (best["best"], best["who"]) == (5388, ["ada"])
    (folder / "class" / "ada" / "set.ipynb").unlink()
    found = board(capsys, "--folder", "class", "--csv", "grades.csv")  # bob's verdict is kept
    assert (found["13.7", "bytes kept in all cases"]["best"], found["13.7", "bytes kept in all cases"]["who"]) == (15284, ["bob"])
    assert not (folder / "class" / "grades.csv").exists() and (folder / "grades.json").exists()


@pytest.mark.parametrize("words, sentence", [
    (["nowhere"], "nowhere is no learner's folder"), (["--folder", "nowhere"], "nowhere is not a folder"),
    (["--folder", "."], "there is no notebook"),
    (["--csv", "x.csv"], "without --folder"), (["--jobs", "0"], "--jobs"), (["here", "--folder", "."], "not allowed with"),
])
def test_bad_input_is_one_sentence_and_leaves_nothing(folder, capsys, words, sentence):
    assert main(["board", *words]) == 2
    assert sentence in capsys.readouterr().err and [path.name for path in folder.iterdir()] == [MARK]
