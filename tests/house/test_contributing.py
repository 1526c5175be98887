"""What CONTRIBUTING says is so: its commands, files, rooms and numbers; and the lists of what to read (`docs/reading.md`) are as long as they say."""

import re
from pathlib import Path

import pytest
from code_tokens import tokens
from test_house import LONGEST, MOST, ROOMS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
MOST_WORDS = 1100  # two pages
LONG_TEXTS = sorted((ROOT / "docs").glob("*.md"))
READ = {"In half an hour": 2_000, "In an evening": 17_750}  # its lists: tokens that may be read in that time
NUMBERS = {"a dozen": 12}
WRITTEN = ("output/", "submitted/", "learning/")  # folders that commands and classes make


def code(text: str) -> list[str]:
    """Inline code, and lines of blocks of commands."""
    return re.findall(r"`([^`\n]+)`", text) + re.findall(r"^    (\S[^#\n]*)", text, re.M)


def paths(text: str) -> set[str]:
    """What looks like a file or a folder of ours: it has a slash or a known ending, and no argument."""
    return {word for each in code(text) for word in [each.strip()]
            if not word.startswith(WRITTEN) and re.fullmatch(r"[\w.][\w.\-/]*(?:/|\.(?:py|md|toml|txt|yml|ipynb))", word)}


def is_there(path: str, beside: Path = ROOT) -> bool:
    return any(any(base.glob(path.replace("TOPIC", "*"))) for base in (beside, ROOT, ROOT / "zerocourse"))


def listed(readme: str, heading: str) -> list[Path]:
    """The files of one of the lists under "Read the code", each once."""
    part = readme.partition("## Read the code")[2].partition("\n## ")[0]
    text = re.search(rf"\*\*{heading}.*?(?=\n\*\*|\Z)", part, re.S)[0]
    return list(dict.fromkeys(ROOT / name for name in re.findall(r"`(zerocourse/[\w/]+\.py)`", text)))


def test_it_is_short():
    assert len(TEXT.split()) <= MOST_WORDS


@pytest.mark.parametrize("file", [ROOT / "CONTRIBUTING.md", *LONG_TEXTS], ids=lambda file: file.name)
def test_files_and_links_are_there(file):
    text = file.read_text()
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith(("http", "#"))}
    assert {path for path in paths(text) | links if not is_there(path, file.parent)} == set()


@pytest.mark.parametrize("file", [ROOT / "CONTRIBUTING.md", *LONG_TEXTS], ids=lambda file: file.name)
def test_commands_are_there(file):
    commands = code(file.read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert {match[1] for each in commands if (match := re.match(r"make ([a-z-]+)", each))} <= targets
    modules = {match[1] for each in commands if (match := re.search(r"python -m (tools\.\w+)", each))}
    assert {module for module in modules if not (ROOT / module.replace(".", "/")).with_suffix(".py").exists()} == set()


def test_rooms_stand_in_their_order():
    chain = next(line for line in TEXT.splitlines() if line.startswith("`formulas` →"))
    assert tuple(re.findall(r"`(\w+)`", chain)) == ROOMS


def test_numbers_are_those_of_the_tests():
    assert f"at most {LONGEST} lines" in TEXT
    assert MOST == NUMBERS[re.search(r"a room holds at most (\w+ \w+) files", TEXT)[1]]


def test_what_is_taken_is_used():
    """Each line says what was decided, and nothing declined is a dependency."""
    lines = re.findall(r"^- \*\*(.+?): (taken|declined)\.?\*\*", TEXT.partition("## Libraries: taken and declined")[2], re.M)
    assert len(lines) == TEXT.partition("## Libraries: taken and declined")[2].count("\n- ")
    needed = (ROOT / "pyproject.toml").read_text()
    for name, decision in lines:
        for package in re.findall(r"[a-z-]{4,}", name.replace(" and ", " ")):
            if decision == "declined":
                assert f'"{package}' not in needed, f"{package} is declined, and pyproject.toml has it"


@pytest.mark.parametrize("heading, most", READ.items())
def test_what_is_to_be_read_is_there_and_can_be_read_in_that_time(heading, most):
    files = listed((ROOT / "docs/reading.md").read_text(), heading)
    assert files and all(file.exists() for file in files), [str(file) for file in files if not file.exists()]
    assert sum(tokens(file.read_text()) for file in files) <= most
