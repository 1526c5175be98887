"""Reads a JSON file, and knows on which line each key stands. A mistake is named with its line."""

import json
import re
from collections import defaultdict
from pathlib import Path

from ...errors import BadInput

NAMES = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "true or false", type(None): "null"}  # in JSON
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,\n]|[^\s{}\[\]:,"]+')


def read_text(path: Path) -> str:
    """The file's text. Raises BadInput when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")  # Windows' editors put a mark at the beginning
    except OSError as error:
        raise BadInput(f"the config {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not JSON: it is not text in UTF-8") from error
    except ValueError as error:
        raise BadInput(f"the config {str(path)!r} cannot be read: {error}") from error


def parse(text: str, path: Path) -> dict:
    """The object in the text. Raises BadInput with the line of a mistake; the last of two equal keys counts."""
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"{path} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise BadInput(f"{path} has a thousand lists or objects inside one another: it needs four") from error
    except ValueError as error:  # a number of more than 4300 digits
        raise BadInput(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise BadInput(f"{path} holds {NAMES[type(config)]}: a config is a JSON object")
    return config


def keys_by_line(text: str) -> list[tuple[str, int]]:
    """(path, line) of every key in a valid JSON text, in the order of the text; lines count from 1, entries of lists from 0."""
    found, line, before = [], 1, ""
    around: list[str | int] = []  # for each object that the token is in, its key that came last; for each list the number of its entry
    for token in TOKEN.findall(text):
        if token == "\n":
            line += 1
            continue
        if token == ":":
            key = json.loads(before)
            around[-1] = key
            found.append((".".join(map(str, around)), line))
        elif token in "{[":
            around.append("" if token == "{" else 0)
        elif token in "}]":
            around.pop()
        elif token == "," and isinstance(around[-1], int):
            around[-1] += 1
        before = token
    return found


def duplicates(text: str) -> dict[str, str]:
    """By path, one sentence for every key that is given more than once."""
    lines = defaultdict(list)
    for path, line in keys_by_line(text):
        lines[path].append(line)
    return {path: f"{path} is given {len(on)} times, on {say(on)}: keep one of them"
            for path, on in lines.items() if len(on) > 1}


def say(lines: list[int]) -> str:
    if len(set(lines)) == 1:
        return f"line {lines[0]}"
    return f"lines {', '.join(map(str, lines[:-1]))} and {lines[-1]}"
