"""`python -m tools.site fetch | html | book`: see the package's docstring."""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from zerocourse.engine.config.json_schema import json_schema

from ..notebooks import ROOT
from . import browser_python, links, public_names, slides, source, step_pages, teacher_pages, web_packages

OUT = ROOT / "output" / "site"
EXAMPLE = {"train_batch_size": 8, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}


def html(out: Path = OUT) -> Path:
    """Build the site, without a network. Raises SystemExit where Sphinx warns, or a link inside leads nowhere."""
    if missing := web_packages.missing():
        sys.exit(f"{', '.join(missing)} are not here: fetch them once with `python -m tools.site fetch`")
    texts, pages = out / "source", out / "html"
    shutil.rmtree(pages, ignore_errors=True)
    source.lay_out(texts)
    public_names.write_pages(texts / "api")
    teacher_pages.write_pages(texts / "docs" / "teaching")
    add_static(texts / "docs" / "_static")
    ended = subprocess.run([sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "--jobs", "2",
                            "--conf-dir", ROOT / "docs", "--doctree-dir", out / "doctrees",
                            "--define", f"html_static_path={texts / 'docs' / '_static'}", texts, pages], cwd=ROOT)
    if ended.returncode:
        sys.exit(ended.returncode)
    found = [*links.broken(pages), *(f"{each} is asked of another host" for each in links.asked_of_others(pages))]
    if found:
        sys.exit("\n".join(found))
    return pages


def add_static(folder: Path) -> None:
    """Pyodide, MathJax, the packed Python, the schema and the recorded steps, beside the scripts of the pages."""
    for package in (web_packages.PYODIDE, web_packages.REVEAL):
        shutil.copytree(package.folder, folder / package.name)
    shutil.copytree(web_packages.MATHJAX.folder / "es5", folder / "mathjax")
    slides.write_slides(folder / "slides")
    example = folder / "example.json"
    example.write_text(json.dumps(EXAMPLE))
    browser_python.pack(folder / "zerocourse.zip", example)
    (folder / "ds_config.schema.json").write_text(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    step_pages.write_pages(folder / "steps")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__)
    parser.add_argument("what", choices=("fetch", "html", "book"))
    what = parser.parse_args().what
    if what == "fetch":
        web_packages.fetch()
    elif what == "html":
        print(f"the site is in {html()}: read it with `python -m http.server --directory {OUT / 'html'}`")
    else:
        from . import book  # which needs a browser

        print(f"the book is {book.print_it(OUT / 'html', OUT / 'zerocourse.pdf')}")


if __name__ == "__main__":
    main()
