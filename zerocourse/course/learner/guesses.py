"""Where the guess stands in the source of a prediction's cell: the second argument of `predict`. Needs nothing but Python."""

import ast
import re
from collections.abc import Iterator

OPEN = "..."
LABEL = "somebody_guessed"


def guess_in(source: str) -> str | None:
    """The text of the guess; None in a cell that predicts nothing."""
    call = _predict(source)
    return call and ast.get_source_segment(source, call.args[1])


def without_guess(source: str) -> str:
    """The cell as a learner gets it: each answer is open. Of a dictionary the names are left, of a list how many there are."""
    source = re.sub(rf", {LABEL}\b(?!\()", "", source)  # where it is imported
    if (call := _predict(source)) is None:
        return source
    lines = source.encode().splitlines(keepends=True)

    def place(line: int, column: int) -> int:
        return sum(map(len, lines[: line - 1])) + column

    text, guess = source.encode(), call.args[1]
    edits = [(place(each.lineno, each.col_offset), place(each.end_lineno, each.end_col_offset), OPEN.encode()) for each in _answers(guess)]
    if (inner := _unlabelled(guess)) is not guess:
        edits += [(place(guess.lineno, guess.col_offset), place(inner.lineno, inner.col_offset), b""),
                  (place(inner.end_lineno, inner.end_col_offset), place(guess.end_lineno, guess.end_col_offset), b"")]
    for begin, end, new in sorted(edits, reverse=True):
        text = text[:begin] + new + text[end:]
    return text.decode()


def called(source: str, function: str) -> list[str]:
    """The ids with which a cell calls `predict`, or `observe`."""
    return [call.args[0].value for call in _calls(source, function)]


def _predict(source: str) -> ast.Call | None:
    return next(iter(_calls(source, "predict")), None)


def _calls(source: str, function: str) -> list[ast.Call]:
    if f"{function}(" not in source:
        return []
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:  # a cell with magics
        return []
    return [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", None) == function
            and node.args and isinstance(node.args[0], ast.Constant)]  # another function of this name is called in another way


def _unlabelled(guess: ast.expr) -> ast.expr:
    return guess.args[0] if isinstance(guess, ast.Call) and getattr(guess.func, "id", None) == LABEL else guess


def _answers(guess: ast.expr) -> Iterator[ast.expr]:
    guess = _unlabelled(guess)
    inside = guess.values if isinstance(guess, ast.Dict) else guess.elts if isinstance(guess, ast.List) else None
    if inside is None:
        yield guess
    else:
        for each in inside:
            yield from _answers(each)
