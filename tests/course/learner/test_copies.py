"""A learner's copy gives nothing away: no output, no answer, no guess, and its folds are closed."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from zerocourse.course.chapters import NUMBERS, notebook_name, with_exercises
from zerocourse.course.learner import copies, originals
from zerocourse.course.learner.copies import SOLUTION, learners_copy, written
from zerocourse.errors import BadInput

ROOT = Path(__file__).parents[3]
ALL = originals.copies_of_all()
EVERY_COPY = pytest.mark.parametrize("name", ALL)
RUN = 3  # lines: two are often what everybody writes, such as a step and its zero_grad
SHORTEST = 12  # letters of a line that says something: `return total` does, `else:` does not


def cells(name: str) -> list[dict]:
    return json.loads(ALL[name])["cells"]


def answers_in(path: Path) -> list[list[str]]:
    """The lines of each answer of an author's notebook, without those that say nothing."""
    sources = ["".join(cell["source"]) for cell in copies.read(path)["cells"] if cell["cell_type"] == "code"]
    lines = ([line.strip() for line in match[0].splitlines()[1:-1]] for source in sources for match in SOLUTION.finditer(source))
    return [[line for line in each if len(line) >= SHORTEST and not line.startswith("#")] for each in lines]


def given_away(answer: list[str], source: str, run: int = RUN) -> list[str]:
    """So many lines of an answer as follow each other in a source, too; of a shorter answer, the whole."""
    lines = [line.strip() for line in source.splitlines()]
    runs = [answer[at : at + run] for at in range(max(1, len(answer) - run + 1))] if answer else []
    return ["\n".join(run) for run in runs if any(lines[at : at + len(run)] == run for at in range(len(lines)))]


def test_there_is_a_copy_of_every_chapter_and_set():
    assert list(ALL) == [f"notebooks/{notebook_name(number)}" for number in sorted(NUMBERS.values())] + [
        f"exercises/{notebook_name(number)}" for number in with_exercises()]


@EVERY_COPY
def test_a_copy_gives_nothing_away(name):
    for cell in cells(name):
        source = "".join(cell["source"])
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert "### BEGIN SOLUTION" not in source and "### END SOLUTION" not in source and "HIDDEN TESTS" not in source
        assert "guess" not in cell["metadata"].get("zerocourse", {}) and "somebody_guessed" not in source
        assert not re.search(r"<details[^>]*\sopen\b", source, re.I)


@EVERY_COPY
def test_no_answer_stands_in_its_copy(name):
    """Not even some lines of it. Of a set, whose answers are in solutions/, no whole one: what a learner is to mend has most of it."""
    for answer in answers_in(ROOT / name.replace("exercises/", "solutions/")):
        for cell in cells(name):
            assert not given_away(answer, "".join(cell["source"]), RUN if name.startswith("notebooks/") else len(answer))


@EVERY_COPY
def test_a_copy_is_a_valid_notebook_with_the_same_cells(name):
    notebook = nbformat.reads(ALL[name], as_version=4)
    nbformat.validate(notebook)
    author = nbformat.read(ROOT / name, as_version=4)
    assert [cell.id for cell in notebook.cells] == [cell.id for cell in author.cells]
    assert nbformat.writes(notebook) + "\n" == ALL[name]  # what Jupyter saves is what was written


# one copy

def author() -> nbformat.NotebookNode:
    return new_notebook(cells=[
        new_markdown_cell("<details open><summary>A hint</summary>\n\nopen the door\n\n</details>"),
        new_code_cell('predict("05.held", somebody_guessed(12), "GB")\n12', metadata={"zerocourse": {"guess": "somebody_guessed(12)"}},
                      execution_count=1, outputs=[new_output("stream", text="Noted")]),
        new_code_cell('def half(n):\n    """Half of n."""\n    ### BEGIN SOLUTION\n    whole = n\n    return whole / 2\n    ### END SOLUTION\n'
                      '\nhalf(2)', metadata={"tags": ["nbval-check-output"], "nbgrader": {"solution": True}}),
        new_code_cell('ours("05.w1")', metadata={"tags": ["ours"]}),
        new_markdown_cell("It is *two*.", metadata={"tags": ["explains"]}),
        new_code_cell('show.says("It is {}.", half(2))', metadata={"tags": ["explains"]})])


def test_what_a_copy_has_in_place_of_what_was_given_away():
    original = author()
    before = nbformat.writes(original)
    fold, predicts, blank, ours, explains, says = learners_copy(original)["cells"]
    assert fold["source"] == "<details><summary>A hint</summary>\n\nopen the door\n\n</details>"
    assert predicts["source"] == 'predict("05.held", ..., "GB")\n12' and predicts["metadata"] == {}
    assert (predicts["outputs"], predicts["execution_count"]) == ([], None)
    assert blank["source"] == 'def half(n):\n    """Half of n."""\n    raise NotImplementedError("your turn")\n\nhalf(2)'
    assert blank["metadata"] == {"nbgrader": {"solution": True}} and ours["metadata"] == {"tags": ["ours"]}
    assert explains["source"].startswith("<details><summary>When you have run") and "\n\nIt is *two*.\n\n" in explains["source"]
    assert says["source"] == author().cells[-1].source and says["metadata"] == {"jupyter": {"source_hidden": True}}
    assert nbformat.writes(original) == before


def test_a_class_may_have_copies_without_our_versions():
    assert [cell["source"] for cell in learners_copy(author(), ours=False)["cells"] if "ours" in cell["source"]] == []
    assert len(learners_copy(author(), ours=False)["cells"]) == len(author().cells) - 1


@pytest.mark.parametrize("opened", ("<details open>", "<details class='x' open=''>", '<DETAILS OPEN="open">', "<details\nopen>"))
def test_every_way_to_open_a_fold_is_closed(opened):
    notebook = new_notebook(cells=[new_markdown_cell(f"{opened}<summary>open</summary> an open question</details>")])
    assert "open" not in learners_copy(notebook)["cells"][0]["source"].partition(">")[0].lower()
    assert learners_copy(notebook)["cells"][0]["source"].endswith("<summary>open</summary> an open question</details>")


def test_an_answer_that_stands_elsewhere_is_noticed():
    answer = ["whole = first + second", "return whole / 2"]
    assert given_away(answer, "def f():\n    whole = first + second\n    return whole / 2")
    assert not given_away(answer, "whole = first + second\nreturn whole / 3")


# where they come from

def test_a_wheel_has_the_copies_themselves(tmp_path, monkeypatch):
    """What is put inside when a wheel is built is what an installed package finds, and the same again."""
    originals.put_inside(tmp_path)
    monkeypatch.setattr(originals, "PACKAGE", tmp_path)
    assert originals.copies_of_all() == ALL
    assert all(path.read_text() == written(json.loads(path.read_text())) for path in originals.notebooks(tmp_path / originals.INSIDE))


def test_a_package_without_notebooks_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(originals, "PACKAGE", tmp_path / "zerocourse")
    with pytest.raises(BadInput, match="has no notebooks of the course"):
        originals.copies_of_all()
