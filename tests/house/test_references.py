"""What a chapter names of others is a link by its identifier, and `docs/references.md` has each of them once."""

import re
from pathlib import Path

import nbformat
import pytest

from zerocourse.course.museum import BUGS

HOUSE = Path(__file__).parents[2]
BOOKS = [*sorted((HOUSE / "notebooks").glob("*.ipynb")), *sorted((HOUSE / "solutions").glob("*.ipynb"))]
LINK = re.compile(r"\[([^\]]*)\]\((https?://[^)\s]+)\)")
ARXIV = re.compile(r"\barXiv:? ?(\d{4}\.\d{4,5})")
ISSUE = re.compile(r"(?<![\w/(])((?:[\w.-]+/)?[A-Za-z][\w.-]*#\d{2,})|(?<=[\s(])#\d{2,}")
ROWS = re.findall(r"^\| \[([^\]]+)\]\((\S+)\) \| ([^|]*?) \| ?([\d, ]*?) ?\|$", (HOUSE / "docs/references.md").read_text(), re.MULTILINE)
ADDRESS = {identifier: address for identifier, address, *_ in ROWS}


def prose(path: Path) -> str:
    return "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")


def faults(text: str) -> list[str]:
    """What is wrong with the references in a text."""
    found = [f"{address} is not in docs/references.md" for _, address in LINK.findall(text) if address not in ADDRESS.values()]
    for words, address in LINK.findall(text):
        for identifier in [*(f"arXiv {number}" for number in ARXIV.findall(words)), *(each for each in ISSUE.findall(words) if each)]:
            found += [f"[{words}] leads to {address}"] * (ADDRESS.get(identifier) != address)
    plain = LINK.sub("", re.sub(r"`[^`]*`", "", text))
    return found + [f"{match.group(0)} is no link" for pattern in (ARXIV, ISSUE) for match in pattern.finditer(plain)]


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_a_chapter_cites_is_a_link_by_its_identifier(path):
    assert faults(prose(path)) == []


def test_each_reference_is_listed_once_with_the_chapters_that_cite_it():
    assert len(ADDRESS) == len({*ADDRESS.values()}) == len(ROWS) > 40
    museum = " ".join(bug.source for bug in BUGS)
    texts = {path: prose(path) for path in BOOKS}
    for identifier, address, title, chapters in ROWS:
        cited = {path.name[:2] for path, text in texts.items() if f"]({address})" in text}
        cited |= {"09"} if identifier in museum.replace(",", "").split() else set()
        assert title and sorted(cited) == chapters.split(", ") * bool(chapters), f"{identifier}: cited in {sorted(cited)}"


def test_the_museum_links_to_the_same_addresses():
    for bug in BUGS:
        linked = re.findall(r'<a href="(\S+)">(\S+)</a>', bug.told("").html)
        assert all(ADDRESS[identifier] == address for address, identifier in linked) and bool(linked) == (bug.source != "common")


def test_what_the_package_names_is_listed():
    sources = "\n".join(path.read_text() for path in (HOUSE / "zerocourse").rglob("*.py"))
    sources = re.sub(r"\s+", " ", sources)
    named = {f"arXiv {number}" for number in ARXIV.findall(sources)} | {each for bug in BUGS for each in bug.source.split(", ")} - {"common"}
    assert named <= set(ADDRESS), named - set(ADDRESS)
    assert not {identifier for identifier, _, _, chapters in ROWS if not chapters} - named, "neither cited nor named"


@pytest.mark.parametrize("text, fault", [
    ("as arXiv 1910.02054 says", "is no link"), ("see DeepSpeed#7967", "is no link"), ("(its issue #4775)", "is no link"),
    ("[ZeRO, arXiv 1910.02054](https://arxiv.org/abs/1910.02055)", "is not in docs/references.md"),
    ("[DeepSpeed#7967](https://github.com/deepspeedai/DeepSpeed/issues/522)", "leads to")])
def test_a_bad_reference_is_found(text, fault):
    assert any(fault in each for each in faults(text))
    assert faults("[ZeRO, arXiv 1910.02054](https://arxiv.org/abs/1910.02054), a `tag#12`, and rank #1") == []
