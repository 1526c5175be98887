"""The site: built without a warning, every link leads somewhere, nobody else is asked, and its pages say what the commands say."""

import json
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tools.notebooks import ROOT, chapters
from tools.site import links, teacher_pages, web_packages
from tools.site.__main__ import EXAMPLE, html
from tools.site.buttons import add_kaggle
from zerocourse.course.chapters import notebook_name, with_exercises

playwright = pytest.importorskip("playwright.sync_api")

from tools.site.book import served  # noqa: E402  it imports playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SECONDS = 240  # for the build, on a busy machine
MIXTRAL = {"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "vocab_size": 256, "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 128}
PRINTED = ["docs/glossary", "docs/pages/player"]
WRONG = '{\n  "train_batch_size": 8,\n  "zero_optimization": {"stage": 4},\n  "fp17": {}\n}'

pytestmark = pytest.mark.timeout(SECONDS)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if web_packages.missing():
        try:
            web_packages.fetch()
        except subprocess.CalledProcessError:
            pytest.skip("npm gives no Pyodide here")
    return html(tmp_path_factory.mktemp("site"))  # exits where Sphinx warns, a link is broken, or another host is asked


def said_by(*words: str, cwd=ROOT) -> tuple[int, str]:
    """(status, what a command writes)"""
    ended = subprocess.run([sys.executable, "-m", "zerocourse", *words], cwd=cwd, capture_output=True, text=True, timeout=60,
                           env={"COLUMNS": "120", "PATH": "", "PYTHONPATH": str(ROOT)})
    return ended.returncode, ended.stdout + ended.stderr


def test_all_of_it_is_there(site):
    wanted = {f"notebooks/{path.stem}.html" for path in chapters()} | {f"docs/teaching/{path.stem}.html" for path in chapters()}
    wanted |= {f"_static/slides/{path.stem}.html" for path in chapters()}
    wanted |= {f"exercises/{notebook_name(number).removesuffix('.ipynb')}.html" for number in with_exercises()}
    wanted |= {f"docs/{path.stem}.html" for path in (ROOT / "docs").glob("*.md")} | {"index.html", "search.html", "api/zero.html"}
    there = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert wanted <= there, wanted - there
    assert "### BEGIN SOLUTION" not in "".join((site / "exercises" / f"{notebook_name(n)[:-6]}.html").read_text() for n in with_exercises())


def test_a_term_is_linked_where_a_chapter_uses_it_first(site):
    text = (site / "notebooks" / "07_zero3.html").read_text()
    for term in ("stage", "rank", "autograd"):
        assert len(re.findall(rf'href="\.\./docs/glossary\.html#term-{term}"', text)) == 1
    begin = text.rindex(">What stage 2 leaves whole<")
    assert text.index("#term-autograd") < begin, "in the aims, which come first"


def test_a_teacher_is_told_the_aims_the_questions_and_the_mistakes():
    page = teacher_pages.page(ROOT / "notebooks" / "06_zero2.ipynb", [each for each in teacher_pages.exercises().values() if each.chapter == 6])
    assert "- say what accumulation costs in stage 2" in page
    assert "- In which order are the hooks of each model called" in page
    assert "**6.1 When a bucket closes** ●○○ (12 minutes)\n\n- *across units*: You filled a bucket across the end of a unit" in page


def test_notebooks_alone_have_a_button_for_kaggle_and_only_on_a_forge():
    def buttons_of(page: str, **options) -> list[str]:
        context = {}
        add_kaggle(SimpleNamespace(config=SimpleNamespace(html_theme_options=options)), page, "page.html", context, None)
        return [each["url"] for each in context.get("header_buttons", [])]

    forge = {"repository_url": "https://github.com/somebody/zerocourse"}
    assert buttons_of("notebooks/05_zero1", **forge) == [
        "https://www.kaggle.com/kernels/welcome?src=https://github.com/somebody/zerocourse/blob/main/notebooks/05_zero1.ipynb"]
    assert not buttons_of("docs/setup", **forge) and not buttons_of("notebooks/05_zero1")


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#here">b</a><a href="b.html#gone">b</a><img src="c.png"><script src="https://x.org/y.js"></script>')
    (tmp_path / "b.html").write_text('<p id="here"></p><a href="https://x.org">elsewhere</a><a href="a.html">a</a>')
    assert list(links.broken(tmp_path)) == ["a.html: b.html#gone", "a.html: c.png"]
    assert list(links.asked_of_others(tmp_path)) == ["a.html: //x.org/y.js"]


@pytest.fixture(scope="module")
def browser(site):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    with served(site) as address, playwright.sync_playwright() as starter:
        chromium = starter.chromium.launch(executable_path=CHROMIUM)
        yield address, chromium
        chromium.close()


@pytest.fixture
def page(browser):
    address, chromium = browser
    page, asked, broken = chromium.new_page(viewport={"width": 1400, "height": 1000}), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: broken.append(str(error)))
    yield page, address
    page.close()
    assert not broken and {url for url in asked if not url.startswith((address, "data:", "blob:"))} == set()


def answered(page, selector: str, begins: str) -> None:
    """Wait until the text of an element begins so, or is it."""
    try:
        page.wait_for_function("([where, begins]) => document.querySelector(where).textContent.trim().startsWith(begins)",
                               arg=[selector, begins.strip()], timeout=60_000)
    except playwright.TimeoutError:
        assert page.locator(selector).text_content() == begins


def test_what_fits_says_what_the_command_says(page, tmp_path):
    page, address = page
    page.goto(f"{address}/docs/pages/fits.html")
    answered(page, "#answer", said_by("memory", "--params", "7e9")[1])
    assert page.locator("#picture .bar").all_text_contents() == [
        "data parallel: 112 GB, too large", "ZeRO-1: 38.5 GB, too large", "ZeRO-2: 26.2 GB, too large", "ZeRO-3: 14.0 GB, fits"]
    page.locator("[name=what]").fill("gpt2-xl")
    page.locator("[name=ranks]").fill("3")
    page.locator("[name=seq]").fill("512")
    answered(page, "#answer", said_by("memory", "--model", "gpt2-xl", "--ranks", "3", "--seq", "512")[1])
    page.locator("[name=ranks]").fill("none")
    status, sentence = said_by("memory", "--model", "gpt2-xl", "--ranks", "none")
    assert status == 2
    answered(page, "#answer", sentence)

    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    page.locator("[name=ranks]").fill("8")
    page.locator("[name=seq]").fill("")
    page.locator("#file").set_input_files(tmp_path / "config.json")
    shown = said_by("memory", "--model", "config.json", cwd=tmp_path)[1]
    answered(page, "#answer", shown)
    link = page.evaluate("location.href")  # the file is in the address
    page.goto("about:blank")
    page.goto(link)
    answered(page, "#answer", shown)


def test_an_answer_is_sent_by_its_address(page):
    page, address = page
    page.goto(f"{address}/docs/pages/fits.html#mode=places&what=7e9&ranks=1&card=24GB&host=64GB&disk=1TB")
    asked = ["memory", "--device", "24GB", "--host", "64GB", "--disk", "1TB", "--params", "7e9", "--ranks", "1"]
    answered(page, "#answer", said_by(*asked)[1])
    page.locator("[name=host]").fill("200GB")
    asked[4] = "200GB"
    answered(page, "#answer", said_by(*asked)[1])
    link = page.evaluate("location.href")
    page.goto("about:blank")
    page.goto(link)
    answered(page, "#answer", said_by(*asked)[1])


def test_the_doctor_says_what_the_command_says(page, tmp_path):
    page, address = page
    page.goto(f"{address}/docs/pages/doctor.html")
    answered(page, "#problems", "Nothing is wrong")
    (tmp_path / "ds_config.json").write_text(WRONG)
    status, problems = said_by("config", "ds_config.json", "--trainer", cwd=tmp_path)
    page.locator("[name=text]").fill(WRONG)
    answered(page, "#problems", "line")
    found = [re.sub(r"^line (\d+) (.*)$", r"\2 (ds_config.json, line \1)", each) for each in page.locator("#problems li").all_text_contents()]
    assert status == 2 and found == [line.removeprefix("zerocourse config: ") for line in problems.splitlines()] and len(found) == 2
    page.locator("#problems button").nth(1).click()
    assert page.evaluate("(() => { const t = document.querySelector('textarea'); return t.value.slice(t.selectionStart, t.selectionEnd); })()") \
        in WRONG.splitlines()

    (tmp_path / "ds_config.json").write_text(json.dumps(EXAMPLE, indent=1))
    page.locator("[name=text]").fill(json.dumps(EXAMPLE, indent=1))
    answered(page, "#problems", "Nothing is wrong")
    keys = json.loads(said_by("config", "ds_config.json", "--json", cwd=tmp_path)[1])["keys"]
    assert page.locator("#keys tbody tr").count() == len(keys) > 3
    page.wait_for_function("() => document.querySelector('#total').textContent.startsWith('In all')")
    assert keys[0]["effect"] in page.locator("#keys tbody tr").first.text_content()


def test_the_schema_is_there_for_editors(site):
    assert json.loads((site / "_static" / "ds_config.schema.json").read_text()) == json.loads(said_by("config", "--schema")[1])


def test_two_films_stand_side_by_side(page):
    page, address = page
    page.goto(f"{address}/docs/pages/player.html")
    page.wait_for_selector("iframe")
    left, right = page.frame_locator("iframe >> nth=0"), page.frame_locator("iframe >> nth=1")
    assert "ZeRO-2" in left.locator("b").first.text_content() and "ZeRO-3" in right.locator("b").first.text_content()
    before = left.locator("body").inner_text()
    left.locator("button").nth(2).click()  # back, play, step
    page.wait_for_function("(before) => document.querySelector('iframe').contentDocument.body.innerText !== before", arg=before)
    titles = page.locator("select").first.locator("option").all_text_contents()
    assert len(titles) == len(set(titles)) > 20


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_scrolling_sideways(site, browser, scheme):
    address, chromium = browser
    page, too_wide = chromium.new_page(viewport={"width": 400, "height": 800}, color_scheme=scheme), []
    for name in sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if "_static" not in path.parts):
        page.goto(f"{address}/{name}", wait_until="load")
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        too_wide += [f"{name}: {over} pixels"] if over > 0 else []
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).every((part) => part < 100)")
        assert dark == (scheme == "dark"), name
    page.close()
    assert too_wide == []


def test_slides_turn(page):
    page, address = page
    page.goto(f"{address}/_static/slides/06_zero2.html")
    page.wait_for_function("() => window.Reveal && Reveal.isReady()")
    assert "ZeRO-2" in page.locator("section.present h1").text_content()
    page.keyboard.press("Space")
    assert "When is a gradient complete?" in page.locator("section.present h2").first.text_content()


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_the_book_is_printed_with_an_outline(site, tmp_path):
    from pypdf import PdfReader

    printing = f"from pathlib import Path\nfrom tools.site.book import print_it\nprint_it(Path({str(site)!r}), Path('book.pdf'), {PRINTED})"
    subprocess.run([sys.executable, "-c", printing], cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}, check=True)
    book = PdfReader(tmp_path / "book.pdf")
    assert [each.title for each in book.outline] == ["Glossary", "The step player"]
    text = "".join(page.extract_text() for page in book.pages)
    assert "master weights" in text and "Search" not in text
