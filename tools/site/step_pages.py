"""The films of all chapters as pages of their own, which the player shows two at a time.

They are taken out of the executed chapters, where each shows what real ranks did when the chapter ran; the four stages come first, from the
step that was recorded for the chapters' pictures.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import nbformat

from zerocourse.course.chapters import notebook_name
from zerocourse.course.show.film import page_of
from zerocourse.course.show.pictures.story import story

from ..notebooks import chapters

MARK = '<div data-film=""'
INSIDE = re.compile(r'<script type="application/json">(.*?)</script>', re.S)


class Found(NamedTuple):
    """A film of a chapter. html: as its cell shows it."""

    chapter: str
    title: str
    html: str


def films() -> Iterator[Found]:
    """Each once: chapters show some of the stages, too."""
    seen = set()
    for film in [*stages(), *of_chapters()]:
        if film.title not in seen:
            seen.add(film.title)
            yield film


def stages() -> Iterator[Found]:
    for stage in range(4):
        yield Found(notebook_name(4 + stage), story(stage).title, story(stage).html())


def of_chapters() -> Iterator[Found]:
    for path in chapters():
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", ()):
                html = output.get("data", {}).get("text/html", "")
                if html.startswith(MARK) and (inside := INSIDE.search(html)):
                    yield Found(path.stem, json.loads(inside[1])["title"], html)


def write_pages(folder: Path) -> None:
    """A page for each film, and `films.json`, which lists them."""
    folder.mkdir()
    listed = []
    for number, film in enumerate(films()):
        name = f"{film.chapter[:2]}_{number}.html"
        (folder / name).write_text(page_of(film.title, film.html))
        listed.append({"file": name, "title": film.title, "chapter": film.chapter})
    (folder / "films.json").write_text(json.dumps(listed, indent=1))
