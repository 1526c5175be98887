"""The shape of the house: imports point down, a name is used once, a file is short. Reads the package, runs nothing."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[1] / "zerocourse"
ROOMS = ("formulas", "layout", "comm", "measure", "init", "zero", "precision", "activations", "offload", "data",
         "models", "kernels", "classics", "parallel", "simulation", "planning", "engine", "launch", "course", "bench",
         "commands")  # from the ground
EVERYBODYS = "errors"  # the one file on top of the rooms that all of them may import
LONGEST = 350  # lines of a file


def files(house: Path) -> list[Path]:
    return sorted(path for path in house.rglob("*.py") if "__pycache__" not in path.parts)


def imported(path: Path, house: Path) -> Iterator[tuple[int, str]]:
    """(line, room or file right under the package) of every import of the package in a file, also inside a function."""
    package = [house.name, *path.relative_to(house).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            # `from .. import x` names what it imports; in `from ..room import x` the room is enough.
            targets = [[*module, alias.name] for alias in node.names]
        else:
            continue
        yield from ((node.lineno, target[1] if len(target) > 1 else "__init__")
                    for target in targets if target[0] == house.name)


def upward_imports(house: Path, rooms: tuple[str, ...] = ROOMS) -> Iterator[str]:
    """Imports from a room above, or from the top of the package, as "file:line imports room"."""
    for path in files(house):
        here, *inside = path.relative_to(house).parts
        if not inside:
            continue  # the top of the package sees every room
        for line, room in imported(path, house):
            if room != EVERYBODYS and (room not in rooms or rooms.index(room) > rooms.index(here)):
                yield f"{path.relative_to(house)}:{line} imports {room}"


def twice(names: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """Names that more than one path has."""
    places = defaultdict(list)
    for name, path in names:
        places[name].append(str(path))
    return {name: found for name, found in places.items() if len(found) > 1}


def classes(house: Path) -> Iterator[tuple[str, Path]]:
    for path in files(house):
        yield from ((node.name, path.relative_to(house)) for node in ast.walk(ast.parse(path.read_text()))
                    if isinstance(node, ast.ClassDef))


def file_names(house: Path) -> Iterator[tuple[str, Path]]:
    for path in files(house):
        if not path.stem.startswith("__"):
            yield path.name, path.relative_to(house)


def test_every_room_has_a_floor():
    found = {path.name for path in HOUSE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert found <= set(ROOMS), f"{sorted(found - set(ROOMS))} have no place in ROOMS"
    assert {path.stem for path in HOUSE.glob("*.py")} == {"__init__", "__main__", "cli", EVERYBODYS}


def test_imports_point_down():
    assert list(upward_imports(HOUSE)) == []


def test_no_two_files_have_one_name():
    assert twice(file_names(HOUSE)) == {}


def test_no_two_classes_have_one_name():
    assert twice(classes(HOUSE)) == {}


def test_files_are_short():
    assert [str(path) for path in files(HOUSE) if len(path.read_text().splitlines()) > LONGEST] == []


@pytest.mark.parametrize("text, wrong", [
    ("from ..upper import x", ["lower/file.py:1 imports upper"]),
    ("from .. import upper, errors", ["lower/file.py:1 imports upper"]),
    ("from .. import shard", ["lower/file.py:1 imports shard"]),
    ("import house.upper.room", ["lower/file.py:1 imports upper"]),
    ("def later():\n    from ..upper.room import x", ["lower/file.py:2 imports upper"]),
    ("from ..cli import main", ["lower/file.py:1 imports cli"]),
    ("from ..errors import BadInput\nfrom . import beside\nfrom .beside import x\nimport torch, math", []),
])
def test_an_import_upwards_is_seen(tmp_path, text, wrong):
    (tmp_path / "house" / "lower").mkdir(parents=True)
    (tmp_path / "house" / "lower" / "file.py").write_text(text)
    assert list(upward_imports(tmp_path / "house", ("lower", "upper"))) == wrong


def test_names_used_twice_are_seen(tmp_path):
    for room in ("lower", "upper"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("class Plan: pass")
        (tmp_path / room / "verdict.py").write_text("def make():\n    class Inner: pass")
    assert twice(file_names(tmp_path)) == {"verdict.py": ["lower/verdict.py", "upper/verdict.py"]}
    assert set(twice(classes(tmp_path))) == {"Plan", "Inner"}
