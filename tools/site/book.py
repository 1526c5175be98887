"""Prints the chapters of a built site into one PDF, by the browser that tests use, with an outline by chapter."""

import functools
import http.server
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright
from pypdf import PdfWriter

from ..notebooks import chapters

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PRINTED = """
.bd-header, .bd-header-article, .bd-sidebar-primary, .bd-sidebar-secondary, .prev-next-footer, .bd-footer, .bd-footer-content, .headerlink,
.copybtn, #jb-print-docs-body { display: none !important; }
pre { white-space: pre-wrap !important; font-size: 0.7rem !important; }
.cell, .cell_input, .highlight, pre, table { break-inside: auto !important; }
"""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder on this machine: modules and workers do not start from files."""
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def print_it(site: Path, target: Path, pages: list[str] | None = None) -> Path:
    """Write the PDF. pages: of the site, without their ending; None: the front page, all chapters, and the glossary.

    Raises SystemExit without a browser, and where the site is not built.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"a book is printed by a browser, and none of {', '.join(BROWSERS)} is here: install Chromium")
    if not (site / "index.html").exists():
        raise SystemExit(f"there is no site in {site}: build it with `make site`")
    pages = pages or ["index", *(f"notebooks/{path.stem}" for path in chapters()), "docs/glossary"]
    book = PdfWriter()
    with served(site) as address, sync_playwright() as starter, tempfile.TemporaryDirectory() as draft:
        chromium = starter.chromium.launch(executable_path=browser)
        page = chromium.new_page(color_scheme="light")
        for number, name in enumerate(pages):
            page.goto(f"{address}/{name}.html", wait_until="networkidle")
            page.add_style_tag(content=PRINTED)
            printed = Path(draft) / f"{number}.pdf"
            page.pdf(path=printed, format="A4", scale=0.8, margin=dict.fromkeys(("top", "bottom", "left", "right"), "16mm"))
            book.append(printed, outline_item=page.locator("h1").first.inner_text().strip("# \n"))
        chromium.close()
    book.compress_identical_objects()
    book.write(target)
    return target
