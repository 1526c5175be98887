"""What a mutant is. It imports nothing of the package: a process that tests a broken copy must not have the whole one."""

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "zerocourse"


class Mutant(NamedTuple):
    """A file of the package with a mistake in it.

    file: inside zerocourse/.   text: the whole file.   tests: pytest's node ids inside tests/, of which one must fail.
    """

    name: str
    file: str
    text: str
    tests: tuple[str, ...]
