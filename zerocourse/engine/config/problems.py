"""From what pydantic finds to sentences: the key's path, its value, and what would be right.

What would be right is read off the JSON schema of the key, so that no bound is written twice.
"""

import difflib
from collections.abc import Iterable
from functools import cache

from pydantic import ValidationError

from .keys import KEYS, REFUSED, Group
from .schema import LARGEST, MOST, ConfigFile

LONGEST = 60  # characters of a value in a sentence
BY_TYPE = ("optimizer", "scheduler")  # sections whose `params` depend on their `type`


def by_keys(error: ValidationError, given: dict) -> dict[tuple, str]:
    """One sentence for each key that is wrong, by the keys that lead to it."""
    found: dict[tuple, str] = {}
    for each in error.errors(include_url=False):
        keys = each["loc"]
        if keys[0] in BY_TYPE:
            keys = keys[:1] + keys[2:]  # without the type, by which pydantic chose the section's model
        if each["type"] in ("extra_forbidden", "invalid_key"):
            sentence = unknown(".".join(map(str, keys[:-1])), keys[-1], given)
        elif each["type"].startswith("union_tag"):
            keys = keys[0], "type"
            sentence = unknown_type(".".join(keys), get(given, ".".join(keys)))
        else:
            while len(keys) > 1 and ".".join(map(str, keys)) not in KEYS:
                keys = keys[:-1]  # an entry of a list, or one of the forms that a value may have
            path = ".".join(keys)
            sentence = f"{path} is {shown(get(given, path))}: it must be {must_be(each, path, given)}"
        found.setdefault(keys, sentence)
    return found


def get(given: dict, path: str) -> object:
    """The value at a path, or `MISSING`."""
    for key in path.split("."):
        if not isinstance(given, dict) or key not in given:
            return MISSING
        given = given[key]
    return given


class Missing:
    def __repr__(self) -> str:
        return "missing"


MISSING = Missing()


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def unknown(section: str, key: object, given: dict) -> str:
    """A sentence with the key that was meant, or the section where it belongs, or all that there are."""
    prefix, of = f"{section}." if section else "", ""
    known = list(properties(section, given))
    nothing = [path.removeprefix(prefix) for path, each in KEYS.items()
               if path.rpartition(".")[0] == section and each.group is Group.CHANGES_NOTHING]
    close = difflib.get_close_matches(str(key), known + nothing, 1)
    elsewhere = [path.rpartition(".")[0] for path, each in KEYS.items()
                 if path.rpartition(".")[2] == key and each.group not in REFUSED and path.rpartition(".")[0] != section]
    if section.endswith(".params"):
        of = f" of {get(given, section.removesuffix('params') + 'type')}"
    sentence = f"{section or 'the config'} has the unknown key {shown(key)}"
    if "." in str(key) and key in KEYS:
        return f"{sentence}; it belongs in {key.rpartition('.')[0]}, as {key.rpartition('.')[2]!r}"
    if close:
        return f"{sentence}; did you mean {close[0]!r}?"
    if len(elsewhere) == 1:
        return f"{sentence}; it belongs {'in ' + elsewhere[0] if elsewhere[0] else 'at the top level'}"
    return f"{sentence}; known here{of}: {', '.join(known or nothing)}"


def unknown_type(path: str, value: object) -> str:
    """A sentence with the type that was meant, or with all that there are."""
    section = path.partition(".")[0]
    types = [choice["properties"]["type"]["const"] for choice in choices(section)]
    if value is MISSING or not isinstance(value, str):
        return f"{path} is {shown(value)}: it must be one of {', '.join(types)}"
    close = difflib.get_close_matches(value.lower(), [each.lower() for each in types], 1)
    if close:
        return f"{path} is {value!r}: did you mean {next(each for each in types if each.lower() == close[0])!r}?"
    argument = "an optimizer" if section == "optimizer" else "an lr_scheduler"
    return f"{path} is {value!r}: it must be one of {', '.join(types)}, or give initialize {argument}"


# What the schema says of a key ----------------------------------------------------------------------------------------

@cache
def schema() -> dict:
    return ConfigFile.model_json_schema()


def plain(part: dict) -> dict:
    """Without references."""
    return schema()["$defs"][part["$ref"].rpartition("/")[2]] | part if "$ref" in part else part


def forms(part: dict) -> list[dict]:
    """The forms that a value may have, null apart."""
    part = plain(part)
    inner = [each for one in part.get("anyOf", part.get("oneOf", [])) for each in forms(one)]
    return [each for each in inner or [part] if each.get("type") != "null"]


def choices(section: str) -> list[dict]:
    """The schemas of an optimizer or scheduler section, one for each type."""
    return forms(schema()["properties"][section])


def find(path: str, given: dict) -> dict:
    """The schema of the key at a path."""
    part, name = schema(), get(given, f"{path.partition('.')[0]}.type")
    for key in path.split(".") if path else ():
        part = of_type(part, name)["properties"][key]
    return part


def properties(path: str, given: dict) -> Iterable[str]:
    """The names of the keys in a section."""
    return of_type(find(path, given), get(given, f"{path}.type"))["properties"]


def of_type(part: dict, name: object) -> dict:
    """The form of a section that has this type; the only one, where there is one."""
    options = forms(part)
    return next((each for each in options if each["properties"].get("type", {}).get("const") == name), options[0])


def must_be(error: dict, path: str, given: dict) -> str:
    """What would be right, with what is not said where nobody comes near it: that a number is finite, and not beyond all bounds."""
    limit = error.get("ctx", {}).get("le", 0)
    if error["type"] == "less_than_equal" and limit >= MOST or limit == LARGEST:
        return f"at most {limit:.3g}"
    if error["type"] == "value_error":
        return "the path of a file, without NUL and without halves of characters"
    return wanted(path, given).replace("a number", "a finite number", error["type"] == "finite_number")


def wanted(path: str, given: dict) -> str:
    """What a key may be, in words: "an integer from 0 to 3"."""
    part = plain(find(path, given))
    words = list(dict.fromkeys(described(each) for each in forms(part)))
    if any(each.get("type") == "null" for each in part.get("anyOf", ())):
        words.append("null")
    return ", or ".join(words)


def described(part: dict) -> str:
    kind = part.get("type")
    if "enum" in part:
        return "one of " + ", ".join(map(repr, part["enum"]))
    if kind in ("integer", "number"):
        return f"{'an integer' if kind == 'integer' else 'a number'}{bounds(part)}"
    if kind == "array" and "prefixItems" in part:
        return f"a list of {len(part['prefixItems'])} numbers{bounds(part['prefixItems'][0])}"
    if kind == "array" and part["items"].get("type") == "string":
        return "a list of strings"
    return {"boolean": "true or false", "string": "a string", "object": "an object",
            "array": "a list of such numbers, one for each parameter group"}[kind]


def bounds(part: dict) -> str:
    if "exclusiveMaximum" in part:
        return f" from {part['minimum']:g} to below {part['exclusiveMaximum']:g}"
    if "exclusiveMinimum" in part:
        return f" above {part['exclusiveMinimum']:g}"
    if part.get("maximum", MOST) < min(MOST, LARGEST):
        return f" from {part['minimum']:g} to {part['maximum']:g}"
    return f" of at least {part['minimum']:g}" if part.get("minimum", -MOST) > -MOST else ""
