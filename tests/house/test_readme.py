"""README.zh-CN.md and docs/zh-CN say what the English ones say: the same sections, commands, links, names and numbers, in the same order."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGLISH = ROOT / "README.md"
PAIRS = {"README": (ROOT / "README.md", ROOT / "README.zh-CN.md"),
         **{path.stem: (ROOT / "docs" / path.name, path) for path in sorted((ROOT / "docs" / "zh-CN").glob("*.md"))}}
GUIDES = {"setup", "commands", "comparison", "your_own_code", "less_memory", "parallelism", "checkpoints", "machines", "reading", "classes"}
ONLY_THE_FIRST = {"classes": 2}  # sections that are there in Chinese, too
CODE = re.compile(r"^```.*?^```|^(?: {4}[^\n]+\n)+", re.M | re.S)


def sections(path: Path) -> list[str]:
    """The text before the first heading of level 2, and then one section after the other."""
    return re.split(r"^## ", path.read_text(), flags=re.M)


def facts(section: str) -> dict[str, list[str]]:
    """What a translation does not change. Words may stand in another order, so names and numbers are sorted."""
    prose = CODE.sub("", section)
    links = re.findall(r"\]\(([^)#]+)\)", prose)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    links = [link.replace("../", "").replace("docs/", "").replace("zh-CN/", "") for link in links]
    return {"code": CODE.findall(section), "links": [link for link in links if not link.startswith("README")],
            "names": sorted(re.findall(r"`[^`\n]+`", prose)),
            "numbers": sorted(re.findall(r"\d[\d.,]*\d|\d", re.sub(r"`[^`\n]+`", "", prose))),
            "rows": [len(re.findall(r"^\|", prose, re.M))], "paragraphs": [len(re.findall(r"\n\n(?=\S)", prose))]}


def pairs(name: str) -> list[tuple[str, str]]:
    """The sections of a page, in both languages."""
    english, chinese = map(sections, PAIRS[name])
    return list(zip(english[:ONLY_THE_FIRST.get(name)], chinese, strict=True))


def test_every_guide_is_there_in_chinese():
    assert PAIRS.keys() == {"README", *GUIDES}


@pytest.mark.parametrize("name, number", [(name, number) for name in PAIRS for number in range(len(sections(PAIRS[name][1])))])
def test_the_chinese_one_keeps_in_step(name, number):
    english, chinese = map(facts, pairs(name)[number])
    assert chinese == english, f"{name}, section {number}"


def test_the_readme_is_two_screens():
    """Without its tables: what one reads of it takes two minutes."""
    text = re.sub(r"^(\|.*|!\[.*|<!--.*)$", "", CODE.sub("", ENGLISH.read_text()), flags=re.M)
    assert len(text.split()) < 600, len(text.split())
