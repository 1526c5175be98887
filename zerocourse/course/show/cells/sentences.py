"""Sentences between pictures, in which the numbers of a cell are filled in."""

import sys
from html import escape
from string import Formatter

from ....errors import BadInput, UntrueSentence
from .conditions import condition_text
from .shown import Shown


def sentence(text: str) -> Shown:
    """A line of text between pictures."""
    return Shown(text, f"<div>{escape(text)}</div>")


def says(text: str, *, must: object = True, **values: object) -> Shown:
    """A paragraph of Markdown in which `{name}` and `{name:,}` are filled in, as in `str.format`.

    What a chapter concludes from its numbers is said by the cell that has them, so that words and numbers agree.
    must: what has to be so for the words to be true, `must=with_stage_2 < with_stage_1` where they say "less". Numbers that are
        filled in are always right, and what is said of them is not; so a sentence has no words of the kind "equal" if ... else "NOT equal".
    Raises BadInput for a name without a value, and for a value that the text does not use; UntrueSentence where `must` is not so.
    """
    names = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
    if names != set(values):
        raise BadInput(f"the text has {sorted(names)} to fill in, and the values given are {sorted(values)}: "
                       "give each name one value, as a keyword")
    words = text.format(**values)
    if not must:
        condition = condition_text(sys._getframe(1), "must")
        raise UntrueSentence(f"this sentence is not true of the numbers of its cell: “{' '.join(words.split())}” {condition}")
    return Shown(words, markdown=words)
