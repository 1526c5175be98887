"""A place in the package's code, by its path in the syntax tree, and the text that stands there.

A path is made of steps. Each goes from the nodes before it

    if  return  compare  ifexp ...   down, to any depth, to nodes of this class of `ast`,
    add_()  add_(alpha)              to calls of a function or a method of this name, with an argument of that name,
    total=                           to assignments to this name or attribute,
    #sums                            to the statement at whose line stands the comment `# mutant: sums`,
    .test  .args  .alpha             to a field, or to an argument that is given by name,
    ^if                              up, to the nearest node of this class around it;

and [0], [1] or [-1] behind a step chooses one of the nodes it has found, in the order of the text. The last step must find
one node. "if compare.left", "add_(alpha) ^if.test".
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

STEP = re.compile(r"(#(?P<tag>[\w-]+)|\.(?P<field>\w+)|\^(?P<around>\w+)|(?P<name>\w+)(\((?P<argument>\w*)\)|(?P<assigned>=))?)"
                  r"(\[(?P<index>-?\d+)\])?(\s+|(?=\.)|$)")
TAG = re.compile(r"# mutant: ([\w-]+)")
KINDS = {name.lower(): kind for name, kind in sorted(vars(ast).items(), reverse=True)  # so that `expr` is the statement Expr
         if isinstance(kind, type) and issubclass(kind, ast.AST)} | {"statement": ast.stmt}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class ModuleText:
    """A module's text with its syntax tree. The columns of a tree count bytes, so the text is kept as bytes."""

    def __init__(self, file: Path):
        self.file, self.text = file, file.read_bytes()
        self.tree = ast.parse(self.text)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self.begins = [0]  # of each line
        for line in self.text.splitlines(keepends=True):
            self.begins.append(self.begins[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The node's first byte, and the one after its last."""
        return self.begins[node.lineno - 1] + node.col_offset, self.begins[node.end_lineno - 1] + node.end_col_offset

    def code(self, node: ast.AST) -> str:
        start, stop = self.span(node)
        return self.text[start:stop].decode()

    def lines(self, node: ast.AST) -> tuple[int, int]:
        """The bytes of all lines of a definition, with its decorators."""
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
        return self.begins[first - 1], self.begins[node.end_lineno]

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, the innermost first."""
        while node := self.parents.get(node):
            yield node

    def tagged(self, tag: str) -> Iterator[ast.stmt]:
        for number, line in enumerate(self.text.decode().splitlines(), 1):
            if tag in TAG.findall(line):
                yield [node for node in ast.walk(self.tree)
                       if isinstance(node, ast.stmt) and number in (node.lineno, node.end_lineno)][-1]


class SyntaxPlace(NamedTuple):
    """A node of the syntax tree of a module."""

    source: ModuleText
    node: ast.AST

    @property
    def parent(self) -> ast.AST:
        return self.source.parents[self.node]

    @property
    def statement(self) -> ast.stmt | None:
        """The statement that the node is, also as a call whose result nobody takes. None: it is a part of one."""
        whole = self.parent if isinstance(self.parent, ast.Expr) else self.node
        return whole if isinstance(whole, ast.stmt) else None

    @property
    def is_apart(self) -> bool:
        """Does the node stand between brackets or commas, as an argument and a subscript do?"""
        return self.node is getattr(self.parent, "slice", None) or self.node in getattr(self.parent, "args", ())

    @property
    def code(self) -> str:
        return self.source.code(self.node)

    def filled(self, field: re.Match) -> str:
        """What stands in a field of the node, for the field's name in braces; {old} is the node itself."""
        node = self.node if field[1] == "old" else getattr(self.node, field[1], None)
        return self.source.code(node) if isinstance(node, ast.AST) else field[0]

    @property
    def beside(self) -> list[ast.AST]:
        """The node and those in line with it: arguments of one call, elements of one list, operands of one sum or `and`."""
        parent = self.parent
        if isinstance(parent, ast.Call) and self.node is not parent.func:
            return sorted([*parent.args, *parent.keywords], key=self.source.span)
        if isinstance(parent, ast.BinOp):
            return [parent.left, parent.right]
        return getattr(parent, "elts", None) or getattr(parent, "values", None) or [self.node]

    @property
    def function(self) -> ast.FunctionDef | None:
        """The function around the place: of one inside of another, the outer one."""
        around = [self.node, *self.source.around(self.node)]
        return next((node for node in reversed(around) if isinstance(node, DEFINITIONS[:2])), None)

    @property
    def qualified_name(self) -> str:
        """Of the function around the place, as "Comm.all_gather"."""
        function = self.function
        return ".".join(node.name for node in reversed([function, *self.source.around(function)]) if isinstance(node, DEFINITIONS))


@cache
def parsed(file: Path, changed: int) -> ModuleText:
    return ModuleText(file)


def find(house: Path, where: str, path: str) -> SyntaxPlace:
    """house: the folder of the package, or of a copy of it.   where: "zero.buffers.buffer:FlatBuffer", a module and a name in it.

    Raises ValueError, in a sentence, where the place is not there or could be several.
    """
    module, _, names = where.partition(":")
    folder = house.joinpath(*module.split("."))
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    if not file.is_file():
        raise ValueError(f"{where!r} is nowhere: {file.relative_to(house.parent)} is not a file of the package")
    source = parsed(file, file.stat().st_mtime_ns)
    nodes: list[ast.AST] = [source.tree]
    for name in filter(None, names.split(".")):
        nodes = [node for scope in nodes for node in below(scope) if isinstance(node, DEFINITIONS) and node.name == name
                 and scope is next(outer for outer in source.around(node) if isinstance(outer, (*DEFINITIONS, ast.Module)))]
        if not nodes:
            raise ValueError(f"{where!r} is nowhere: nothing of the name {name!r} is defined there")
    at = 0
    while at < len(path):
        if not (step := STEP.match(path, at)):
            raise ValueError(f"{path!r} is not a path: {path[at:]!r} does not begin with a step")
        nodes = list(dict.fromkeys(found for node in nodes for found in reached(source, node, step)))
        if step["index"]:
            index = int(step["index"])
            nodes = nodes[index : index + 1 or None]
        if not nodes:
            raise ValueError(f"{where!r} has no place {path!r}: at {step[0].strip()!r} nothing is left")
        at = step.end()
    if len(nodes) > 1:
        lines = ", ".join(str(node.lineno) for node in nodes)
        raise ValueError(f"{where!r} has {len(nodes)} places {path!r}, in the lines {lines}: the path must lead to one of them")
    return SyntaxPlace(source, nodes[0])


def below(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes inside of a node, in the order of the text; not those of an f-string, whose places Python 3.11 tells wrongly."""
    for child in ast.iter_child_nodes(node):
        if hasattr(child, "lineno"):
            yield child
        if not isinstance(child, ast.JoinedStr):
            yield from below(child)


def reached(source: ModuleText, node: ast.AST, step: re.Match) -> Iterator[ast.AST]:
    """The nodes to which a step leads from a node."""
    if step["tag"]:
        yield from (tagged for tagged in source.tagged(step["tag"]) if node in (tagged, *source.around(tagged)))
    elif step["field"]:
        field = getattr(node, step["field"], None)
        yield from field if isinstance(field, list) else [field] if isinstance(field, ast.AST) else []
        yield from (given.value for given in getattr(node, "keywords", ()) if given.arg == step["field"])
    elif step["around"]:
        yield from [outer for outer in source.around(node) if isinstance(outer, KINDS.get(step["around"], ()))][:1]
    elif step["assigned"]:
        yield from (inner for inner in below(node) if step["name"] in map(name_of, targets(inner)))
    elif step["argument"] is not None:
        given = {step["argument"]} - {""}
        yield from (call for call in below(node) if isinstance(call, ast.Call) and name_of(call.func) == step["name"]
                    and given <= {keyword.arg for keyword in call.keywords})
    else:
        yield from (inner for inner in below(node) if isinstance(inner, KINDS.get(step["name"], ())))


def name_of(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def targets(node: ast.AST) -> list[ast.AST]:
    """What a statement assigns to."""
    single = isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr)
    given = node.targets if isinstance(node, ast.Assign) else [node.target] if single else []
    return [target for each in given for target in getattr(each, "elts", [each])]
