"""The shape of the house: imports point down, a name is used once, a file is short. Reads the package, runs nothing."""

import ast
import inspect
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from code_tokens import tokens

from zerocourse.course.chapters import NUMBERS, notebook_name, with_exercises

ROOT = Path(__file__).parents[2]
HOUSE = ROOT / "zerocourse"
ROOMS = ("formulas", "layout", "comm", "measure", "memory", "autograd", "init", "zero", "precision", "activations", "offload", "data",
         "models", "kernels", "classics", "parallel", "inference", "rl", "simulation", "planning", "engine", "launch", "course",
         "bench", "commands")  # from the ground
COURSE = ("show", "learner", "trials", "tour", "museum", "checks", "chapters", "grading", "gpu_check")  # its rooms, from the ground
TELLS_OF_ALL = "claims"  # the one chapter that looks into the rooms of others, because it judges what they measured
NOT_YET = {("zero2", "zero1")}  # other chapters' rooms that a chapter still looks into; the list only shrinks
EVERYBODYS = "errors"  # the one file on top of the rooms that all of them may import
LONGEST = 350  # lines of a file
MOST = 12  # files of a room
COURSE_TOKENS = 151_657  # of course/ without its chapters' checks: may only fall, but for a chapter's own, a film, the museum, runs of GPUs or peers
CORE = ("layout/rankmap.py", "zero", "zero/buffers", "zero/passes")  # without `mini`, which is the whole idea once more
CORE_TOKENS = 20_513  # of the core: may only fall, but for expert groups, models that are only asked and mended bugs; noted here when it has
ATTRIBUTES = 15  # that a class of the core sets on itself
PARAMETERS = 14  # of `shard`
CROWDED = {"tests/course/checks/wrong_answers": 26}  # one for each chapter: the files of each may only become fewer


def files(house: Path) -> list[Path]:
    return sorted(path for path in house.rglob("*.py") if "__pycache__" not in path.parts)


def imported(path: Path, house: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, parts of the name without the package's) of every import of the package in a file, also inside a function."""
    package = [house.name, *path.relative_to(house).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            targets = [[*module, alias.name] for alias in node.names]
        else:
            continue
        yield from ((node.lineno, target[1:] or ["__init__"]) for target in targets if target[0] == house.name)


def upward_imports(house: Path, rooms: tuple[str, ...] = ROOMS) -> Iterator[str]:
    """Imports from a room above, or from the top of the package, as "file:line imports room"."""
    for path in files(house):
        here, *inside = path.relative_to(house).parts
        if not inside:
            continue  # the top of the package sees every room
        for line, (room, *_) in imported(path, house):
            if room != EVERYBODYS and (room not in rooms or rooms.index(room) > rooms.index(here)):
                yield f"{path.relative_to(house)}:{line} imports {room}"


def circle(house: Path) -> list[str]:
    """Files that import each other in a circle, also inside a function; not what is imported for annotations alone. Empty: there is none."""
    names = {path.relative_to(house).with_suffix("").parts: path for path in files(house)}
    names |= {name[:-1]: path for name, path in names.items() if name[-1] == "__init__"}

    def at_run_time(path: Path) -> Iterator[Path]:
        blocks = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        for line, target in imported(path, house):
            if not any(block.lineno <= line <= block.end_lineno for block in blocks):
                yield next(names[name] for name in (tuple(target[:end]) for end in range(len(target), -1, -1)) if name in names)

    try:
        TopologicalSorter({path: set(at_run_time(path)) - {path} for path in files(house)}).prepare()
    except CycleError as error:
        return [str(path.relative_to(house)) for path in error.args[1]]
    return []


def wrong_in_the_course(house: Path, topics: Collection[str] = NUMBERS) -> Iterator[str]:
    """Imports inside of course/ from a room above, and from another chapter's room. The table of the chapters is everybody's."""
    for path in files(house / "course"):
        here, *inside = path.relative_to(house / "course").parts
        if not inside:
            continue
        for line, (_, *target) in ((line, target) for line, target in imported(path, house) if target[0] == "course"):
            room, topic = (*target, "")[:2]
            if room == "chapters" and topic not in topics:
                continue
            if COURSE.index(room) > COURSE.index(here):
                yield f"{path.relative_to(house)}:{line} imports {room}"
            elif room == here == "chapters" and topic != inside[0] != TELLS_OF_ALL and (inside[0], topic) not in NOT_YET:
                yield f"{path.relative_to(house)}:{line} imports the chapter {topic}"


def crowds(root: Path) -> dict[str, int]:
    """Rooms of the package and the tests with more than MOST files, and how many they have."""
    rooms = Counter(path.parent.relative_to(root).as_posix() for part in ("zerocourse", "tests") for path in files(root / part)
                    if not path.stem.startswith("__"))
    return {room: count for room, count in rooms.items() if count > MOST}


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


def core(house: Path) -> list[Path]:
    return [path for part in CORE for path in ([house / part] if part.endswith(".py") else sorted((house / part).glob("*.py")))
            if path.name != "mini.py"]


def attributes(text: str) -> dict[str, set[str]]:
    """By class, the attributes that its methods set on `self`, those of its bases apart."""
    found = {}
    for kind in ast.walk(ast.parse(text)):
        if isinstance(kind, ast.ClassDef):
            found[kind.name] = {node.attr for node in ast.walk(kind) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                                and isinstance(node.value, ast.Name) and node.value.id == "self"}
    return found


def test_every_room_has_a_floor():
    found = {path.name for path in HOUSE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert found <= set(ROOMS), f"{sorted(found - set(ROOMS))} have no place in ROOMS"
    assert {path.stem for path in HOUSE.glob("*.py")} == {"__init__", "__main__", "cli", EVERYBODYS}


def test_imports_point_down():
    assert list(upward_imports(HOUSE)) == []


def test_no_files_import_each_other_in_a_circle():
    assert circle(HOUSE) == []


def test_rooms_of_the_course_look_down_and_chapters_not_at_each_other():
    assert {path.name for path in (HOUSE / "course").iterdir() if any(path.glob("*.py"))} == set(COURSE)
    assert {path.stem for path in (HOUSE / "course").glob("*.py")} == {"__init__"}
    assert list(wrong_in_the_course(HOUSE)) == []


def test_no_room_is_crowded():
    """Where one has become smaller, or is gone, write the number down in CROWDED."""
    assert crowds(ROOT) == CROWDED


def test_the_core_is_small():
    count = sum(tokens(path.read_text()) for path in core(HOUSE))
    assert count <= CORE_TOKENS, f"the core has grown to {count} tokens: make it smaller"
    assert count > 0.99 * CORE_TOKENS, f"the core has {count} tokens: write it down above"


def test_a_class_of_the_core_can_be_kept_in_mind():
    assert {name: len(found) for path in core(HOUSE) for name, found in attributes(path.read_text()).items() if len(found) > ATTRIBUTES} == {}
    assert attributes("class A:\n    def f(self):\n        self.a, self.b = 1, 2\n        self.a += self.c") == {"A": {"a", "b"}}


def test_the_core_knows_no_extra():
    lower = [*core(HOUSE), *files(HOUSE / "zero" / "whole"), HOUSE / "zero" / "mini.py"]
    assert [f"{path.relative_to(HOUSE)}:{line}" for path in lower for line, parts in imported(path, HOUSE)
            if parts[:2] == ["zero", "extras"]] == []


def test_shard_has_few_parameters():
    from zerocourse.zero.shard import shard

    assert len(inspect.signature(shard).parameters) <= PARAMETERS


def test_the_apparatus_of_the_course_does_not_grow():
    count = sum(tokens(path.read_text()) for path in files(HOUSE / "course")
                if not ("chapters" in path.parts and "checks" in path.parts))
    assert count <= COURSE_TOKENS, f"course/ without the checks of its chapters has grown to {count} tokens: make it smaller"
    assert count > 0.99 * COURSE_TOKENS, f"course/ without the checks of its chapters has {count} tokens: write it down above"


def test_rooms_of_chapters_and_notebooks_agree_with_the_table_of_numbers():
    rooms = {path.name for path in (HOUSE / "course" / "chapters").iterdir() if any(path.glob("*.py"))}
    assert rooms <= set(NUMBERS) and len(set(NUMBERS.values())) == len(NUMBERS)
    assert {path.name for path in (ROOT / "notebooks").glob("*.ipynb")} == set(map(notebook_name, NUMBERS.values()))
    for folder in ("solutions", "exercises"):
        assert {path.name for path in (ROOT / folder).glob("*.ipynb")} == set(map(notebook_name, with_exercises()))


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


def test_a_circle_is_seen(tmp_path):
    for name, text in {"zero/__init__": "", "zero/a": "from .b import B", "zero/b": "def later():\n    from ..zero import c",
                       "zero/c": "if TYPE_CHECKING:\n    from .a import A"}.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert circle(tmp_path) == []
    (tmp_path / "zero" / "c.py").write_text("from .a import A")
    assert sorted(set(circle(tmp_path))) == ["zero/a.py", "zero/b.py", "zero/c.py"]


def test_names_used_twice_are_seen(tmp_path):
    for room in ("lower", "upper"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("class Plan: pass")
        (tmp_path / room / "verdict.py").write_text("def make():\n    class Inner: pass")
    assert twice(file_names(tmp_path)) == {"verdict.py": ["lower/verdict.py", "upper/verdict.py"]}
    assert set(twice(classes(tmp_path))) == {"Plan", "Inner"}


@pytest.mark.parametrize("path, text, wrong", [
    ("checks/file.py", "from ..chapters.zero2 import x", ["course/checks/file.py:1 imports chapters"]),
    ("checks/file.py", "from .. import chapters\nfrom ..chapters import TOPICS\nfrom ..show import x", []),
    ("chapters/zero1/file.py", "from ..zero2.checks import x", ["course/chapters/zero1/file.py:1 imports the chapter zero2"]),
    ("chapters/zero1/checks/file.py", "from ...zero1.other import x\nfrom ....checks.trace import Trial", []),
    ("chapters/claims/file.py", "from ..zero2 import x", []),
])
def test_a_wrong_import_in_the_course_is_seen(tmp_path, path, text, wrong):
    (tmp_path / "house" / "course" / path).parent.mkdir(parents=True)
    (tmp_path / "house" / "course" / path).write_text(text)
    assert list(wrong_in_the_course(tmp_path / "house")) == wrong


def test_a_crowd_is_seen(tmp_path):
    for number in range(MOST + 1):
        for room in ("zerocourse/full", "tests/full" if number else "tests/dozen"):
            (tmp_path / room).mkdir(parents=True, exist_ok=True)
            (tmp_path / room / f"file{number}.py").touch()
    assert crowds(tmp_path) == {"zerocourse/full": MOST + 1}
