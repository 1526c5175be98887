"""A chapter has one or two sittings of at most an hour by one rule, says so at its beginning, and marks the pause."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools.notebooks import FIRST_CELL, chapters
from tools.sittings import LONGEST, PAUSE, PREDICT, PREDICTION, WORDS, faults, minutes, progress, sittings

CHAPTERS = {path.stem: path for path in chapters()}
NOT_YET: set[str] = set()  # the list only shrinks


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_sitting_is_at_most_an_hour_and_the_chapter_says_how_long(name):
    found = list(faults(nbformat.read(CHAPTERS[name], as_version=4)))
    assert bool(found) == (name in NOT_YET), f"{name}: " + ("\n".join(found) or "its sittings are in order: take it out of NOT_YET")


def chapter(*cells, time: str = "10 minutes"):
    first = new_markdown_cell(f"# A chapter\n\n**Time.** {time}, of which the computer needs one.")
    return new_notebook(cells=[first, new_code_cell(FIRST_CELL), *cells])


def text(count: int, tag: str = "", begins: str = ""):
    return new_markdown_cell(begins + "word " * count, metadata={"tags": [tag]} if tag else {})


def output(**data):
    return new_output("display_data", {kind.replace("_", "/"): value for kind, value in data.items()})


@pytest.mark.parametrize("cell, time", [
    (text(300), 2),
    (text(300, begins=f"{PREDICT} "), 2 + PREDICTION + 1 / WORDS),
    (new_markdown_cell("word " * 150 + "<details><summary>More</summary>\n" + "word " * 900 + "</details>"), 1),
    (new_markdown_cell("```python\n" + "x = 1\n" * 150 + "```"), 0),
    (new_code_cell("x = 1\n\n" * 30), 2),
    (new_code_cell("x = 1\n" * 14 + 'predict("01.x", 12, "GB")'), 1 + 2),
    (new_code_cell("x = 1\n" * 300, metadata={"nbgrader": {"solution": True}}), 6),
    (new_code_cell("", outputs=[output(text_plain="a picture", text_html="<img>"), output(text_plain="a table", text_html="<table>")]), 2),
    (new_code_cell("", outputs=[output(text_plain="word " * 150, text_markdown="word " * 150)]), 1),
    (new_code_cell("", outputs=[output(text_plain="# zerocourse/zero/mini.py: Mini\n" + "x = 1\n" * 29, text_html="<pre>")]), 2),
    (new_code_cell("", outputs=[new_output("stream", name="stdout", text="3\n" * 99), output(text_plain="3")]), 0),
])
def test_the_rule(cell, time):
    assert minutes(cell) == pytest.approx(time)


def test_a_prediction_in_text_and_cell_is_one():
    asked = [text(149, begins=f"{PREDICT} "), new_code_cell("x = 1\n" * 14 + 'predict("01.x", 12, "GB")')]
    alone, *_ = sittings(chapter())
    assert sittings(chapter(*asked)) == [pytest.approx(alone + 1 + 1 + PREDICTION)]
    assert sittings(chapter(*asked, text(150))) == [pytest.approx(alone + 1 + 1 + 1 + PREDICTION)]


@pytest.mark.parametrize("cells, time, fault", [
    ([text(1500)], "15 minutes", None),
    ([text(1500)], "30 minutes", "after **Time.** stand [30] minutes, in digits: by the rule it is [15]"),
    ([text(1500)], "A quarter of an hour", "after **Time.** stand [] minutes"),
    ([text(150 * (LONGEST + 1))], "60 minutes", "sitting 1 takes 61 minutes, and 60 is the most"),
    ([text(150 * 40), text(150 * 50, PAUSE, "A pause. ")], "Two sittings of 45 and 55 minutes", None),
    ([text(150 * 40), text(150 * 50, PAUSE, "A pause. ")], "90 minutes", "stand [90] minutes, in digits: by the rule it is [45, 55]"),
    ([text(150 * 40), text(150 * 50, PAUSE)], "Two sittings of 45 and 55 minutes", "does not tell its reader of a pause"),
    ([text(150, PAUSE, "A pause. "), text(150, PAUSE, "A pause. ")], "Three sittings of 5, 5 and 5 minutes", "it has 3 sittings: two are the most"),
])
def test_a_fault_of_a_sitting_is_found(cells, time, fault):
    found = list(faults(chapter(*cells, time=time)))
    assert found == [] if fault is None else any(fault in each for each in found), found


def test_where_one_could_stop():
    cells = [text(150 * 10, begins="## One\n\n"), text(150, PAUSE, "A pause. "), text(150 * 10, begins="## Two\n\n")]
    assert [(round(past), heading) for past, heading in progress(chapter(*cells))] == \
        [(0, "A chapter"), (0, "One"), (10, f"({PAUSE})"), (11, "Two")]
