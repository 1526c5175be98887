"""A mistake of the table of mutants, and the tests that should notice it."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tools.mutant import HOUSE, ROOT, Mutant
from zerocourse.course.museum.breaks import Break, file_after


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
