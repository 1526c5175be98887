"""Sentences between pictures, in which the numbers of a cell are filled in."""

from html import escape
from string import Formatter

from ....errors import BadInput
from .shown import Shown


def sentence(text: str) -> Shown:
    """A line of text between pictures."""
    return Shown(text, f"<div>{escape(text)}</div>")


def says(text: str, **values: object) -> Shown:
    """A paragraph of Markdown in which `{name}` and `{name:,}` are filled in, as in `str.format`.

    What a chapter concludes from its numbers is said by the cell that has them, so that words and numbers agree.
    Raises BadInput for a name without a value, and for a value that the text does not use.
    """
    names = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
    if names != set(values):
        raise BadInput(f"the text has {sorted(names)} to fill in, and the values given are {sorted(values)}: "
                       "give each name one value, as a keyword")
    words = text.format(**values)
    return Shown(words, markdown=words)
