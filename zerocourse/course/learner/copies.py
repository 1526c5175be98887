"""A learner's copy of a notebook: what its author wrote, without what it gave away.

In the author's notebook the answers stand between `### BEGIN SOLUTION` and `### END SOLUTION`, guesses are arguments of `predict`
(`guesses.py`), and these tags say what a copy does with a cell:

    ours       It shows our version of what the learner was asked to write. A class may want copies without these cells.
    explains   A text that says what the cell above has measured. In a copy it is folded, and so is code that says it.

A notebook is here what JSON makes of its file, and nothing needs more than Python: the package's wheel is built with this.
"""

import copy
import json
import re
from pathlib import Path

from .guesses import without_guess

BLANK = 'raise NotImplementedError("your turn")'
SOLUTION = re.compile(r"^([ \t]*)### BEGIN SOLUTION[ \t]*\n.*?^[ \t]*### END SOLUTION[ \t]*$", re.S | re.M)
HIDDEN = re.compile(r"^### BEGIN HIDDEN TESTS\n.*?^### END HIDDEN TESTS\n", re.S | re.M)
OPEN = re.compile(r"(<details\b[^>]*?)\s+open(?:=(?:\"[^\"]*\"|'[^']*'|\w+))?(?=[\s>])", re.I)
OURS, EXPLAINS = "ours", "explains"
FOR_AUTHORS = {"nbval-check-output", EXPLAINS}  # tags that mean nothing in a copy
FOLD = "<details><summary>When you have run the cell above: what it shows</summary>\n\n{}\n\n</details>"


def learners_copy(notebook: dict, ours: bool = True) -> dict:
    """The copy of an author's notebook, which is left as it is.

    ours: False leaves out the cells that show our version; a chapter then still goes on with ours where a blank is left.
    """
    made = copy.deepcopy(notebook)
    made["cells"] = [cell for cell in made["cells"] if ours or OURS not in tags(cell)]
    for cell in made["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            source = HIDDEN.sub("", SOLUTION.sub(lambda match: match[1] + BLANK, source))
            about = cell["metadata"].pop("zerocourse", {})
            about.pop("guess", None)
            source = without_guess(source)
            cell["metadata"] |= ({"zerocourse": about} if about else {}) | ({"jupyter": {"source_hidden": True}} if EXPLAINS in tags(cell) else {})
            cell["outputs"], cell["execution_count"] = [], None
        elif cell["cell_type"] == "markdown":
            source = OPEN.sub(r"\1", source)
            if EXPLAINS in tags(cell):
                source = FOLD.format(source)
        cell["source"] = source
        if kept := [tag for tag in cell["metadata"].pop("tags", []) if tag not in FOR_AUTHORS]:
            cell["metadata"]["tags"] = kept
    return made


def tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])


def read(path: Path) -> dict:
    return json.loads(path.read_text("utf-8"))


def written(notebook: dict) -> str:
    """As a file has it. The lines of a text stand one by one, as Jupyter writes them, so that copies can be compared."""
    lined = {**notebook, "cells": [{**cell, "source": "".join(cell["source"]).splitlines(keepends=True)} for cell in notebook["cells"]]}
    return json.dumps(lined, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
