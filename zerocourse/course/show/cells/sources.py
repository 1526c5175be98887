"""The package's own source, and what one stage changes from another, side by side."""

import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from difflib import SequenceMatcher, unified_diff
from html import escape
from pathlib import Path

from ....errors import BadInput
from .shown import Shown
from .tables import table

ROOT = Path(__file__).parents[4]
# Colours on their own ground, also in a dark theme, whose rules for <code> would make its letters white. (JupyterLab takes
# `inherit` away where it does not trust.) A line is broken nowhere, or, in one of two columns, at spaces: never inside a word.
CODE = "margin:0; padding:0 6px; text-align:left; line-height:1.3; color:#222222; background-color:#f8f8f8; overflow-x:auto"
COLUMN = "vertical-align:top; text-align:left; padding:0; background-color:#f8f8f8"  # of a table, also where it has no line
WHOLE_LINES, AT_SPACES = ("white-space:pre", "white-space:pre-wrap; word-break:normal; overflow-wrap:normal")
REMOVED, ADDED = "#ffd7d5", "#ccffd8"


def source(*things: Callable | type, folded: str = "") -> Shown:
    """The source of a function or class of the package, or of several, as it is in its file.

    folded: words on which one clicks to see it; none: it is open.
    """
    heads = [f"{file_of(thing)}: {thing.__qualname__}" for thing in things]
    codes = list(map(code_of, things))
    html = "".join(f"<div><code>{escape(head)}</code></div>{pre(coloured(code))}" for head, code in zip(heads, codes, strict=True))
    return Shown("\n\n".join(f"# {head}\n\n{code}" for head, code in zip(heads, codes, strict=True)), fold(html, folded))


def fold(html: str, words: str) -> str:
    """HTML that is seen after a click on the words; without words, the HTML as it is."""
    return f"<details><summary>{escape(words)}</summary>{html}</details>" if words else html


def difference(before: type, after: type, only: Sequence[str] | None = None, folded: str = "",
               rows: Sequence[str] | None = None) -> Shown:
    """What class `after` changes from class `before`: a table of the changes, then the code of both, side by side.

    A stage is a class with functions in its `ops`, such as `ops.reduce`. only: the names whose code is shown.
    folded: words on which one clicks to see the code. rows: the names that the open table has, in this order; the
    other changes are in a table below it that is folded.
    """
    changed = list(changes(before, after))
    unknown = {*(only or ()), *(rows or ())} - {name for name, _, _ in changed}
    if unknown:
        raise BadInput(f"{after.__name__} does not change {', '.join(sorted(unknown))} of {before.__name__}; "
                       f"it changes {', '.join(name for name, _, _ in changed)}")
    lines = {name: {"what changes": name, before.__name__: short(name, old), after.__name__: short(name, new)}
             for name, old, new in changed}
    heads = table([lines.pop(name) for name in rows or list(lines)])
    text, opened, html = [heads.text], heads.html, []
    if lines:
        others = table(list(lines.values()))
        text += ["", "and besides", "", others.text]
        opened += fold(others.html, f"{len(lines)} more that change{'s' * (len(lines) == 1)}")
    for name, old, new in changed:
        if not callable(getattr(new, "fget", new)) or (only is not None and name not in only):
            continue
        left, right = (code_of(one).splitlines() if callable(getattr(one, "fget", one)) else [] for one in (old, new))
        titles = file_of(old) if left else f"not in {before.__name__}", file_of(new)
        text += ["", name, *unified_diff(left, right, *titles, n=99, lineterm="")]
        html.append(f"<div><b><code>{escape(name)}</code></b></div>" + side_by_side(left, right, *titles))
    return Shown("\n".join(text), opened + fold("".join(html), folded))


def changes(before: type, after: type) -> Iterator[tuple[str, object, object]]:
    """(name, old, new) of what `after` defines, old None where it is new; a dataclass, as `StageOps` is, field by field."""
    for name, new in vars(after).items():
        old = getattr(before, name, None)
        if name.startswith("__") and name != "__init__":
            continue
        if is_dataclass(new) and type(old) is type(new):
            for field in (field.name for field in fields(new)):
                if getattr(old, field) is not getattr(new, field):
                    yield f"{name}.{field}", getattr(old, field), getattr(new, field)
        elif old != new:
            yield name, old, new


def short(name: str, value: object) -> str:
    """A value in a table: a function by its name, or, where both have that name, by the file it is in."""
    if value is None:
        return "–"
    function = getattr(value, "fget", value)
    known_as = getattr(function, "__name__", repr(value))
    if known_as == "<lambda>":
        return "nothing"
    return f"in {file_of(value).split('/')[-1]}" if known_as == name else known_as


def code_of(thing) -> str:
    function = getattr(thing, "fget", thing)
    if getattr(function, "__name__", "") == "<lambda>":
        return ""
    return textwrap.dedent(inspect.getsource(function)).rstrip()


def file_of(thing) -> str:
    """Where it stands, from the checkout's root, or the name of its module when it is not this package's."""
    function = getattr(thing, "fget", thing)
    path = Path(inspect.getsourcefile(function))
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else function.__module__


def coloured(code: str) -> list[str]:
    """The lines of `code` as HTML, each complete in itself."""
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer
    except ImportError:  # pygments comes with IPython
        return [escape(line) for line in code.splitlines()]
    html = highlight(code, PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True, noclasses=True))
    return html.removesuffix("\n").split("\n")


def pre(lines: Sequence[str], breaks: str = WHOLE_LINES) -> str:
    """Lines as they stand, in the letters of code, which nbconvert's pages give to <code> alone."""
    return (f'<pre style="{CODE}; {breaks}"><code style="padding:0; color:#222222; background-color:transparent; {breaks}">'
            + ("\n".join(lines) or " ") + "</code></pre>")


def side_by_side(left: Sequence[str], right: Sequence[str], left_title: str, right_title: str) -> str:
    """Two texts as a table of two columns: lines that are in both stand beside each other.

    The others begin with − or +, and are coloured as well where the host keeps colours.
    """
    shown_left, shown_right = coloured("\n".join(left)), coloured("\n".join(right))

    def cell(lines, sign=" ", color=""):
        marked = [f"{sign} {line}".rstrip() for line in lines]
        if color:
            marked = [f'<span style="background-color:{color}">{line}</span>' for line in marked]
        return f'<td style="{COLUMN}">{pre(marked, AT_SPACES)}</td>'

    def head(title):
        return f'<th style="text-align:left"><code>{escape(title)}</code></th>'

    rows = [head(left_title) + head(right_title)]
    for what, i, j, k, m in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        # A row for each run of lines: where a narrow page breaks one, the next stay side by side.
        old, new = ((), ()) if what == "equal" else (("−", REMOVED), ("+", ADDED))
        rows.append(cell(shown_left[i:j], *old) + cell(shown_right[k:m], *new))
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"
