"""Lays out what Sphinx reads, as the repository lies: a link between two texts leads to the same text on the site as on a forge.

The README is the first page. Guides, chapters and exercise sets are copied as they are; a file that a text links to and that is no
page, such as a file of code, comes along to be downloaded.
"""

import re
import shutil
from pathlib import Path

import nbformat

from zerocourse.course.chapters import NUMBERS, notebook_name, with_exercises

from ..notebooks import ROOT

TEXTS = ("CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md")
GUIDES = ("setup", "commands", "your_own_code", "less_memory", "parallelism", "checkpoints", "machines", "classes", "comparison", "measurements",
          "compatibility", "reading")
FOR_WRITERS = ("exercises", "tests", "libraries", "releasing")
PAGES = ("fits", "doctor", "player")
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def lay_out(folder: Path) -> None:
    """Write the sources of the site into `folder`, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    skipped = shutil.ignore_patterns("zh-CN", "conf.py", "__pycache__", ".ipynb_checkpoints", "tmp*")
    for name in ("docs", "notebooks", "exercises"):
        shutil.copytree(ROOT / name, folder / name, ignore=skipped)
    for name in TEXTS:
        shutil.copy(ROOT / name, folder / name)
    for path in (folder / "notebooks").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        link_outputs(notebook)
        nbformat.write(notebook, path)
    (folder / "index.md").write_text(front_page())
    for page in folder.rglob("*.md"):
        page.write_text(without_chinese(page.read_text()))
        bring_along(page, folder)


def link_outputs(notebook) -> None:
    """Let links in what cells show lead to pages; Sphinx does so only in what is written between the cells."""
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
        if "text/markdown" in (data := output.get("data", {})):
            data["text/markdown"] = re.sub(r"\]\((\d\d_\w+)\.ipynb\)", r"](\1.html)", data["text/markdown"])


def front_page() -> str:
    """The README, with the contents of the site below it. What stands in two languages on a forge has one on the site."""
    chapters = [f"notebooks/{notebook_name(number)}" for number in sorted(NUMBERS.values())]
    sets = [f"exercises/{notebook_name(number)}" for number in with_exercises()]
    parts = {"In the browser": [f"docs/pages/{name}" for name in PAGES], "Chapters": chapters, "Exercises": sets,
             "Guides": [f"docs/{name}" for name in GUIDES], "For teachers": ["docs/teaching/index"],
             "Reference": ["docs/glossary", "docs/references", "api/index"],
             "For those who write": ["CONTRIBUTING", *(f"docs/{name}" for name in FOR_WRITERS), *(name.removesuffix(".md") for name in TEXTS[1:])]}
    trees = ["\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *(page.removesuffix(".ipynb") for page in pages), "```"])
             for caption, pages in parts.items()]
    return "\n\n".join([(ROOT / "README.md").read_text(), *trees]) + "\n"


def without_chinese(text: str) -> str:
    """Without the line that leads to the other language."""
    return re.sub(r"^\[中文\]\([^)]*\)\n\n", "", text, flags=re.M)


def bring_along(page: Path, folder: Path) -> None:
    """Copy the files that a page links to, and that are none of the site's. A link to a folder becomes its name alone."""
    text = page.read_text()
    for target in {target for target, _ in LINK.findall(text) if not re.match(r"https?:|mailto:", target)}:
        wanted = (page.parent / target).resolve()
        original = ROOT / wanted.relative_to(folder.resolve())
        if original.is_file() and not wanted.exists():
            wanted.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(original, wanted)
        elif original.is_dir():
            text = re.sub(rf"\[([^\]]*)\]\({re.escape(target)}\)", r"\1", text)
    page.write_text(text)
