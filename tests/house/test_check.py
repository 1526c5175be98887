"""What `make check` says of the code, so that `make test` says it too: the linter's rules, and the types."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools import typed

ROOT = Path(__file__).parents[2]


def installed(package: str):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


@installed("ruff")
def test_the_linter_finds_nothing():
    ended = subprocess.run([sys.executable, "-m", "ruff", "check", "--output-format", "concise"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@installed("basedpyright")
@pytest.mark.timeout(600)  # a minute of one core
def test_types_only_get_better():
    assert typed.more(typed.errors([])) == []


def test_an_error_more_is_said_where_it_stands():
    room, most = next(iter(typed.ERRORS.items()))
    said = [f"zerocourse/{room}/file.py:{line} wrong" for line in range(most + 1)]
    assert typed.more({room: said[1:]}) == []
    assert typed.more({room: said}) == [*said, f"{room} has {most + 1} errors of types, and tools/typed.py has {most}: mend what you have added"]
    assert len(typed.more({"layout": ["zerocourse/layout/file.py:1 wrong"]})) == 2


def test_strict_rooms_have_no_errors_and_each_room_is_there():
    strict = {path.removeprefix("zerocourse/") for path in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]["strict"]}
    rooms = {path.name for path in (ROOT / "zerocourse").iterdir()}
    assert strict <= rooms and not strict & typed.ERRORS.keys() and typed.ERRORS.keys() <= rooms
