"""Breaks the package on purpose, one place at a time, and says which breaks the tests notice.

    python -m tools.mutants offload/disk.py         every break that a generic operator can make in this file, and those of the
                                                    table that are in it, each with the tests that should notice (`mutant_table`)
    python -m tools.mutants disk.py:40-60           those in these lines: the ones that you have just written
    python -m tools.mutants disk.py --sample 30     thirty of them, always the same ones
    python -m tools.mutants                         the table's own breaks, of all files
    python -m tools.mutants ... --list              only names them

A mutant that survives is a sentence of the package that no test asserts: write the test, or delete the sentence; or it changes
nothing that one could see. All work is done in a temporary copy. The exit status is 0 when every mutant was killed, 1 when one
survived, 2 when the table or the command is wrong.
"""

import argparse
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tools.mutation_operators import generic_edits
from zerocourse.course.museum.breaks import Break, file_after, text_after
from zerocourse.course.museum.syntax_place import ModuleText

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "zerocourse"
LIMIT_SECONDS = 100  # of the tests of one mutant, or twice what all take without one: a mutant that hangs is killed, too
PLACE = re.compile(r"(?P<file>[\w/.]+?)(\.py)?(:(?P<first>\d+)(-(?P<last>\d+))?)?")
_clock = count(1)  # seconds of the files' times: Python must never take the bytecode of another mutant for this one's


class Mutant(NamedTuple):
    """A file of the package with a mistake in it.

    file: inside zerocourse/.   text: the whole file.   tests: pytest's node ids inside tests/, of which one must fail.
    """

    name: str
    file: str
    text: str
    tests: tuple[str, ...]


class NamedBreak(NamedTuple):
    """A mistake of the table.   tests: node ids without "test_" and without the folder, such as "disk.py::test_nothing_stays"."""

    name: str
    breaks: tuple[Break, ...]
    tests: tuple[str, ...]

    @property
    def file(self) -> str:
        return self.breaks[0].where.partition(":")[0].replace(".", "/") + ".py"

    def mutant(self, house: Path = HOUSE) -> Mutant:
        """Raises ValueError, in a sentence, where its place is not there any more."""
        try:
            return Mutant(self.name, self.file, file_after(self.breaks, house)[1], node_ids(self.tests))
        except ValueError as error:
            raise ValueError(f"mutant {self.name!r}: {error}") from None


@cache
def files_of(folder: Path) -> dict[str, Path]:
    """The files of a folder and of those in it, by name: no two have the same."""
    return {file.name: file.relative_to(folder) for file in folder.rglob("*.py")}


def node_ids(tests: Iterable[str]) -> tuple[str, ...]:
    """Where pytest finds tests that are named without their folder. Raises ValueError for a file that is not there."""
    found = files_of(ROOT / "tests")
    if gone := [test for test in tests if f"test_{test.partition('::')[0]}" not in found]:
        raise ValueError(f"{', '.join(gone)}: there is no such file of tests")
    return tuple("::".join((str(found[f"test_{file}"]), name)) for file, _, name in (test.partition("::") for test in tests))


def chosen(places: list[str], sample: int | None) -> list[Mutant]:
    """The mutants of some files, or lines of files; without any, those of the table."""
    from tools.mutant_table import BREAKS, TESTS  # which imports this file

    mutants = []
    for place in places:
        mutants += in_file(place, TESTS, sample)
    names = {mutant.file for mutant in mutants}
    return mutants + [broken.mutant() for broken in BREAKS if not places or broken.file in names]


def in_file(place: str, tests_of: dict[str, tuple[str, ...]], sample: int | None) -> Iterator[Mutant]:
    """The generic mutants of a file, or of some of its lines."""
    if not (parts := PLACE.fullmatch(place)) or (name := parts["file"].rpartition("/")[2] + ".py") not in files_of(HOUSE):
        raise ValueError(f"{place!r} is not a file of the package, nor lines of one, as in disk.py:40-60")
    if name not in tests_of:
        raise ValueError(f"which tests should notice a break in {name} is not said: give it a row in tools/mutant_table.py")
    file, tests = files_of(HOUSE)[name], node_ids(tests_of[name])
    first, last = int(parts["first"] or 0), int(parts["last"] or parts["first"] or sys.maxsize)
    source = ModuleText(HOUSE / file)
    made = [each for each in generic_edits(source) if first <= each[1].node.lineno <= last]
    for operator, at, edit in made if sample is None else random.Random(0).sample(made, min(sample, len(made))):
        before, after = (" ".join(code.split())[:40] for code in (source.text[edit.start : edit.stop].decode(), edit.new))
        try:
            text = text_after(source, [edit])
        except ValueError:
            continue  # an operator does not know all of Python's rules
        yield Mutant(f"{at.node.lineno}: {operator}: `{before}` becomes `{after}`", str(file), text, tests)


def write(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, (now := next(_clock), now))


def run(tests: Iterable[str], copy: Path, seconds: float) -> tuple[str, str]:
    """Run tests in the copy: "green", "red" or "hung", and what pytest said. In a fork, which has torch imported already."""
    output = copy / "output"
    pid = os.fork()
    if not pid:
        os.setsid()  # so that it can be killed with all that it has started
        os.chdir(copy)
        os.environ |= {"PYTHONPATH": str(copy), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins take seconds to import
        for descriptor in (1, 2):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC * (descriptor == 1) | os.O_APPEND), descriptor)
        nodes = [f"tests/{test}" for test in dict.fromkeys(tests)]
        os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", *nodes]))
    until, code = time.monotonic() + seconds, None
    try:
        while code is None and time.monotonic() < until:
            done, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else None
            time.sleep(0.02)
    finally:
        if code is None:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return {None: "hung", 0: "green"}.get(code, "red"), output.read_text()


def kill_all(mutants: list[Mutant], copy: Path) -> list[Mutant]:
    """Run them one by one, printing each verdict. Returns the survivors."""
    for part in ("zerocourse", "tests", "tools"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    begun = time.monotonic()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)  # a process with more threads must not fork
    for slow in ("hypothesis", "torch._dynamo"):  # once, and not for every mutant
        import_module(slow)
    colour, said = run((test for mutant in mutants for test in mutant.tests), copy, 20 * LIMIT_SECONDS)
    if colour != "green":
        raise ValueError(f"the tests of the table are {colour} without any mutant:\n{said}")
    survivors, limit = [], max(LIMIT_SECONDS, 2 * (time.monotonic() - begun))
    print(f"without a mutant all is green ({time.monotonic() - begun:.0f} s)", flush=True)
    for mutant in mutants:
        path, start = copy / "zerocourse" / mutant.file, time.monotonic()
        whole = path.read_text()
        write(path, mutant.text)
        colour, _ = run(mutant.tests, copy, limit)
        write(path, whole)
        survivors += [mutant] * (colour == "green")
        verdict = {"green": "SURVIVED", "red": "killed", "hung": "killed (hung)"}[colour]
        print(f"{verdict:13} {time.monotonic() - start:5.1f} s  {mutant.file:28} {mutant.name}", flush=True)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants killed in {time.monotonic() - begun:.0f} s")
    return survivors


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("places", nargs="*", metavar="FILE", help="a file of the package, or lines of it, as in disk.py:40-60")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N generic mutants of each file")
    parser.add_argument("--list", action="store_true", help="only say which there are")
    args = parser.parse_args()
    try:
        mutants = chosen(args.places, args.sample)
        if args.list:
            print("\n".join(f"{mutant.file:28} {mutant.name}" for mutant in mutants))
            return 0
        with tempfile.TemporaryDirectory(prefix="mutants") as copy:
            return bool(kill_all(mutants, Path(copy)))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
