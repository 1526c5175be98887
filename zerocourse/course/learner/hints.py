"""The hints of an exercise, and when the next one is due. They stand folded in the text of its task."""

import re
from contextlib import suppress

from . import copies, originals
from .folder import learner_folder
from .record import events

TRIES = 3  # different answers that did not pass, for each hint
HINT = re.compile(r"<details><summary>Hint[^<]*</summary>\s*(.*?)\s*</details>", re.S)


def hints(id: str) -> list[str]:
    """The hints of an exercise, or of a chapter's cell to write, in order, as Markdown. None are there where the notebooks are not."""
    for path in originals.notebooks(originals.above()):
        if path.name.startswith(f"{int(id.partition('.')[0]):02}_"):
            found: list[str] = []
            for cell in copies.read(path)["cells"]:
                source = "".join(cell["source"])
                if cell["cell_type"] == "markdown":
                    found = HINT.findall(source) or ([] if source.lstrip().startswith("#") else found)
                elif f'check("{id}"' in source:
                    return found
    return []


def due(id: str, tries: int) -> list[str]:
    """The hints that so many different answers have earned, each TRIES one. For fewer there is none."""
    return hints(id)[:tries // TRIES] if tries >= TRIES else []


def recorded_tries(id: str) -> int:
    """How many different answers the record of the learner's folder has that did not pass, since one last did; 0 without a folder."""
    tried: set[str] = set()
    with suppress(OSError):
        for event in events(folder) if (folder := learner_folder()) else []:
            if event["kind"] == "verdict" and event["id"] == id and event.get("code") != "not done":
                tried = set() if event.get("passed") else {*tried, event.get("hash", "")}
    return len(tried)
