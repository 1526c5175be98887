"""What a learner does: open a chapter in JupyterLab, run it, move a slider, and stop a launch that is stuck."""

import re
import secrets
import shutil
import time

import lab
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tools.notebooks import KERNEL, ROOT
from zerocourse.course.learner.folder import MARK
from zerocourse.course.learner.handout import hand_out
from zerocourse.course.learner.record import FILE, events

playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SECONDS = 400  # for a test, on a busy machine

pytestmark = [pytest.mark.timeout(SECONDS), pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")]

STUCK = """
from zerocourse.launch import launch

def stuck():
    import torch, torch.distributed as dist
    print("waiting for a peer that never comes")
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    import time
    time.sleep(600)

launch(stuck, nproc=2, env={"STUCK": "%s"})
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The address of a JupyterLab on a learner's folder."""
    folder = tmp_path_factory.mktemp("course")
    hand_out(folder)
    with lab.server(folder, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1") as address:
        yield address, folder


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as starter:
        chromium = starter.chromium.launch(executable_path=CHROMIUM, args=lab.QUIET_BROWSER)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    yield page
    page.close()


def test_a_chapter_runs_and_its_slider_moves(course, page, tmp_path):
    (address, folder), name = course, "00_start_here.ipynb"
    requested, broken = [], []
    page.on("request", lambda request: requested.append(request.url))
    page.on("pageerror", lambda error: broken.append(str(error)))
    name = f"notebooks/{name}"
    meant = sum("raises-exception" in cell.metadata.get("tags", []) for cell in nbformat.read(folder / name, 4).cells)
    lab.open_notebook(page, address, name)
    errors = lab.run_all(page)
    assert len(errors) == meant, errors

    cell = page.locator(".jp-CodeCell", has=page.locator(".widget-slider")).first
    words = cell.locator(".jp-RenderedHTMLCommon:not(.jp-RenderedMarkdown):not(:has(img))").first
    picture = cell.locator(".jp-RenderedHTMLCommon img").first
    said, drawn = words.inner_text(), picture.get_attribute("src")
    assert re.search(r"\d", said)
    cell.scroll_into_view_if_needed()
    page.screenshot(path=tmp_path / "before.png")
    handle = cell.locator(".widget-slider .noUi-handle").first
    handle.focus()
    handle.press("ArrowLeft")
    playwright.expect(words).not_to_have_text(said, timeout=20_000)
    playwright.expect(picture).not_to_have_attribute("src", drawn, timeout=20_000)
    assert re.findall(r"[\d,.]+", words.inner_text()) != re.findall(r"[\d,.]+", said)
    assert len(picture.get_attribute("alt").split()) > 3, "the picture has words in JupyterLab"
    assert cell.locator(".jp-RenderedHTMLCommon img").count() == 1, "the new picture stands in the old one's place"
    page.screenshot(path=tmp_path / "after.png")
    elsewhere = [url for url in requested if re.match(r"(https?|wss?)://(?!127\.0\.0\.1)", url)]
    assert not elsewhere and not broken


FILM = """
from zerocourse.course.chapters.zero3.filmstrip import filmstrip

filmstrip("h.1")
"""


def test_a_film_plays_where_it_is_trusted_and_is_a_strip_where_it_is_not(course, page, tmp_path):
    """Run by the learner it is a player, without a kernel's help, in the dark, too; opened untrusted, with its outputs, a strip of PNG."""
    address, folder = course
    nbformat.write(new_notebook(cells=[new_code_cell(FILM)], metadata=KERNEL), folder / "film.ipynb")
    lab.open_notebook(page, address, "film.ipynb")
    assert not lab.run_all(page)
    output = page.locator(".jp-CodeCell .jp-OutputArea")
    playwright.expect(output.get_by_text("1 of 8: sharded. Each rank keeps its slice.")).to_be_visible(timeout=60_000)
    assert output.locator("[data-film] svg").count() == 1 and output.locator("figure").count() == 0
    output.get_by_role("button", name="one frame on").click()
    playwright.expect(output.get_by_text("2 of 8: all-gather.")).to_be_visible()
    output.get_by_role("slider").fill("7")
    playwright.expect(output.get_by_text("8 of 8: reduce-scatter.")).to_be_visible()
    page.screenshot(path=tmp_path / "player.png")

    ran = nbformat.read(folder / "film.ipynb", 4)
    from zerocourse.course.chapters.zero3.filmstrip import filmstrip
    data, _ = filmstrip("h.1")._repr_mimebundle_()
    ran.cells[0].outputs = [new_output("execute_result", data, execution_count=1)]
    ran.cells[0].execution_count = 1
    nbformat.write(ran, folder / "untrusted.ipynb")
    lab.open_notebook(page, address, "untrusted.ipynb")
    strip = page.locator(".jp-CodeCell .jp-OutputArea").locator("visible=true")
    playwright.expect(strip.locator("img")).to_have_count(8, timeout=60_000)
    assert strip.locator("button, input").count() == 0
    playwright.expect(strip.get_by_text("8 of 8: reduce-scatter. Slices of the sum stay, the bucket goes.")).to_be_visible()
    assert all(len(each.get_attribute("alt").split()) > 3 for each in strip.locator("img").all())
    page.screenshot(path=tmp_path / "strip.png")


def test_a_first_prediction_takes_two_minutes_and_is_there_when_one_comes_back(course, page, tmp_path):
    """Typed into the cell of chapter 00 that asks for it. A wrong unit is one sentence, and no traceback."""
    address, folder = course
    (folder / MARK / FILE).unlink(missing_ok=True)  # what another test has measured in this folder would make the guess late
    chapter = "notebooks/00_start_here.ipynb"
    index = next(number for number, cell in enumerate(nbformat.read(folder / chapter, 4).cells) if 'predict("00.card"' in cell.source)

    def cell():
        return page.locator(".jp-Notebook .jp-Cell").nth(index)

    def type_in(guess: str, in_place_of: str) -> None:
        cell().locator(".cm-content").click()
        page.keyboard.press("Control+End")
        for key in ["ArrowLeft"] * len(', "GB")') + ["Backspace"] * len(in_place_of):
            page.keyboard.press(key)
        page.keyboard.insert_text(guess)
        page.keyboard.press("Control+Enter")

    began = time.monotonic()
    lab.open_notebook(page, address, chapter)
    lab.start_cell(page, next(number for number, cell in enumerate(nbformat.read(folder / chapter, 4).cells) if cell.cell_type == "code"))
    type_in('"20 s"', "...")
    said = cell().locator(".jp-OutputArea-output")
    refused = "prediction 00.card: '20 s' is not a number in GB, or with another unit, such as \"300 MB\""
    playwright.expect(said).to_have_text(refused, timeout=60_000)
    type_in('"20000 MB"', '"20 s"')
    playwright.expect(said).to_have_text("Noted: 20.0 GB.", timeout=60_000)
    assert time.monotonic() - began < 120
    page.screenshot(path=tmp_path / "predicted.png")

    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
    lab.open_notebook(page, address, chapter)
    lab.start_cell(page, index)
    playwright.expect(said).to_have_text("Noted: 20.0 GB.", timeout=60_000)
    assert [(event["id"], event["guess"], event["late"]) for event in events(folder)] == [("00.card", 20, False)]


@pytest.mark.alone  # how soon the cell ends
def test_interrupt_stops_a_stuck_launch_within_two_seconds(course, page, survivors, tmp_path):
    address, folder = course
    token = secrets.token_hex(8)
    texts = "import torch\n%load_ext zerocourse\n'ready'", STUCK % token, "'still ' + 'alive'"
    cells = [new_code_cell(text) for text in texts]
    nbformat.write(new_notebook(cells=cells, metadata=KERNEL), folder / "stuck.ipynb")
    lab.open_notebook(page, address, "stuck.ipynb")
    lab.start_cell(page, 0)
    playwright.expect(page.get_by_text("'ready'").last).to_be_visible(timeout=120_000)
    lab.start_cell(page, 1)
    for rank in (0, 1):
        playwright.expect(page.get_by_text(f"[{rank}] waiting for a peer")).to_be_visible(timeout=120_000)
    assert survivors(token, 0), "the ranks should run now"

    pressed = time.monotonic()
    page.locator("[data-command='notebook:interrupt-kernel']").first.click()
    playwright.expect(page.get_by_text("interrupted: all 2 ranks were stopped").first).to_be_visible(timeout=30_000)
    seconds = time.monotonic() - pressed
    page.screenshot(path=tmp_path / "interrupted.png")
    assert seconds < 2, f"the message came after {seconds:.1f} s"
    assert not survivors(token, 1)
    page.wait_for_function(lab.IDLE)
    lab.start_cell(page, 2)
    playwright.expect(page.get_by_text("'still alive'")).to_be_visible(timeout=30_000)
