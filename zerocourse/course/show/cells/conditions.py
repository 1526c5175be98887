"""The condition in a call as its source has it, with the values that it compares: for a sentence that is not so."""

import ast
import inspect
import linecache
from collections.abc import Callable
from types import FrameType

LONGEST = 200  # characters of a value


def condition_text(frame: FrameType, keyword: str) -> str:
    """`lower == 0` is not so: `lower` is 12. Of a condition with `and`, the first part that is false.

    frame: where the call is under way.   keyword: of the argument that is the condition.
    Names are enough where the source is not known.
    """
    found = _argument(frame, keyword)
    if found is None:
        return f"its `{keyword}` is not so"
    spaces = {**frame.f_globals, **frame.f_locals}
    part = _false_part(found, lambda node: eval(compile(ast.Expression(node), "<condition>", "eval"), spaces))
    shown = {ast.unparse(node): value for node, value in _values(part, spaces)}
    values = ", ".join(f"`{text}` is {value:.{LONGEST}}" for text, value in shown.items() if text != value)
    return f"`{ast.unparse(part)}` is not so" + (f": {values}" if values else "")


def _argument(frame: FrameType, keyword: str) -> ast.expr | None:
    """The expression that the call under way was given for a keyword; None where the source is not known."""
    at = inspect.getframeinfo(frame, context=0).positions
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))
    except SyntaxError:
        return None
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and at is not None
             and (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
             == (at.lineno, at.col_offset, at.end_lineno, at.end_col_offset))
    return next((given.value for call in calls for given in call.keywords if given.arg == keyword), None)


def _false_part(node: ast.expr, value_of: Callable) -> ast.expr:
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return next((_false_part(part, value_of) for part in node.values if not value_of(part)), node)
    return node


def _values(node: ast.expr, spaces: dict) -> list[tuple[ast.expr, str]]:
    """The sides of a comparison, or else the names in an expression, with what they are. Functions are left out."""
    sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else \
        [each for each in ast.walk(node) if isinstance(each, ast.Name) and each.id in spaces]
    values = [(side, eval(compile(ast.Expression(side), "<condition>", "eval"), spaces)) for side in sides]
    return [(side, repr(value)) for side, value in values if not callable(value)]
