"""A page for the teacher of each chapter, out of what is there: the chapter's aims, its questions, its pictures, and the checks' mistakes."""

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat

from zerocourse.course.chapters import NEEDS, notebook_name
from zerocourse.course.checks import exercises
from zerocourse.course.checks.exercise import Exercise

from ..notebooks import chapters

MISTAKES = 4  # of each exercise: the most likely, with which its table begins
QUESTION = re.compile(r"^\*Predict:\*\s*(.+)$", re.M)


CONTENTS = """
```{toctree}
:glob:
:maxdepth: 1

[0-9]*
```
"""


def write_pages(folder: Path) -> None:
    """Write a page for each chapter, and list them at the end of the guide."""
    sets = list(exercises().values())
    for path in chapters():
        number = int(path.name[:2])
        (folder / f"{path.stem}.md").write_text(page(path, [each for each in sets if each.chapter == number]))
    guide = folder / "index.md"
    guide.write_text(guide.read_text() + CONTENTS)


def page(path: Path, of_chapter: list[Exercise]) -> str:
    cells = nbformat.read(path, as_version=4).cells
    first, number = cells[0].source, int(path.name[:2])
    title = re.match(r"# (.+)", first)[1]
    before = ", ".join(f"[{notebook_name(each)[:2]}](../../notebooks/{notebook_name(each)})" for each in NEEDS[number])
    parts = [f"# {title}: for the teacher", f"The chapter: [{title}](../../notebooks/{path.name})." + (f" It builds on {before}." if before else "") +
             f" <a href=\"../../_static/slides/{path.stem}.html\">Its slides</a>.",
             *re.findall(r"^\*\*Time\.\*\*.*$", first, re.M)]
    if aims := re.findall(r"^- .+$", first, re.M):
        parts += ["## Aims", "Afterwards a learner will be able to", "\n".join(aims)]
    if asked := [question for cell in cells if cell.cell_type == "markdown" for question in QUESTION.findall(from_here(cell.source))]:
        parts += ["## Ask before the cell runs", "\n".join(f"- {question[0].upper()}{question[1:]}" for question in asked)]
    if drawn := list(pictures(cells)):
        parts += ["## For the board",
                  "What the chapter's pictures show, in words from which one can draw them:", "\n".join(f"- {words}" for words in drawn)]
    if of_chapter:
        parts += ["## What goes wrong",
                  "The mistakes that the checks recognise, the most likely first. In a class's report each has a number beside it.",
                  *map(mistakes, of_chapter)]
    return "\n\n".join(parts) + "\n"


def from_here(text: str) -> str:
    """A chapter's text with links that lead from `docs/teaching`."""
    return re.sub(r"\]\((?=\d\d_)", "](../../notebooks/", text.replace("](../", "](../../"))


def pictures(cells) -> Iterator[str]:
    """The words of each picture: what its text alternative says."""
    for output in (output for cell in cells for output in cell.get("outputs", ())):
        data = output.get("data", {})
        if "image/png" in data:
            yield escaped(" ".join(re.split(r"\n\d+ of \d+: ", data["text/plain"])[0].split()))


SIGNS = str.maketrans({sign: f"\\{sign}" for sign in "*_[]<>{}|"})


def escaped(text: str) -> str:
    """As text of a page; what stands between backticks is code there, too."""
    return "".join(part if part.startswith("`") else part.translate(SIGNS) for part in re.split(r"(`[^`]*`)", text))


def mistakes(exercise: Exercise) -> str:
    where = "in the chapter" if exercise.is_in_chapter else f"{exercise.minutes} minutes"
    rows = [f"- *{code}*: {escaped(exercise.sentences[code])}" for code in list(exercise.mistakes)[:MISTAKES] if code in exercise.sentences]
    return "\n".join([f"**{exercise.id} {exercise.title}** {exercise.stars} ({where})", "", *rows])
