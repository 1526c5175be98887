"""Prints the cells in which a chapter asks for its own core, `python -m tools.written 04.w1`; `--insert N` puts them, as the
cells from number N on, into the chapter's notebook."""

import argparse
import ast
import inspect
import sys
import textwrap
from collections.abc import Callable

import nbformat
from nbformat.v4 import new_code_cell

from tools import notebooks
from zerocourse.course.checks.exercise import Exercise, find

IMPORTS = "from zerocourse.course.checks import check, ours, yours_or_ours"


def blank_with_solution(asked: Exercise) -> str:
    """Our functions under the names that a learner defines, without types, and with the marks around their bodies. What the
    reference says of itself in several lines stands in place of our docstring, which may be the package's own and short."""
    return "\n\n\n".join(_blank(*each, inspect.getdoc(asked.reference)) for each in zip(asked.own, asked.answers, strict=True))


def _blank(fn: Callable, name: str, said: str) -> str:
    source = textwrap.dedent(inspect.getsource(fn)).rstrip()
    first = ast.parse(source).body[0].body[1].lineno - 1
    signature = inspect.signature(fn)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    head = f"def {name}{signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)}:"
    words = said if "\n\n" in said else inspect.getdoc(fn)
    docstring = f'"""{words}\n"""' if "\n" in words else f'"""{words}"""'
    return "\n".join([head, textwrap.indent(docstring, "    "), "    ### BEGIN SOLUTION", *source.splitlines()[first:], "    ### END SOLUTION"])


def cells(id: str) -> list:
    """The functions, their check, whose the chapter goes on with, and ours."""
    asked = find(id)
    names = ", ".join(asked.answers)
    calls = [f'{IMPORTS}\n\ncheck("{id}", {names})', f'chosen = yours_or_ours("{id}", {names})', f'ours("{id}")']
    made = [new_code_cell(source) for source in (blank_with_solution(asked), *calls)]
    for cell, tag in zip(made[1:], (notebooks.COMPARED, notebooks.COMPARED, "ours"), strict=True):
        cell.metadata["tags"] = [tag]
    return made


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.written", description=__doc__)
    parser.add_argument("id")
    parser.add_argument("--insert", type=int, metavar="N", help="as the cells from number N on, counted from 0 and with texts")
    options = parser.parse_args()
    made = cells(options.id)
    print("\n\n# ---\n".join(cell.source for cell in made))
    if options.insert is not None:
        path = notebooks.chapters([f"{find(options.id).chapter:02}"])[0]
        notebook = nbformat.read(path, as_version=4)
        notebook.cells[options.insert : options.insert] = made
        notebooks.write(notebooks.tidy(notebook), path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
