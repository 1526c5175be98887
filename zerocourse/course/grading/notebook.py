"""The answers in a notebook: its answer cells, and the given ones they build on, and no other."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from ...errors import BadInput

CALL = re.compile(r'^check\("(\d+\.\d+)"', re.M)
GIVEN = "given"  # the tag of cells that the answers build on: imports and constants


@dataclass(frozen=True)
class Cell:
    """A cell to run. id: of the exercise it answers; None for a given cell."""

    id: str | None
    source: str

    @property
    def name(self) -> str:
        """For tracebacks."""
        return f"<answer to {self.id}>" if self.id else "<given cell>"


def read_cells(path: str | Path) -> list[Cell]:
    """The given cells and the answer cells of a notebook, in order. Raises BadInput when it is no such notebook."""
    try:
        cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in code]
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{path} is not a notebook (.ipynb): {type(error).__name__}: {error}") from None
    kept, waiting = [], []
    for cell, source in zip(code, sources, strict=True):
        about, call = cell.get("metadata", {}), CALL.search(source)
        if about.get("nbgrader", {}).get("solution"):
            waiting.append(len(kept))
            kept.append(Cell(None, source))
        elif GIVEN in about.get("tags", []):
            kept.append(Cell(None, source))
        elif call:
            for number in waiting:
                kept[number] = Cell(call[1], kept[number].source)
            waiting = []
    if not any(cell.id for cell in kept):
        raise BadInput(f"{path} has no answers: it should have nbgrader's answer cells, each followed by a check")
    return kept


def ids_of(cells: list[Cell]) -> list[str]:
    """The exercises that are answered, in order."""
    return list(dict.fromkeys(cell.id for cell in cells if cell.id))
