"""Films: what a frame says, what is left where a host takes scripts, styles or HTML away, and the player in a browser."""

import base64
import io
import json
import re
import shutil
from html import escape

import lab
import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook, new_output
from PIL import Image

from zerocourse.course.show.film import Film, Frame
from zerocourse.course.show.pictures import svg
from zerocourse.errors import BadInput

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VS_CODE = ("default-src 'none'; script-src vscode-webview: 'unsafe-inline' 'unsafe-eval'; style-src vscode-webview: 'unsafe-inline'; "
           "img-src vscode-webview: https: http: data:; font-src vscode-webview: https:; connect-src https:; child-src https: data:;")
"""The policy of the page in which VS Code shows the outputs of notebooks."""


def film(**settings) -> Film:
    """Four frames, in each of which a box stands further to the right, above one that is always there."""
    frames, under = [], svg.Drawing(200, 40)
    under.rect(0, 30, 200, 8, "parameters", data={"under": 1})
    for number in range(4):
        frames.append(Frame(svg.Drawing(200, 40), f"The box is at place {number}.", "On its way" if number else "Before"))
        frames[-1].drawing.rect(50 * number, 0, 40, 20, "gradients", data={"at": number})
    return Film("A box moves", frames, under=under, seconds=0.2, **settings)


def test_it_refuses_what_says_nothing():
    with pytest.raises(BadInput, match="'A box moves' has no frames"):
        Film("A box moves", [])
    with pytest.raises(BadInput, match="frame 1 of the film 'A box moves' has no caption"):
        Film("A box moves", [Frame(svg.Drawing(), "It stands."), Frame(svg.Drawing(), "")])
    with pytest.raises(BadInput, match="has 4 frames, and no frame 7"):
        film(keys=[0, 7])


def test_without_scripts_and_styles_the_key_frames_are_left_as_png():
    data, _ = film(keys=[0, 3])._repr_mimebundle_()
    left = re.sub(r"<script.*?</script>| style=\"[^\"]*\"", "", data["text/html"], flags=re.S)
    pictures = re.findall(r'<figure><div><img src="data:image/png;base64,([^"]+)" alt="([^"]+)" width="216"></div>'
                          r"<figcaption>([^<]+)</figcaption></figure>", left)
    assert [(alt, caption) for _, alt, caption in pictures] == [
        (said, said) for said in ("1 of 4: Before. The box is at place 0.", "4 of 4: On its way. The box is at place 3.")]
    assert "<svg" not in data["text/html"] and "svg+xml" not in data["text/html"]
    first, last = (Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB") for png, _, _ in pictures)
    assert first.size == last.size == (2 * 216, 2 * 56)
    ground, white = (0, 114, 178), (255, 255, 255)
    assert first.getpixel((2 * 100, 2 * 42)) == last.getpixel((2 * 100, 2 * 42)) == ground, "what is below every frame"
    assert first.getpixel((2 * 180, 2 * 10)) == white != last.getpixel((2 * 180, 2 * 10)), "the box has moved"


def test_without_html_there_is_one_png_and_the_words():
    data, _ = film(keys=[0, 3])._repr_mimebundle_()
    with Image.open(io.BytesIO(base64.b64decode(data["image/png"]))) as image:
        assert image.size[0] > 2 * 2 * 200, "two frames side by side"
        assert image.info["Description"] == "A box moves, in 4 frames."
    assert data["text/plain"].splitlines() == ["A box moves, in 4 frames.", "1 of 4: Before. The box is at place 0.",
                                               "4 of 4: On its way. The box is at place 3."]


def test_the_script_gets_all_frames_and_what_is_below_them_once():
    html = film(keys=[3], start=2).html()
    inside = json.loads(re.search(r'<script type="application/json">(.*?)</script>', html, re.S)[1])
    assert [re.findall(r'data-at="(\d)"', frame) for frame in inside["frames"]] == [["0"], ["1"], ["2"], ["3"]]
    assert inside["under"].count("data-under") == 1 and inside["start"] == 2 and len(inside["captions"]) == 4


def test_an_animation_has_its_captions():
    moving = film().animation()
    for number in range(4):
        assert f"The box is at place {number}." in moving and f"{number + 1} of 4" in moving
    assert moving.count("<animate") == 4 and moving.count("data-under") == 1


# -- in a browser ------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    with playwright.sync_playwright() as starter:
        chromium = starter.chromium.launch(executable_path=CHROMIUM, args=lab.QUIET_BROWSER)
        yield chromium
        chromium.close()


def opened(browser, tmp_path, body: str, policy: str = "", **how):
    """A page with this body under a content policy, and the errors that it has."""
    head = f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">' if policy else ""
    path, errors = tmp_path / "page.html", []
    path.write_text(f'<!doctype html><html><head><meta charset="utf-8">{head}</head><body>{body}</body></html>')
    page = browser.new_page(**how)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(path.as_uri())
    return page, errors


def at(page) -> str:
    return page.locator("[data-at]").get_attribute("data-at")


@pytest.mark.parametrize("policy", ["", VS_CODE], ids=["a plain page", "VS Code's policy"])
def test_it_plays_steps_and_slides(browser, tmp_path, policy):
    page, errors = opened(browser, tmp_path, film(keys=[0, 3]).html(), policy)
    assert page.locator("figure, img").count() == 0 and page.locator("[data-under]").count() == 1 and at(page) == "0"
    button = {name: page.get_by_role("button", name=name) for name in ("one frame back", "play", "one frame on")}
    assert button["one frame back"].is_disabled()
    button["one frame on"].click()
    assert at(page) == "1" and page.get_by_text("2 of 4: On its way. The box is at place 1.").is_visible()
    page.get_by_role("slider").fill("3")
    assert at(page) == "3" and button["one frame on"].is_disabled()
    button["play"].click()
    page.wait_for_function("document.querySelector('[data-at]').dataset.at == '2'", timeout=5000)
    page.wait_for_function("document.querySelector('[data-at]').dataset.at == '3'", timeout=5000)
    playing = page.get_by_role("button", name="play")
    assert playing.inner_text() == "▶ play", "it stands at its end"
    page.get_by_role("slider").press("Home")
    assert at(page) == "0" and not errors
    page.close()


def test_it_plays_on_a_page_of_nbconvert(browser, tmp_path):
    notebook = new_notebook(cells=[new_code_cell("film", outputs=[new_output("execute_result", film()._repr_mimebundle_()[0], execution_count=1)])])
    body, _ = HTMLExporter(embed_images=True).from_notebook_node(notebook)
    page = browser.new_page()
    page.route(re.compile("^https?:"), lambda route: route.abort())
    (tmp_path / "page.html").write_text(body)
    page.goto((tmp_path / "page.html").as_uri())
    page.get_by_role("button", name="one frame on").click()
    assert at(page) == "1" and page.locator("figure").count() == 0
    page.close()


def test_it_plays_where_scripts_are_run_apart_from_their_place(browser, tmp_path):
    """As VS Code does it: what it shows is put into the page first, and each script runs as a new element that is gone at once."""
    put = f"""<div id="output"></div><script type="text/plain" id="saved">{escape(film().html())}</script><script>
        const output = document.querySelector("#output"), read = document.createElement("textarea");
        read.innerHTML = document.querySelector("#saved").textContent;
        output.innerHTML = read.value;
        for (const script of output.querySelectorAll("script")) {{
            const again = document.createElement("script");
            [again.text, again.type] = [script.innerText, script.type];
            output.appendChild(again).parentNode.removeChild(again);
        }}</script>"""
    page, errors = opened(browser, tmp_path, put, VS_CODE)
    page.get_by_role("button", name="one frame on").click()
    assert at(page) == "1" and not errors
    page.close()


def test_two_films_of_a_page_play_apart_and_each_once(browser, tmp_path):
    page, errors = opened(browser, tmp_path, film().html() + film(start=2).html())
    assert page.get_by_role("slider").count() == 2
    page.get_by_role("button", name="one frame on").last.click()
    assert [each.get_attribute("data-at") for each in page.locator("[data-at]").all()] == ["0", "3"] and not errors
    page.close()


def test_where_scripts_do_not_run_the_key_frames_are_seen(browser, tmp_path):
    page, _ = opened(browser, tmp_path, film(keys=[0, 3]).html(), "default-src 'none'; img-src data:")
    assert page.locator("figure img").count() == 2 and page.locator("button, svg").count() == 0
    assert page.evaluate("[...document.images].every(image => image.naturalWidth === 432)")
    assert [each.inner_text() for each in page.locator("figcaption").all()] == [
        "1 of 4: Before. The box is at place 0.", "4 of 4: On its way. The box is at place 3."]
    page.close()


def test_on_a_phone_words_stay_legible(browser, tmp_path):
    """A picture is never shown at less than 0.85 of its size: a narrow page scrolls it, and does not scroll itself."""
    wide = Film("A wide box", [Frame(svg.Drawing(640, 100), "It is wide.")])
    page, _ = opened(browser, tmp_path, wide.html(), viewport={"width": 360, "height": 640})
    assert page.locator("svg").bounding_box()["width"] >= 0.85 * 640
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.close()
