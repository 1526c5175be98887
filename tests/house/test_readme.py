"""README.zh-CN.md says what README.md says: the same sections, commands, links, names and numbers, in the same order."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGLISH, CHINESE = (ROOT / name for name in ("README.md", "README.zh-CN.md"))
CODE = re.compile(r"^```.*?^```|^(?: {4}[^\n]+\n)+", re.M | re.S)


def sections(path: Path) -> list[str]:
    """The text before the first heading of level 2, and then one section after the other."""
    return re.split(r"^## ", path.read_text(), flags=re.M)


def facts(section: str) -> dict[str, list[str]]:
    """What a translation does not change. Words may stand in another order, so names and numbers are sorted."""
    prose = CODE.sub("", section)
    links = re.findall(r"\]\(([^)#]+)\)", prose)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    return {"code": CODE.findall(section), "links": [link for link in links if not link.startswith("README")],
            "names": sorted(re.findall(r"`[^`\n]+`", prose)),
            "numbers": sorted(re.findall(r"\d[\d.,]*\d|\d", re.sub(r"`[^`\n]+`", "", prose))),
            "rows": [len(re.findall(r"^\|", prose, re.M))], "paragraphs": [len(re.findall(r"\n\n(?=\S)", prose))]}


def test_both_have_the_same_sections():
    assert len(sections(ENGLISH)) == len(sections(CHINESE))


@pytest.mark.parametrize("number", range(len(sections(ENGLISH))))
@pytest.mark.parametrize("kind", ("code", "links", "names", "numbers", "rows", "paragraphs"))
def test_the_chinese_one_keeps_in_step(number, kind):
    english, chinese = (facts(sections(path)[number])[kind] for path in (ENGLISH, CHINESE))
    assert chinese == english, f"section {number}, {sections(ENGLISH)[number].splitlines()[0]!r}"
