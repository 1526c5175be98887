"""The mutants of a file, or of some lines: those that the operators make, and those of the table. It imports the package."""

import random
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tools.mutant import HOUSE, ROOT, Mutant
from tools.mutation_operators import generic_edits
from zerocourse.course.museum.breaks import Break, file_after, text_after
from zerocourse.course.museum.syntax_place import ModuleText

PLACE = re.compile(r"(?P<file>[\w/.]+?)(\.py)?(:(?P<first>\d+)(-(?P<last>\d+))?)?")


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
