"""Each chapter asks for predictions that are made: labelled, observed, and open in a learner's copy."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from tools.notebooks import chapters, kept_metadata, prediction_problems
from zerocourse.course.learner.guesses import LABEL, called, without_guess

LEAST = 3
ASK = [f"{number:02}" for number in (*range(21), 25, 26)]  # the chapters that ask for as many; it only grows


def code_of(number: str) -> list:
    path, = chapters([number])
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("number", ASK)
def test_a_chapter_asks_for_predictions_and_observes_what_was_predicted(number):
    code = code_of(number)
    predicted = [id for cell in code for id in called(cell.source, "predict")]
    assert len(predicted) >= LEAST, f"{number} has the predictions {predicted}"
    assert list(prediction_problems(code, number)) == []


@pytest.mark.parametrize("number", ASK)
def test_an_executed_chapter_says_whose_guess_it_is(number):
    """And more than half of the guesses are wrong, because a right one teaches nobody."""
    wrong = []
    outputs = [(cell, "".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs)) for cell in code_of(number)]
    for cell, said in outputs:
        if called(cell.source, "predict"):
            assert "What somebody guessed, which is not the answer: " in said
        if called(cell.source, "observe"):
            table = re.search(r"somebody +found +(ratio|right|difference)\n[- ]+\n((?:.+(?:\n|$))+)", said)
            right = {"ratio": "1", "right": "yes", "difference": "0"}[table[1]]
            wrong.append(any(row.split()[-1] != right for row in table[2].splitlines()))
    assert sum(wrong) > len(wrong) / 2


@pytest.mark.parametrize("number", ASK)
def test_a_learner_s_copy_of_a_prediction_is_open(number):
    for cell in code_of(number):
        if called(cell.source, "predict"):
            assert LABEL not in without_guess(cell.source) and "..." in without_guess(cell.source)


def cells(*sources: str) -> list:
    made = [new_code_cell(source) for source in sources]
    for cell in made:
        cell.metadata = kept_metadata(cell)
    return made


@pytest.mark.parametrize("sources, problem", [
    (('predict("05.x", 3, "GB")', 'observe("05.x", 4)'), r"not labelled as one: write somebody_guessed\(3\)"),
    (('predict("05.x", somebody_guessed(3), "GB")',), "05.x is predicted, and never observed"),
    (('observe("05.x", 4)', 'predict("05.x", somebody_guessed(3), "GB")'), "05.x is observed, and not predicted in a cell above"),
    (('predict("04.x", somebody_guessed(3), "GB")', 'observe("04.x", 4)'), "begin it with 05. and use it once"),
    (('predict("05.x", somebody_guessed(3), "GB")',) * 2 + ('observe("05.x", 4)',), "begin it with 05. and use it once")])
def test_what_is_wrong_with_a_prediction_is_said(sources, problem):
    found = set(prediction_problems(cells(*sources), "05"))
    assert len(found) == 1
    with pytest.raises(ValueError, match=problem):
        raise ValueError(*found)


def test_metadata_that_is_older_than_the_guess_is_seen():
    made = cells('predict("05.x", somebody_guessed(3), "GB")', 'observe("05.x", 4)')
    assert list(prediction_problems(made, "05")) == [] and made[0].metadata.zerocourse.guess == "somebody_guessed(3)"
    made[0].source = made[0].source.replace("3", "7")
    assert "another guess than its source, somebody_guessed(7): run the notebook again" in next(prediction_problems(made, "05"))


def test_what_nbgrader_knows_of_a_cell_is_kept():
    cell = new_code_cell("x = 1", metadata={"nbgrader": {"solution": True}, "tags": ["b", "a"], "collapsed": True})
    assert kept_metadata(cell) == {"nbgrader": {"solution": True}, "tags": ["a", "b"]}
