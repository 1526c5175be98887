"""Examples of answers without their authors: comments and docstrings, in which names stand, are gone."""

import ast
import re

MOST_LINES = 40


def anonymous(source: str) -> str:
    """The code alone, as Python writes it, and not too much of it. What Python cannot read loses its comments.

    A name in the name of a variable, or in a string, stays.
    """
    try:
        tree = ast.parse(re.sub(r"^[%!].*$", "", source, flags=re.M))
    except (SyntaxError, ValueError, RecursionError):
        code = "\n".join(line.partition("#")[0].rstrip() for line in source.splitlines())
    else:
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        code = ast.unparse(tree)
    lines = code.strip("\n").splitlines()
    more = len(lines) - MOST_LINES
    return "\n".join([*lines[:MOST_LINES], *([f"… and {more} lines more"] if more > 0 else [])])
