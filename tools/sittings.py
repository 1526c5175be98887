"""How long a chapter takes, by one rule. `python -m tools.sittings 05` says it, and how far one is at each heading.

A chapter has one sitting or two, each of at most LONGEST minutes. Where the second begins, a cell of text with the tag `pause` says so.
The rule counts what a reader who runs every cell does. What is folded is left out, and so is the time that the computer needs.
"""

import argparse
import math
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import nbformat

from tools.notebooks import chapters, tags
from zerocourse.course.learner.guesses import called

LONGEST = 60  # minutes of a sitting
WORDS = 150  # are read in a minute, sentences that a cell says among them
LINES = 15  # of code are read in a minute, the package's own that a cell shows among them
PREDICTION, FIGURE, BLANK = 2, 1, 6  # minutes for a prediction, for a figure or a table, and for a cell to write
PAUSE = "pause"  # the tag of the cell between two sittings
STEP = 5  # minutes: times are said in multiples of it
SAID = re.compile(r"\*\*Time\.\*\*([^.]*?)\bminutes\b")
FOLDED = re.compile(r"<details>.*?</details>", re.S)
FENCED = re.compile(r"```.*?```", re.S)
PREDICT = "*Predict:*"


def minutes(cell) -> float:
    """For one cell, its outputs among it."""
    if cell.cell_type != "code":
        prose = FENCED.sub("", FOLDED.sub("", cell.source))
        return words(prose) / WORDS + PREDICTION * prose.count(PREDICT)
    if cell.metadata.get("nbgrader", {}).get("solution"):
        return BLANK
    return PREDICTION * predicts(cell) + lines(cell.source) / LINES + sum(map(minutes_of_output, cell.outputs))


def predicts(cell) -> int:
    """How many predictions a cell of code takes."""
    return len(called(cell.source, "predict"))


def minutes_of_output(output) -> float:
    data = output.get("data", {})
    plain = "".join(data.get("text/plain", ""))
    if "text/markdown" in data:
        return words(plain) / WORDS
    if plain.startswith("# zerocourse/"):
        return lines(plain) / LINES
    return FIGURE if data.keys() & {"text/html", "image/png", "image/svg+xml"} else 0


def words(text: str) -> int:
    return len(re.findall(r"[^\W_][\w’'-]*", text))


def lines(code: str) -> int:
    return sum(bool(line.strip()) for line in code.splitlines())


def read_cells(notebook) -> list:
    """The cells that are read: all but the first cell of code, which is the same in every chapter."""
    first = next((cell for cell in notebook.cells if cell.cell_type == "code"), None)
    return [cell for cell in notebook.cells if cell is not first]


def sittings(notebook) -> list[float]:
    """The minutes of each sitting."""
    parts: list[list] = [[]]
    for cell in read_cells(notebook):
        if PAUSE in tags(cell):
            parts.append([])
        parts[-1].append(cell)
    return [sum(map(minutes, part)) - PREDICTION * asked_twice(part) for part in parts]


def asked_twice(cells: list) -> int:
    """Predictions that both a text and the cell after it ask for."""
    return sum(PREDICT in text.source and cell.cell_type == "code" and predicts(cell) > 0
               for text, cell in pairwise(cells) if text.cell_type == "markdown")


def said(notebook) -> list[int]:
    """The minutes of each sitting as the chapter's beginning says them."""
    found = SAID.search(notebook.cells[0].source)
    return [int(number) for number in re.findall(r"\d+", found[1])] if found else []


def rounded(time: float) -> int:
    return STEP * math.ceil(time / STEP)


def faults(notebook) -> Iterator[str]:
    """What is wrong with a chapter's sittings and with what it says of them, each in a sentence."""
    times, told = sittings(notebook), said(notebook)
    if len(times) > 2:
        yield f"it has {len(times)} sittings: two are the most"
    for number, time in enumerate(times, 1):
        if time > LONGEST:
            yield f"sitting {number} takes {time:.0f} minutes, and {LONGEST} is the most: put a pause (tag `{PAUSE}`) into it, or say less"
    if len(told) != len(times) or any(abs(one - rounded(other)) > STEP for one, other in zip(told, times, strict=True)):
        yield f"after **Time.** stand {told} minutes, in digits: by the rule it is {list(map(rounded, times))}"
    for cell in notebook.cells:
        if PAUSE in tags(cell) and (cell.cell_type != "markdown" or PAUSE not in cell.source.lower()):
            yield f"the cell with the tag `{PAUSE}` does not tell its reader of a {PAUSE}"


def progress(notebook) -> Iterator[tuple[float, str]]:
    """(minutes until then, heading) for each heading and each pause: where could one stop?"""
    past, cells = 0.0, read_cells(notebook)
    for index, cell in enumerate(cells):
        if heading := re.match(r"#+ (.*)", cell.source) if cell.cell_type == "markdown" else None:
            yield past, heading[1]
        if PAUSE in tags(cell):
            yield past, f"({PAUSE})"
        past += minutes(cell) - PREDICTION * asked_twice(cells[index - 1:index + 1] if index else [])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.sittings", description=__doc__)
    parser.add_argument("numbers", nargs="*", help="the chapters, such as 00 05; all by default")
    options = parser.parse_args()
    wrong = 0
    for path in map(Path, chapters(options.numbers)):
        notebook = nbformat.read(path, as_version=4)
        found = list(faults(notebook))
        wrong += bool(found)
        print(f"{path.stem}: {' and '.join(f'{time:.0f}' for time in sittings(notebook))} minutes", *found, sep="\n  ")
        if options.numbers:
            print(*(f"  {past:3.0f}  {heading}" for past, heading in progress(notebook)), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
