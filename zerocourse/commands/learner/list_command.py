"""The exercises of the course: what there is, how long each takes and how hard it is.

  zerocourse list
  zerocourse list 5
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from ... import course
from ...errors import BadInput
from .. import Outcome
from ..arguments import Checked, whole

HELP = "the exercises: what there is"
MARK = "@exercise("


def configure(parser):
    parser.add_argument("chapter", nargs="?", action=Checked, read=whole(0), help="of this chapter alone")


def run(args) -> Outcome:
    listed = exercises()
    chapters = sorted({each["chapter"] for each in listed.values()})
    if args.chapter is not None and args.chapter not in chapters:
        raise BadInput(f"chapter {args.chapter} has no exercises: chapters {', '.join(map(str, chapters))} have.")
    listed = {id: each for id, each in listed.items() if args.chapter in (None, each["chapter"])}
    width = max((len(each["title"]) for each in listed.values()), default=0)
    rows = [f"{id:>5}  {each['title']:{width}}  {each['minutes']:3} min  {stars(each['difficulty'])}" for id, each in listed.items()]
    hours = sum(each["minutes"] for each in listed.values()) / 60
    return Outcome("\n".join([*rows, "", f"{len(listed)} exercises, about {round(2 * hours) / 2:g} hours"]), listed)


def stars(difficulty: int) -> str:
    return "●" * difficulty + "○" * (3 - difficulty)


def exercises() -> dict[str, dict]:
    """By id, in order: {"title", "minutes", "difficulty", "chapter"}. They are read from the source of the checks, because
    running it would import torch."""
    found = dict(item for path in Path(*course.__path__).rglob("*.py") for item in exercises_in(path.read_text("utf-8")))
    return dict(sorted(found.items(), key=lambda item: tuple(map(int, item[0].split(".")))))


def exercises_in(source: str) -> Iterator[tuple[str, dict]]:
    """Those that are registered as `@exercise(id, title, minutes=..., difficulty=..., ...)`."""
    if MARK not in source:
        return
    calls = (call for node in ast.parse(source).body if isinstance(node, (ast.FunctionDef, ast.ClassDef)) for call in node.decorator_list
             if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "exercise")
    for call in calls:
        id, title = map(ast.literal_eval, call.args)
        if ".w" in id:  # a cell of a chapter, and none of its set
            continue
        minutes, difficulty = (ast.literal_eval(each.value) for name in ("minutes", "difficulty") for each in call.keywords
                               if each.arg == name)
        yield id, {"title": title, "minutes": minutes, "difficulty": difficulty, "chapter": int(id.partition(".")[0])}
