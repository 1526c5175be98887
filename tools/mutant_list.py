"""The mutants of a file, or of some lines: those that the operators make, and those of the table. It imports the package."""

import random
import re
import sys
from collections.abc import Iterator

from tools.mutant import HOUSE, Mutant
from tools.mutant_table import BREAKS, TESTS
from tools.mutation_operators import generic_edits
from tools.named_break import files_of, node_ids
from zerocourse.course.museum.breaks import text_after
from zerocourse.course.museum.syntax_place import ModuleText

PLACE = re.compile(r"(?P<file>[\w/.]+?)(\.py)?(:(?P<first>\d+)(-(?P<last>\d+))?)?")


def chosen(places: list[str], sample: int | None) -> list[Mutant]:
    """The mutants of some files, or lines of files; without any, those of the table."""
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
