"""Finds sentences that say the opposite of what their chapter shows: `"equal" if same else "NOT equal"` whose second branch
stands in the saved output. A chapter says such a thing by `show.says(..., must=same)`, which raises where it is not so."""

import ast
from collections.abc import Iterator

SAYING = ("says", "sentence", "print")  # calls whose arguments are sentences


def branches_that_should_not_be_there(cell) -> Iterator[str]:
    """The text after `else` that the output of a code cell has in place of the text before `if`.

    Where the text before `if` is no string, as `f(x) if x else "nothing"`, only sentences are looked at: a table may well have
    numbers in some rows and words in others.
    """
    tree = parsed(cell)
    said, sentences = printed(cell), set(in_sentences(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp) and (otherwise := text_of(node.orelse)) and otherwise in said:
            expected = text_of(node.body)
            if node in sentences if expected is None else expected.replace(otherwise, "") not in said.replace(otherwise, ""):
                yield otherwise


def words_by_choice(cell) -> Iterator[str]:
    """Every `"words" if ... else "other words"` in what a cell says."""
    yield from (ast.unparse(node) for node in in_sentences(parsed(cell)) if text_of(node.body) and text_of(node.orelse))


def parsed(cell) -> ast.Module:
    """Without lines of IPython's; empty where it is no Python."""
    try:
        return ast.parse("\n".join(line for line in cell.source.splitlines() if not line.lstrip().startswith(("%", "!"))))
    except SyntaxError:
        return ast.parse("")


def printed(cell) -> str:
    """The plain text of what a cell shows."""
    return "\n".join("".join(output.get("text", "") or output.get("data", {}).get("text/plain", "")) for output in cell.outputs)


def in_sentences(tree: ast.AST) -> Iterator[ast.IfExp]:
    """Every choice in the arguments of a call that says something, or in what a name of such an argument was set to."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute))
             and (node.func.id if isinstance(node.func, ast.Name) else node.func.attr) in SAYING]
    names = {node.id for call in calls for node in ast.walk(call) if isinstance(node, ast.Name)}
    sets = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)
            and any(isinstance(each, ast.Name) and each.id in names for target in node.targets for each in ast.walk(target))]
    yield from (choice for found in (*calls, *sets) for choice in ast.walk(found) if isinstance(choice, ast.IfExp))


def text_of(node: ast.expr) -> str | None:
    """The words of a string; of an f-string the longest of those that are always there. None for what is no string."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    words = [part.value.strip() for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return max(words, key=len) if words else None
