"""A mistake that is planted on purpose: a place in the package's own code, and what stands there instead."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

from .syntax_place import ModuleText, SyntaxPlace, find

HOUSE = Path(__file__).parents[2]
FIELD = re.compile(r"\{([a-z]+)\}")
LOOSE = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda, ast.NamedExpr)
BINDING = (*LOOSE[:5], ast.Attribute, ast.Subscript, ast.Starred, ast.Call)


class Edit(NamedTuple):
    """The bytes `start` to `stop` of a file become `new`."""

    start: int
    stop: int
    new: str


@dataclass(frozen=True)
class Break:
    """One change of the package's code.

    where: a module of the package, or a class or function in it, as "comm.group:Comm.all_gather".
    path: from there to one node of the syntax tree, in the steps that `syntax_place` has.
    new: the code that stands there instead; or a function of the place, such as `drop`. {old} is what was there, and {value},
        {test} ... what was in this field of the node.
    """

    where: str
    path: str
    new: str | Callable[[SyntaxPlace], Edit]

    def place(self, house: Path = HOUSE) -> SyntaxPlace:
        """house: the folder of the package, or of a copy. Raises ValueError, in a sentence, where the place is not there."""
        return find(house, self.where, self.path)

    def edit(self, house: Path = HOUSE) -> Edit:
        place = self.place(house)
        return self.new(place) if callable(self.new) else become(place, FIELD.sub(place.filled, self.new))

    def function(self) -> FunctionType:
        """The function around the place in the running program: of a property the one that reads it, of a decorated one what was
        decorated."""
        *classes, name = self.place().qualified_name.split(".")
        module = import_module(f"zerocourse.{self.where.partition(':')[0]}")
        found = inspect.getattr_static(reduce(getattr, classes, module), name)
        return inspect.unwrap(getattr(found, "fget", None) or getattr(found, "__func__", None) or found)


def text_after(source: ModuleText, edits: Iterable[Edit]) -> str:
    """A module's text after edits. Raises ValueError where two of them overlap, or where what is left is not Python."""
    text, limit = source.text, len(source.text)
    for edit in sorted(edits, reverse=True):
        if edit.stop > limit:
            raise ValueError(f"two changes overlap in {source.file.name}, at {edit.new!r}: make them one")
        text, limit = text[: edit.start] + edit.new.encode() + text[edit.stop :], edit.start
    try:
        compile(text, str(source.file), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ValueError(f"{source.file.name} is no Python after the change: {error}") from None
    return text.decode()


def file_after(breaks: Iterable[Break], house: Path = HOUSE) -> tuple[ModuleText, str]:
    """A module, and its text with breaks, which are all in it. Raises what `Break.place` and `text_after` raise."""
    breaks = list(breaks)
    source, = {each.place(house).source for each in breaks}
    return source, text_after(source, [each.edit(house) for each in breaks])


def function_after(breaks: Iterable[Break]) -> tuple[str, str]:
    """The source of a function before and after breaks, which are all in it. Raises what `file_after` raises."""
    breaks = list(breaks)
    source, after = file_after(breaks)
    start, stop = source.lines(breaks[0].place().function)
    after = after.encode()[start : stop - len(source.text) or None]
    return textwrap.dedent(source.text[start:stop].decode()), textwrap.dedent(after.decode())


def become(place: SyntaxPlace, code: str) -> Edit:
    """Other code. Statements get the indentation of the place."""
    if statement := place.statement:
        code = code.replace("\n", "\n" + " " * statement.col_offset)
    elif isinstance(place.parent, BINDING) and not place.is_apart:  # what is around it would take a part of it
        new = ast.parse(f"({code})", mode="eval").body
        if isinstance(new, LOOSE) or isinstance(new, ast.Constant) and isinstance(place.parent, ast.Attribute):
            code = f"({code})"
    return Edit(*place.source.span(place.node), code)


def drop(place: SyntaxPlace) -> Edit:
    """Without this statement, argument, element or operand."""
    source, node = place
    parent = place.parent
    if place.statement:
        return become(place, "pass")
    if isinstance(parent, ast.keyword):
        return drop(SyntaxPlace(source, parent))
    beside = place.beside
    if len(beside) == 2 and isinstance(parent, (ast.Tuple, ast.BoolOp, ast.BinOp)):  # no sign between, but a tuple's comma
        other = next(source.code(one) for one in beside if one is not node)
        return become(SyntaxPlace(source, parent), f"({other},)" if isinstance(parent, ast.Tuple) else other)
    at, (start, stop) = beside.index(node), source.span(node)
    if at + 1 < len(beside):
        stop, _ = source.span(beside[at + 1])
    elif at:
        _, start = source.span(beside[at - 1])
    return Edit(start, stop, "")
