"""No saved output has the sentence for the case that should not be: "NOT equal" where the chapter shows that things are equal."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_output

from tools.branches import branches_that_should_not_be_there, words_by_choice
from tools.notebooks import ROOT

NOTEBOOKS = {f"{path.parent.name}/{path.stem}": path for folder in ("notebooks", "solutions") for path in sorted((ROOT / folder).glob("*.ipynb"))}
CHOOSE: set[str] = set()  # the list only shrinks


def code_cells(name: str) -> list:
    return [cell for cell in nbformat.read(NOTEBOOKS[name], as_version=4).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_no_output_has_the_branch_that_should_not_be_there(name):
    assert [text for cell in code_cells(name) for text in branches_that_should_not_be_there(cell)] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_sentence_chooses_no_words(name):
    """It says one thing, with `must=`, and raises where that is not so."""
    found = [text for cell in code_cells(name) for text in words_by_choice(cell)]
    assert bool(found) == (name in CHOOSE), found


SAYS = 'show.says("All of it is {same}.", same="equal to the byte" if equal else "NOT equal")'
NAMED = 'verdict = "equal" if equal else "NOT equal"\nshow.says("All of it is {verdict}.", verdict=verdict)'
FILLED = 'show.says("It is {much}.", much=f"only {lower} bytes lower" if lower else "not lower")'
NUMBER = 'print("room:", gb(room) if room else "does not fit")'
ROWS = 'show.table([{"loss": "falls" if low else "grows"} for low in lows])'
LOOP = 'for case in (0, 14):\n    print(f"case {case}:" if case else "no bug:", played[case])'


@pytest.mark.parametrize("source, printed, found", [
    (SAYS, "All of it is NOT equal.", ["NOT equal"]),
    (SAYS, "All of it is equal to the byte.", []),
    (f"%pylab inline\n{SAYS}", "All of it is NOT equal.", ["NOT equal"]),
    (NAMED, "All of it is NOT equal.", ["NOT equal"]),
    (FILLED, "It is not lower.", ["not lower"]),
    (FILLED, "It is only 12 bytes lower.", []),
    (NUMBER, "room: does not fit", ["does not fit"]),
    (NUMBER.replace("print", "show.table"), "room: does not fit", []),
    (ROWS, "grows\ngrows", ["grows"]),  # not one row is as it should be
    (ROWS, "falls\ngrows", []),
    (LOOP, "no bug: green\ncase 14: red", []),
    ("this is no Python", "NOT equal", []),
])
def test_the_other_branch_is_found(source, printed, found):
    for output in (new_output("stream", name="stdout", text=printed), new_output("display_data", {"text/plain": printed})):
        assert list(branches_that_should_not_be_there(new_code_cell(source, outputs=[output]))) == found
