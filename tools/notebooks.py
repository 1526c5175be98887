"""Keeps the notebooks in order. `python -m tools.notebooks run 05` executes chapter 05 in place and tidies it;
`check` says what is wrong with a chapter. Without numbers, all chapters.
"""

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tools.branches import branches_that_should_not_be_there
from zerocourse.course.learner.guesses import LABEL, called, guess_in

ROOT = Path(__file__).parents[1]
FIRST_CELL = Path(__file__).with_name("first_cell.ipy").read_text().rstrip()
COMPARED = "nbval-check-output"
SOLUTION = "### BEGIN SOLUTION"
DEFINED = re.compile(r"^(?:def|class) (\w+)", re.M)
WIDGET = "application/vnd.jupyter.widget-view+json"
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
          "language_info": {"name": "python"}}
MACHINE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|opt|usr|var|private|Users|mnt|srv)/[\w.]|[A-Z]:\\\\?Users"
                     r"|site-packages|ipykernel_\d+")
LARGEST = 1_500_000  # bytes: GitHub and phones show it without waiting
SECONDS = 300  # for a cell


def chapters(numbers: list[str] = ()) -> list[Path]:
    """The notebooks, or those whose names begin with one of `numbers`, in order."""
    paths = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    return [path for path in paths if not numbers or path.name.startswith(tuple(numbers))]


def run(path: Path) -> float:
    """Execute in place, with kernel python3 in the notebook's own folder, and tidy. Returns seconds.

    Raises CellExecutionError; then the file is as it was.
    """
    notebook = tidy(nbformat.read(path, as_version=4))
    begun = time.monotonic()
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", record_timing=False, store_widget_state=False,
                   coalesce_streams=True, resources={"metadata": {"path": path.parent}}).execute()
    seconds = time.monotonic() - begun
    write(tidy(notebook), path)
    return seconds


def write(notebook, path: Path) -> None:
    path.write_text(nbformat.writes(notebook) + "\n")


def tidy(notebook):
    """Leave only what a reader needs: one first cell, one kernel name, ids that follow from the text, no widgets; and mark
    the cells in which a learner writes."""
    code = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    first = code[0] if code else len(notebook.cells)
    if code and notebook.cells[first].source.startswith(FIRST_CELL.splitlines()[0]):
        notebook.cells[first].source = FIRST_CELL
    else:
        notebook.cells.insert(first, nbformat.v4.new_code_cell(FIRST_CELL))
    notebook.metadata = nbformat.from_dict(KERNEL)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen: set[str] = set()
    for cell in notebook.cells:
        cell.source = cell.source.rstrip()
        cell.metadata = kept_metadata(cell)
        cell.id = fresh_id(cell.source, seen)
        if cell.cell_type == "code":
            cell.outputs = [plain(output) for output in cell.outputs if WIDGET not in output.get("data", {})]
    return notebook


def kept_metadata(cell):
    """Tags, what nbgrader knows of the cell (a chapter's is told by its function's name), and the guess of a prediction as its
    source has it."""
    answers = SOLUTION in cell.source and marks(f"answer_{DEFINED.search(cell.source)[1]}", solution=True)
    kept = {"tags": sorted(tags(cell)), "nbgrader": answers or cell.metadata.get("nbgrader"),
            "zerocourse": {"guess": guess} if (guess := cell.cell_type == "code" and guess_in(cell.source)) else None}
    return nbformat.from_dict({key: value for key, value in kept.items() if value})


def marks(grade_id: str, solution: bool = False, points: int | None = None) -> dict:
    """nbgrader's metadata of an answer, or, with points, of a test."""
    graded = {} if points is None else {"points": points}
    return {"grade": points is not None, "grade_id": grade_id, "locked": not solution, "schema_version": 3, "solution": solution,
            "task": False, **graded}


def fresh_id(source: str, seen: set[str]) -> str:
    """The same for the same text, so that an unchanged cell stays unchanged; different within a notebook."""
    name, again = hashlib.sha1(source.encode()).hexdigest()[:8], 0
    while f"{name}-{again}" in seen:
        again += 1
    seen.add(f"{name}-{again}")
    return f"{name}-{again}"


def plain(output):
    """An output with no metadata but its pictures' alternative text and width."""
    if "metadata" in output:
        output.metadata = nbformat.from_dict({kind: {key: about[key] for key in ("alt", "width") if key in about}
                                              for kind, about in output.metadata.items()
                                              if isinstance(about, dict) and about.get("alt")})
    return output


def problems(path: Path) -> Iterator[str]:
    """What a reader, a comparison or GitHub would stumble on, each in a sentence."""
    if path.stat().st_size > LARGEST:
        yield f"it has {path.stat().st_size:,} bytes, and {LARGEST:,} is the most"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if not code or code[0].source != FIRST_CELL:
        yield "its first code cell is not that of tools/first_cell.ipy"
    counts = [cell.execution_count for cell in code]
    if counts != list(range(1, len(code) + 1)):
        yield f"its cells were not run once each from top to bottom: execution counts {counts}"
    if notebook.metadata != KERNEL:
        yield f"its metadata is {dict(notebook.metadata)}, not {KERNEL}"
    if not any(COMPARED in tags(cell) for cell in code):
        yield f"none of its outputs is compared: no cell has the tag {COMPARED}"
    for number, cell in enumerate(code, 1):
        for text in branches_that_should_not_be_there(cell):
            yield f"In[{number}]: its output says {text!r}, which is for the case that should not be: say the other by show.says(..., must=...)"
        for problem in cell_problems(cell):
            yield f"In[{number}]: {problem}"
    yield from prediction_problems(code, path.name[:2])
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield from (f"a picture in the text has no alternative text: {picture}"
                        for picture in re.findall(r"!\[\s*\]\([^)]*\)|<img(?![^>]*\balt=)[^>]*>", cell.source))
            yield from (f"it links to {link}, which is not there"
                        for link in re.findall(r"\]\(([^)#:]+\.ipynb)", cell.source)
                        if not (ROOT / "notebooks" / link).exists())


def prediction_problems(code: list, number: str) -> Iterator[str]:
    """A guess that nothing says is one, a prediction whose value is observed nowhere, and one that is observed and not made."""
    predicted: list[str] = []
    for cell in code:
        guess = guess_in(cell.source)
        if guess != cell.metadata.get("zerocourse", {}).get("guess"):
            yield f"the metadata of a cell has another guess than its source, {guess}: run the notebook again"
        if guess and not guess.startswith(f"{LABEL}("):
            yield f"a guess is not labelled as one: write {LABEL}({guess})"
        predicted += called(cell.source, "predict")
        for id in called(cell.source, "observe"):
            if id not in predicted:
                yield f"{id} is observed, and not predicted in a cell above"
    for id in predicted:
        if predicted.count(id) > 1 or not id.startswith(f"{number}."):
            yield f"{id} is no name for a prediction of this chapter: begin it with {number}. and use it once"
        if not any(id in called(cell.source, "observe") for cell in code):
            yield f"{id} is predicted, and never observed"


def cell_problems(cell) -> Iterator[str]:
    if COMPARED in tags(cell) and not cell.outputs:
        yield f"it has the tag {COMPARED} and no output to compare"
    for output in cell.outputs:
        data = output.get("data", {})
        if output.output_type == "error" and "raises-exception" not in tags(cell):
            yield f"it ended with {output.ename}: {output.evalue}"
        if COMPARED in tags(cell) and output.get("name") == "stderr":
            yield "it is compared, and it writes to stderr"
        if WIDGET in data:
            yield "it has a widget's state"
        words = json.dumps([re.sub(r'"data:[^"]*"', "", "".join(text)) for kind, text in data.items() if kind.startswith("text/")]
                           + [output.get(key) for key in ("text", "traceback", "evalue")], ensure_ascii=False)
        for match in MACHINE.finditer(words):
            yield f"its output names this machine: ...{words[max(0, match.start() - 20):match.end() + 40]}..."
        for kind in data:
            if kind.startswith("image/") and not re.search(r"<img[^>]*\balt=", data.get("text/html", "")):
                yield f"its {kind} has no alternative text in JupyterLab: show it by show.figure(figure, alt=...) or image()"
            if kind == "text/html" and re.search(r"<img(?![^>]*\balt=)", data[kind]):
                yield "its HTML has an image without alternative text"
            if kind == "image/svg+xml" or kind == "text/html" and re.search(r"<svg|image/svg", data[kind]):
                yield "it has an SVG, which hosts of notebooks may drop: show it as a `Shown` or a `Film`, which draw it as PNG"


def tags(cell) -> list[str]:
    return cell.metadata.get("tags", [])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description=__doc__)
    parser.add_argument("what", choices=("run", "check"))
    parser.add_argument("numbers", nargs="*", help="the chapters, such as 00 05; all by default")
    options = parser.parse_args()
    wrong = 0
    for path in chapters(options.numbers):
        note = ""
        if options.what == "run":
            try:
                note = f" ran in {run(path):.0f} s"
            except CellExecutionError as error:
                print(f"{path.name}: a cell failed; the file is as it was\n{error}")
                wrong += 1
                continue
        faults = list(problems(path))
        wrong += bool(faults)
        print(f"{path.name}:{note}", *(faults or ["in order"]), sep="\n  " if faults else " ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
