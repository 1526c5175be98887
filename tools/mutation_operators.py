"""Generic breaks: what may be wrong at any node of a syntax tree, whatever the code is about.

Each operator gets a place and yields what it may become, as an `Edit`; of most places nothing. They leave alone what no test has
to notice: docstrings, annotations, texts, and the words of an exception.
"""

import ast
from collections.abc import Callable, Iterator

from zerocourse.course.museum.breaks import Edit, become, drop
from zerocourse.course.museum.syntax_place import ModuleText, SyntaxPlace, below, name_of

SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not",
         ast.In: "in", ast.NotIn: "not in", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//",
         ast.Mod: "%", ast.Pow: "**", ast.BitOr: "|", ast.BitAnd: "&", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
         ast.MatMult: "@"}
PAIRS = ("< <=", "> >=", "== !=", "is:is not", "in:not in", "+ -", "* //", "| &", "<< >>", "min max", "any all")
OTHERS = {one: other for pair in PAIRS for one, other in (pair.replace(":", " ", 1).split(" ", 1),)}
OTHERS |= {other: one for one, other in OTHERS.items()} | {"/": "*", "%": "//", "**": "*", "^": "|", "@": "*"}


def condition(place: SyntaxPlace) -> Iterator[Edit]:
    """A condition that never, or always, holds. Of an expression with `if`, one of its two values."""
    node, parent = place.node, place.parent
    if isinstance(node, ast.IfExp):
        yield become(place, place.source.code(node.body))
        yield become(place, place.source.code(node.orelse))
    elif isinstance(parent, ast.BoolOp | ast.IfExp | ast.UnaryOp):  # the operand left out is the same, or nearly
        return
    elif isinstance(node, ast.Compare | ast.BoolOp) or node is getattr(parent, "test", None) or node in getattr(parent, "ifs", ()):
        yield become(place, "False")
        if not isinstance(parent, ast.While):
            yield become(place, "True")


def comparison(place: SyntaxPlace) -> Iterator[Edit]:
    """Another comparison."""
    if isinstance(place.node, ast.Compare):
        sides = [f"({place.source.code(side)})" for side in (place.node.left, *place.node.comparators)]
        signs = [SIGNS[type(sign)] for sign in place.node.ops]
        for at, sign in enumerate(signs):
            others = [*signs[:at], OTHERS[sign], *signs[at + 1 :]]
            yield become(place, " ".join([sides[0], *(f"{other} {side}" for other, side in zip(others, sides[1:], strict=True))]))


def operand(place: SyntaxPlace) -> Iterator[Edit]:
    """One operand fewer, in a condition or in arithmetic."""
    if isinstance(place.parent, (ast.BoolOp, ast.BinOp)) and place.node in place.beside:
        yield drop(place)


def arithmetic(place: SyntaxPlace) -> Iterator[Edit]:
    """Another operation; in place of a sum that goes on, one that begins anew."""
    node, code = place.node, place.source.code
    if isinstance(node, ast.BinOp):
        yield become(place, f"({code(node.left)}) {OTHERS[SIGNS[type(node.op)]]} ({code(node.right)})")
    if isinstance(node, ast.AugAssign):
        yield become(place, f"{code(node.target)} = {code(node.value)}")
        yield become(place, f"{code(node.target)} {OTHERS[SIGNS[type(node.op)]]}= {code(node.value)}")


def negation(place: SyntaxPlace) -> Iterator[Edit]:
    """Without a `not` or a minus."""
    if isinstance(place.node, ast.UnaryOp):
        yield become(place, place.source.code(place.node.operand))


def constant(place: SyntaxPlace) -> Iterator[Edit]:
    """One more, one less, or the other truth."""
    if isinstance(place.node, ast.Constant):
        value = place.node.value
        if type(value) is bool:
            yield become(place, str(not value))
        if type(value) is int:
            yield become(place, str(value + 1))
            yield become(place, str(value - 1))
        if type(value) is float:
            yield become(place, str(2 * value))
            yield become(place, "0.0")


def statement(place: SyntaxPlace) -> Iterator[Edit]:
    """A statement that is not there. What only gives a name to a value stays: without it every test fails."""
    node = place.node
    if isinstance(node, ast.AugAssign | ast.Delete | ast.Raise) or isinstance(node, ast.Expr) \
            and not isinstance(node.value, ast.Constant | ast.Yield):
        yield drop(place)
    if isinstance(node, ast.Assign) and not isinstance(node.targets[0], (ast.Name, ast.Tuple)):
        yield drop(place)
    if isinstance(node, ast.Return) and node.value is not None:
        yield become(place, "return None")
    if isinstance(node, ast.Break | ast.Continue):
        yield become(place, "continue" if isinstance(node, ast.Break) else "break")


def call(place: SyntaxPlace) -> Iterator[Edit]:
    """A call that does nothing to what it is given, or that another function answers."""
    node, code = place.node, place.source.code
    if not isinstance(node, ast.Call):
        return
    name, method = name_of(node.func), isinstance(node.func, ast.Attribute)
    if method and (not place.statement or isinstance(node.func.value, ast.Call)):
        yield become(place, code(node.func.value))
    if not place.statement:
        for given in node.args[: None if name in ("min", "max") else 1]:
            if not isinstance(given, ast.Starred):
                yield become(place, code(given))
    if name in OTHERS and not method:
        yield become(SyntaxPlace(place.source, node.func), OTHERS[name])


def words(place: SyntaxPlace) -> Iterator[Edit]:
    """A text in which one value is not filled in."""
    if isinstance(place.node, ast.JoinedStr):
        for value in place.node.values:
            if isinstance(value, ast.FormattedValue):
                yield become(place, ast.unparse(ast.JoinedStr([each for each in place.node.values if each is not value])))


def context(place: SyntaxPlace) -> Iterator[Edit]:
    """What is done inside of a `with` is done without it."""
    if isinstance(place.parent, ast.withitem) and place.parent.optional_vars is None:
        yield become(place, "__import__('contextlib').nullcontext()")


def argument(place: SyntaxPlace) -> Iterator[Edit]:
    """An argument left out, or two in each other's place."""
    node, parent = place.node, place.parent
    if not isinstance(parent, ast.Call) or node is parent.func:
        return
    if isinstance(node, ast.keyword) or len(parent.args) > 1:
        yield drop(place)
    if node in parent.args[1:]:
        before = parent.args[parent.args.index(node) - 1]
        (start, end), (begin, stop) = place.source.span(before), place.source.span(node)
        between = place.source.text[end:begin].decode()
        yield Edit(start, stop, place.code + between + place.source.code(before))


def loop(place: SyntaxPlace) -> Iterator[Edit]:
    """A loop over nothing, or without its first item."""
    if place.node is getattr(place.parent, "iter", None):
        yield become(place, "()")
        yield become(place, f"[*({place.code})][1:]")


def element(place: SyntaxPlace) -> Iterator[Edit]:
    """A tuple, list or set without one of its elements, or a dictionary without an entry."""
    parent = place.parent
    if isinstance(parent, (ast.Tuple, ast.List, ast.Set)) and len(parent.elts) > 1 \
            and not isinstance(place.node, ast.Slice) and isinstance(getattr(parent, "ctx", ast.Load()), ast.Load):
        yield drop(place)


def cut(place: SyntaxPlace) -> Iterator[Edit]:
    """A slice from the beginning, or to the end."""
    if isinstance(place.parent, ast.Slice):
        yield Edit(*place.source.span(place.node), "")


OPERATORS: tuple[Callable[[SyntaxPlace], Iterator[Edit]], ...] = (
    condition, comparison, operand, arithmetic, negation, constant, statement, call, argument, words, context, loop, element, cut)


def is_untested(place: SyntaxPlace) -> bool:
    """Is the node part of an annotation or of an exception's words?"""
    child = place.node
    for node in place.source.around(child):
        if child in (getattr(node, "annotation", None), getattr(node, "returns", None)) or isinstance(node, ast.Raise):
            return True
        child = node
    return False


def generic_edits(source: ModuleText) -> Iterator[tuple[str, SyntaxPlace, Edit]]:
    """Every generic break of a module: the operator's name, the place and the change."""
    for node in below(source.tree):
        place = SyntaxPlace(source, node)
        if isinstance(node, ast.expr | ast.stmt | ast.keyword) and not is_untested(place):
            for operator in OPERATORS:
                for edit in operator(place):
                    yield operator.__name__, place, edit
