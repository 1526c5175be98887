"""A page for the names that a user imports, and one for each room: signatures and docstrings as they stand in the code.

A docstring is text for a terminal, so it is shown as such, with its own line breaks.
"""

import ast
from collections.abc import Iterator
from html import escape
from pathlib import Path

import zerocourse

from ..notebooks import ROOT

HOUSE = ROOT / "zerocourse"
NOT_SHOWN = {"course", "bench", "commands"}  # what chapters measure; the commands have their guide


def write_pages(folder: Path) -> None:
    folder.mkdir()
    rooms = sorted({path.name for path in HOUSE.iterdir() if path.is_dir() and (path / "__init__.py").exists()} - NOT_SHOWN)
    tree = "\n".join(["```{toctree}", ":maxdepth: 1", "", *rooms, "```"])
    (folder / "index.md").write_text(f"# Names\n\n`import zerocourse` has these, and the rooms below have the rest.\n\n{tree}\n\n{top()}\n")
    for room in rooms:
        files = [path for path in sorted((HOUSE / room).rglob("*.py")) if "__pycache__" not in path.parts]
        parts = [text for path in files if (text := file_part(path))]
        (folder / f"{room}.md").write_text("\n\n".join([f"# {room}", *parts]) + "\n")


def file_part(path: Path) -> str:
    """One file: what it says of itself, and of its public names."""
    tree = ast.parse(path.read_text())
    names = [part for node in tree.body for part in described(node)]
    if path.name == "__init__.py" and path.parent.parent == HOUSE:
        return said(ast.get_docstring(tree))
    if not names and not ast.get_docstring(tree):
        return ""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return "\n\n".join([f"## {module}", said(ast.get_docstring(tree)), *names])


def described(node: ast.AST, inside: str = "") -> Iterator[str]:
    """A public function or class, with its public methods that have a docstring."""
    if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
        return
    text = ast.get_docstring(node)
    if inside and not text:
        return
    if isinstance(node, ast.ClassDef):
        begin = next((each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)
        yield f"```python\nclass {node.name}{arguments(begin, skip=1) if begin else ''}\n```\n\n{said(text)}"
        for each in node.body:
            yield from described(each, node.name)
    else:
        dotted = f"{inside}.{node.name}" if inside else node.name
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        yield f"```python\n{dotted}{arguments(node, skip=bool(inside))}{returns}\n```\n\n{said(text)}"


def arguments(node: ast.FunctionDef, skip: int) -> str:
    """As they stand in the code, without `self`."""
    given = ast.parse(ast.unparse(node)).body[0].args
    if skip and (given.posonlyargs or given.args):
        (given.posonlyargs or given.args).pop(0)
    return f"({ast.unparse(given)})"


def said(text: str | None) -> str:
    return f"```{{raw}} html\n<div class=\"docstring\">{escape(text)}</div>\n```" if text else ""


def top() -> str:
    """The names of `import zerocourse`, each with the room that has it."""
    rows = ["| name | where |", "|---|---|"]
    for name, where in zerocourse._HOME.items():
        rows.append(f"| `zerocourse.{name}` | [`zerocourse.{where}`]({where.partition('.')[0]}.md) |")
    return "\n".join(rows)
