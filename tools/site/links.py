"""Follows every link between the pages of a built site, and to a place within one."""

import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The places that a page names, and where it leads."""

    def __init__(self, text: str):
        super().__init__()
        self.places, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.places |= {given[key] for key in ("id", "name") if given.get(key)}
        self.links += [given[key] for key in ("href", "src") if given.get(key)]


@cache
def read(path: Path) -> Page:
    return Page(path.read_text())


def broken(folder: Path) -> Iterator[str]:
    """"page: link" for each link inside that leads nowhere."""
    for path in sorted(folder.rglob("*.html")):
        if "_static" in path.relative_to(folder).parts:
            continue
        for link in read(path).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            if target.is_dir():
                target /= "index.html"
            if not target.exists() or (target.suffix == ".html" and parts.fragment and unquote(parts.fragment) not in read(target).places):
                yield f"{path.relative_to(folder)}: {link}"


def asked_of_others(folder: Path) -> Iterator[str]:
    """"page: address" for each script, style, font or picture that a page would fetch from another host."""
    for path in sorted(folder.rglob("*.html")):
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", path.read_text()):
            if (found := re.search(r"""(?:src|href)=["'](?:https?:)?(//[^"']+)""", tag)) and "canonical" not in tag:
                yield f"{path.relative_to(folder)}: {found[1]}"
