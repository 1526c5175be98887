"""A table of rows, as text and as HTML."""

import re
from collections.abc import Mapping, Sequence
from html import escape

from ....errors import BadInput
from .shown import Shown

NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?( ?[A-Za-z%×/]+)*")


def table(rows: Sequence[Mapping[str, object]], caption: str = "") -> Shown:
    """Rows as dictionaries with the same keys; integers get thousands separators, numbers are aligned right."""
    if not rows or any(list(row) != list(rows[0]) for row in rows):
        raise BadInput("rows must be dictionaries with the same keys in the same order, and at least one")
    head = list(map(str, rows[0]))
    body = [[f"{cell:,}" if type(cell) is int else str(cell) for cell in row.values()] for row in rows]
    columns = list(zip(*body, strict=True))
    right = [all(NUMBER.fullmatch(cell) or not cell.strip("–-") for cell in column) for column in columns]
    widths = [max(map(len, [name, *column])) for name, column in zip(head, columns, strict=True)]

    def line(cells):
        return "  ".join(cell.rjust(width) if numbers else cell.ljust(width)
                         for cell, width, numbers in zip(cells, widths, right, strict=True)).rstrip()

    def row_of(tag, cells):
        return "<tr>" + "".join(f'<{tag} style="text-align:{"right" if numbers else "left"}">{escape(cell)}</{tag}>'
                                for cell, numbers in zip(cells, right, strict=True)) + "</tr>"

    text = "\n".join([*([caption, ""] if caption else []), line(head), line(["-" * width for width in widths]),
                      *map(line, body)])
    title = f"<div>{escape(caption)}</div>" if caption else ""  # a <caption> would be no wider than its table
    return Shown(text, f"{title}<table><thead>{row_of('th', head)}</thead><tbody>"
                 + "".join(row_of("td", cells) for cells in body) + "</tbody></table>")
