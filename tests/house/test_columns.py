"""A line of code in a notebook is as wide as JupyterLab and Kaggle show without a scroll bar."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from tools.notebooks import ROOT

COLUMNS = 92
NOTEBOOKS = {f"{path.parent.name}/{path.stem}": path for folder in ("notebooks", "exercises", "solutions")
             for path in sorted((ROOT / folder).glob("*.ipynb"))}


def wide_lines(cells) -> list[str]:
    return [line for cell in cells if cell.cell_type == "code" for line in cell.source.splitlines() if len(line) > COLUMNS]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_nobody_scrolls_sideways_to_read_code(name):
    wide = wide_lines(nbformat.read(NOTEBOOKS[name], as_version=4).cells)
    assert not wide, f"{name} has lines of code with more than {COLUMNS} columns: break them\n" + "\n".join(wide)


def test_a_line_that_is_too_wide_is_found():
    fits, wide = "x" * COLUMNS, "y" * (COLUMNS + 1)
    assert wide_lines([new_markdown_cell(wide), new_code_cell(f"{fits}\n{wide}\n{fits}")]) == [wide]
