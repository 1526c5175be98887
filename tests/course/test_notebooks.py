"""The notebooks run, give again what they show, and carry nothing that a reader or GitHub would stumble on."""

import base64
import importlib.util
import re
import subprocess
import sys
import tempfile
from itertools import takewhile
from pathlib import Path

import lab_kernel
import nbformat
import pytest
from exercise_sets import CHECK, faults_of_a_run
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools.notebooks import COMPARED, FIRST_CELL, KERNEL, LARGEST, ROOT, WIDGET, chapters, problems, tidy, write
from zerocourse.course.learner.originals import copies_of_all
from zerocourse.measure.drawn.image import image

CHAPTERS = {path.stem: path for path in chapters()}
EVERY_CHAPTER = pytest.mark.parametrize("name", CHAPTERS)
SECONDS = 300  # for one notebook, on a busy machine
CHOICE, BLANK = "yours_or_ours(", "blank"
PNG = base64.b64encode(b"\x89PNG").decode()


WANTS = "wants-"  # begins the tag of a chapter's first text: a package that it can use beside those that `make lab` installs
OTHERS_WANT = {"accelerate", "transformers", "triton"}  # also where they are not installed here


def wanted_packages(path: Path) -> list[str]:
    return [tag.removeprefix(WANTS) for tag in nbformat.read(path, as_version=4).cells[0].metadata.get("tags", [])
            if tag.startswith(WANTS)]


def nbval(path: Path, *packages: str) -> subprocess.CompletedProcess:
    """Run a notebook again and compare its tagged cells, in a kernel that sees what `make lab` installs, and these packages.
    What the cells gave is in the notebook afterwards, unless it is one of the repository."""
    with tempfile.TemporaryDirectory() as folder:
        environment = lab_kernel.add_kernel(Path(folder), *packages)
        environment |= lab_kernel.hiding({"rfc3987_syntax"})  # jsonschema needs a second for it
        environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # for which pytest needs another
        keeps = [] if path.is_relative_to(ROOT) else ["-p", "keeps_outputs"]
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "nbval.plugin", *keeps, "-p", "pytest_timeout", "-p", "no:cacheprovider",
             "-o", f"timeout={SECONDS}", "--nbval-lax", "--nbval-kernel-name", lab_kernel.NAME,
             "--nbval-sanitize-with", ROOT / "tests" / "nbval_sanitize.cfg", path],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS)
    ended.stdout = re.sub("[A-Za-z0-9+/]{200,}", "...", ended.stdout)  # pictures, which would hide what has changed
    return ended


# the course

def test_the_course_begins_with_chapter_00():
    assert "00_start_here" in CHAPTERS


@EVERY_CHAPTER
def test_is_in_order(name):
    found = list(problems(CHAPTERS[name]))
    assert not found, f"{name}: " + "\n".join(found)


def with_blanks(name: str) -> nbformat.NotebookNode:
    """The authors' chapter, in which each cell that a learner fills in comes twice: first as the learner's copy has it, with
    the check and the choice between yours and ours that follow it, and then as the authors have it."""
    notebook = nbformat.read(CHAPTERS[name], as_version=4)
    copy = {cell.id: cell for cell in nbformat.reads(copies_of_all()[f"notebooks/{name}.ipynb"], as_version=4).cells}
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.cells = []
    for number, cell in enumerate(cells):
        if copy[cell.id].source != cell.source:
            follows = takewhile(lambda cell: CHECK.search(cell.source) or CHOICE in cell.source, cells[number + 1:])
            for blank in (copy[cell.id], *follows):
                tags = [tag for tag in blank.metadata.get("tags", []) if tag != COMPARED]
                notebook.cells.append(new_code_cell(blank.source, metadata={"tags": [*tags, BLANK]}, execution_count=1))
        notebook.cells.append(cell)
    return notebook


@EVERY_CHAPTER
@pytest.mark.timeout(SECONDS + 20)
def test_gives_the_same_outputs_again(name, tmp_path):
    """With the packages that its first text has a tag for, such as `wants-transformers`, where they are installed here. Each
    blank is called one and followed by ours, and then the chapter goes on with the authors' answer."""
    notebook, path = with_blanks(name), tmp_path / f"{name}.ipynb"
    nbformat.write(notebook, path)
    ended = nbval(path, *filter(importlib.util.find_spec, wanted_packages(CHAPTERS[name])))
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    ran = nbformat.read(path, as_version=4)
    ran.cells = [cell for cell in ran.cells if BLANK in cell.metadata.get("tags", [])]
    assert list(faults_of_a_run(ran)) == []
    choices = [cell.source for cell in notebook.cells if CHOICE in cell.source]
    assert sorted(choices) == sorted(2 * [*{*choices}]), "each comes after a blank, and after an answer"


@pytest.mark.parametrize("name", [name for name, path in CHAPTERS.items() if wanted_packages(path)])
@pytest.mark.timeout(SECONDS + 20)
def test_goes_on_without_the_packages_that_it_wants(name, tmp_path):
    """The first cell and those that need a package, which say that it is not there; the others are the same with it."""
    notebook = nbformat.read(CHAPTERS[name], as_version=4)
    first, *others = (cell for cell in notebook.cells if cell.cell_type == "code")
    notebook.cells = [first]
    for package in wanted_packages(CHAPTERS[name]):
        notebook.cells += [cell for cell in others if f"{package} is not installed" in cell.source]
        notebook.cells[-1].source += f"\nimport sys\nassert '{package}' not in sys.modules"
    assert len(notebook.cells) > 1
    nbformat.write(notebook, tmp_path / CHAPTERS[name].name)
    ended = nbval(tmp_path / CHAPTERS[name].name)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]


@EVERY_CHAPTER
def test_says_what_it_wants_beside_the_lab(name):
    """Each import of a module that `make lab` does not install is of a package that the first text names, in words and by its
    tag, and a cell says what it leaves out where the package is not there."""
    notebook = nbformat.read(CHAPTERS[name], as_version=4)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    imported = set(re.findall(r"^ *(?:import|from) (\w+)", code, re.M)) - {"deepspeed"}  # which is ours, in scripts
    wanted = wanted_packages(CHAPTERS[name])
    assert imported & (lab_kernel.hidden_modules() | OTHERS_WANT) == set(wanted)
    for package in wanted:
        assert package in notebook.cells[0].source and f"{package} is not installed" in code


def test_the_kernel_and_its_ranks_see_what_the_lab_has(tmp_path):
    notebook = sound()
    notebook.cells[1].source = "import importlib.util, nbformat\nfrom zerocourse.launch import Ranks, launch"
    notebook.cells[2].source = """def there():
    try:
        import nbval
    except ModuleNotFoundError as error:
        return str(error), importlib.util.find_spec("nbval")

import sys
there(), *Ranks(1).run(there), *launch(there, nproc=1)"""
    said = repr((("No module named 'nbval'", None),) * 3)
    notebook.cells[2].outputs[0].data["text/plain"] = said.replace("), (", "),\n (")
    path = tmp_path / "01_hidden.ipynb"
    write(notebook, path)
    ended = nbval(path)
    assert ended.returncode == 0, ended.stdout


@EVERY_CHAPTER
def test_shows_the_source_as_it_is_now(name):
    """What `show.source` and `show.difference` wrote into the notebook still stands in the files that they name."""
    for text in shown_texts(nbformat.read(CHAPTERS[name], as_version=4)):
        old = outdated(text)
        assert not old, f"{name} shows lines that are no longer in the package: {old}; run it again: make notebooks"


def shown_texts(notebook):
    """The plain text of every output that shows something."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            yield "".join(output.get("data", {}).get("text/plain", ""))


def outdated(text: str) -> list[str]:
    """The lines of code in `text` that are not in the package's file which is named before them."""
    lost, files = [], {}
    for line in text.splitlines():
        heading = re.match(r"(#|---|\+\+\+) (zerocourse/\S+\.py)", line)
        if heading:
            files["+" if heading[1] == "#" else heading[1][0]] = (ROOT / heading[2]).read_text()
            whole = heading[1] == "#"
        elif re.match(r"--- |@@ ", line):
            continue
        elif files:
            sign, code = ("+", line) if whole else (line[:1], line[1:])
            if sign in files and code.strip() not in files[sign]:
                lost.append(code)
    return lost


def test_outdated_source_is_found():
    from zerocourse.course import show
    from zerocourse.zero.stage1 import Stage1
    from zerocourse.zero.stage2 import Stage2

    for shown in (show.source(Stage2), show.difference(Stage1, Stage2)):
        assert not outdated(shown.text)
        old = shown.text.replace("Handle:", "Grip:")
        assert ("Grip:" in old) == bool(outdated(old))
    assert outdated(show.source(Stage2).text.replace("number = 2", "number = 4"))


# the checks themselves

def sound() -> nbformat.NotebookNode:
    """A small notebook without a fault."""
    cells = [new_markdown_cell("# A chapter"), new_code_cell(FIRST_CELL, execution_count=1),
             new_code_cell("2 + 2", execution_count=2, metadata={"tags": [COMPARED]},
                           outputs=[new_output("execute_result", {"text/plain": "4"}, execution_count=2)])]
    return new_notebook(cells=cells, metadata=KERNEL)


def faults(tmp_path, notebook) -> list[str]:
    path = tmp_path / "01_faults.ipynb"
    nbformat.write(notebook, path)
    return list(problems(path))


def add(notebook, *outputs, tags=()) -> None:
    number = len([cell for cell in notebook.cells if cell.cell_type == "code"]) + 1
    notebook.cells.append(new_code_cell("more", execution_count=number, outputs=list(outputs),
                                        metadata={"tags": list(tags)}))


def no_counts(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = None


def out_of_order(notebook):
    notebook.cells[1].execution_count, notebook.cells[2].execution_count = 2, 1


def other_first_cell(notebook):
    notebook.cells[1].source = FIRST_CELL.replace("--no-deps", "")


def no_output(notebook):
    notebook.cells[2].outputs = []


def nothing_compared(notebook):
    notebook.cells[2].metadata = {}


def not_equal(notebook):
    add(notebook, new_output("stream", name="stdout", text="NOT equal"))
    notebook.cells[-1].source = 'print("equal" if same else "NOT equal")'


FAULTS = {
    "execution counts": no_counts,
    "from top to bottom": out_of_order,
    "first_cell": other_first_cell,
    "no output to compare": no_output,
    "none of its outputs is compared": nothing_compared,
    "its metadata is": lambda nb: nb.metadata.update(widgets={"state": {}}),
    "a widget's state": lambda nb: add(nb, new_output("display_data", {WIDGET: {"model_id": "1"}})),
    "ended with ValueError": lambda nb: add(nb, new_output("error", ename="ValueError", evalue="no", traceback=["no"])),
    "names this machine": lambda nb: add(nb, new_output("stream", name="stdout", text="saved to /home/me/x.png")),
    "image/png has no alternative text in JupyterLab": lambda nb: add(nb, new_output("display_data", {"image/png": PNG})),
    "image/svg+xml has no alternative text in JupyterLab": lambda nb: add(nb, new_output("display_data", {"image/svg+xml": "<svg></svg>"})),
    "HTML has an image": lambda nb: add(nb, new_output("display_data", {"text/html": "<img src='x'>"})),
    "in the text has no alternative": lambda nb: nb.cells.append(new_markdown_cell("![](picture.png)")),
    "writes to stderr": lambda nb: add(nb, new_output("stream", name="stderr", text="5 %"), tags=[COMPARED]),
    f"{LARGEST:,} is the most": lambda nb: nb.cells.append(new_markdown_cell("x" * LARGEST)),
    "its output says 'NOT equal', which is for": not_equal,
    "08_nowhere.ipynb": lambda nb: nb.cells.append(new_markdown_cell("See [there](08_nowhere.ipynb).")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault, tmp_path):
    notebook = sound()
    assert faults(tmp_path, notebook) == []
    FAULTS[fault](notebook)
    assert any(fault in found for found in faults(tmp_path, notebook)), faults(tmp_path, notebook)


def test_an_error_that_is_meant_is_no_fault(tmp_path):
    notebook = sound()
    add(notebook, new_output("error", ename="ValueError", evalue="no", traceback=["no"]), tags=["raises-exception"])
    assert faults(tmp_path, notebook) == []


def test_tidy_takes_away_what_no_reader_needs(tmp_path):
    notebook = sound()
    del notebook.cells[1]
    notebook.metadata = {"widgets": {"state": {}}, "kernelspec": {"name": "my-env", "display_name": "mine"}}
    add(notebook, new_output("display_data", {WIDGET: {"model_id": "1"}}),
        new_output("display_data", {"text/html": image(b"", "four bars", 3)}))
    tidied = tidy(notebook)
    ids = [cell.id for cell in tidied.cells]
    for count, cell in enumerate((cell for cell in tidied.cells if cell.cell_type == "code"), 1):
        cell.execution_count = count
    assert faults(tmp_path, tidied) == []
    assert [cell.id for cell in tidy(tidied).cells] == ids and len(set(ids)) == len(ids)


def test_a_changed_output_is_noticed(tmp_path):
    """The comparison itself: one wrong number in a tagged cell fails, in an untagged cell it does not."""
    notebook = sound()
    notebook.cells[1].source = "3 + 3"  # there is no course in that folder
    path = tmp_path / "01_changed.ipynb"
    notebook.cells[2].outputs[0].data["text/plain"] = "5"
    write(notebook, path)
    ended = nbval(path)
    assert ended.returncode == 1 and "1 failed, 1 passed" in ended.stdout, ended.stdout
