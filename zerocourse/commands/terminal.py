"""How what a command says stands in a terminal: no wider than its columns, never broken inside a word, in colour where it has some.

A pipe has 80 columns, or as many as the variable COLUMNS says. Colours are for terminals alone, and not where NO_COLOR is set.
"""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

COLOURS = (("32", re.compile(r"(?<=  )fits(?!\w)|✓ \S+ passed|✓")),  # in a table's cell: a sentence may say the word, too
           ("31", re.compile(r"(?<=  )too large(?!\w)|✗ \S+ failed|✗|(?<=  )WRONG")))
EXAMPLE = re.compile(r"  +(zerocourse|torchrun) ")


def width() -> int:
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def fitted(text: str) -> str:
    """Each line within the width, broken at spaces; what goes on is indented. Tables, whose cells have more than one space
    between them, stay as they are."""
    return "\n".join(piece for line in text.split("\n") for piece in _broken(line))


def _broken(line: str) -> list[str]:
    words, wide = line.strip(), width()
    if len(line) <= wide or "  " in words:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2 * words.startswith(("- ", "> ")))
    return textwrap.wrap(line, wide, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
                         replace_whitespace=False)


def paragraphs(text: str) -> str:
    """A help text in which lines of one paragraph were broken elsewhere, broken anew; a command that is too long goes on below."""
    made: list[str] = []
    for line in text.strip().split("\n"):
        if made and line[:1].strip() and made[-1][:1].strip():
            made[-1] += f" {line}"
        elif EXAMPLE.match(line) and len(line) > width():
            made.append(_continued(line))
        else:
            made.append(line)
    return "\n".join(piece for line in made for piece in ([line] if EXAMPLE.match(line) else _broken(line)))


def _continued(command: str) -> str:
    """A command on several lines, which begin with its options."""
    lines = [""]
    for number, part in enumerate(re.split(r" (?=--)", command)):
        if number and len(lines[-1]) + len(part) + 3 > width():
            lines.append(f"      {part}")
        else:
            lines[-1] += " " * (number > 0) + part
    return " \\\n".join(lines)


def table(rows: Sequence[Sequence[str]], align: str, wide: int | None = None) -> list[str]:
    """Lines of a table, the first row its head. What does not fit stands in a second table below, with the first column again;
    where the first column leaves no room for that, each of its cells has a line of its own.

    align: a letter a column, "<" or ">".   wide: columns of the page; None: the terminal's.
    """
    wide = width() if wide is None else wide
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) > wide and widths[0] > wide // 2:
        below = table([["", *row[1:]] for row in cells], "<" + align[1:], wide)
        if len(below) == len(rows):
            return [below[0], *(line for row, values in zip(cells[1:], below[1:], strict=True) for line in (row[0], values))]
    parts: list[list[int]] = [[0]]
    for column in range(1, len(widths)):
        if parts[-1] != [0] and sum(widths[each] + 2 for each in parts[-1]) + widths[column] > wide:
            parts.append([0])
        parts[-1].append(column)
    lines = []
    for number, part in enumerate(parts):
        lines += [""] * (number > 0)
        lines += ["  ".join(f"{row[each]:{align[each]}{widths[each]}}" for each in part).rstrip() for row in cells]
    return lines


def has_colours(stream) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str) -> str:
    """What is well in green and what is not in red, where stdout shows colours."""
    if has_colours(sys.stdout):
        for colour, pattern in COLOURS:
            text = pattern.sub(f"\x1b[{colour}m\\g<0>\x1b[0m", text)
    return text
