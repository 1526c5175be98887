"""Writes the tables of docs/compatibility.md from the code: `python -m tools.compatibility`. The prose around them is written by hand.

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`. Names of DeepSpeed come from `engine.compatibility`, keys of a config from
`engine.config.keys`.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import zerocourse
from zerocourse.engine.compatibility import ROWS, DeepSpeedName, Fate
from zerocourse.engine.config.keys import KEYS, REFUSED, Group

DOCUMENT = Path(__file__).parents[1] / "docs" / "compatibility.md"


def table(*head: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def is_in_package(row: DeepSpeedName) -> bool:
    """Has `import zerocourse as deepspeed` this name? Those of the engine always."""
    place, name = zerocourse, row.name.partition("(")[0]
    if not name.startswith("deepspeed."):
        return True
    try:
        for part in name.split(".")[1:]:
            place = getattr(place, part)
    except AttributeError:
        return False
    return True


def names_of(fate: Fate) -> str:
    rows = [row for row in ROWS if row.fate is fate]
    if fate is Fate.REFUSED:
        return table("name", "reason", "instead", rows=((f"`{row.name}`", row.why, row.instead) for row in rows))
    return table("name", "with", "remark", rows=((f"`{row.name}`", "" if is_in_package(row) else "bridge", row.why) for row in rows))


def keys_of(*groups: Group) -> str:
    kept = sorted((path, key.group.value, key.does) for path, key in KEYS.items() if key.group in groups)
    if len(groups) == 1:
        return table("key", "remark", rows=((f"`{path}`", does) for path, _, does in kept))
    return table("key", "it is", "reason, or what to do", rows=((f"`{path}`", group, does) for path, group, does in kept))


def tables() -> dict[str, str]:
    return {**{f"names: {fate.value}": names_of(fate) for fate in Fate},
            "keys: works": keys_of(Group.WORKS), "keys: changes nothing": keys_of(Group.CHANGES_NOTHING),
            "keys: old forms": keys_of(Group.TRANSLATED),
            "keys: refused": keys_of(*REFUSED)}


def written(text: str) -> str:
    """The document with its tables as they should be."""
    for name, content in tables().items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        text = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, body=f"{begin}\n{content}\n\n{end}": body, text, flags=re.S)
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
