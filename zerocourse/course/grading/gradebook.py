"""What a class's last run found, so that the next one grades only what has changed: a JSON file beside the table."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock

from ...errors import BadInput
from ..checks.catalogue import language
from ..checks.verdict import Verdict
from .notebook import Cell

UNSURE = "hung", "died", "broken"  # codes of verdicts that another run, on a machine with less to do, might not repeat
PACKAGE = Path(__file__).parents[2]
LATE = "did not end within", "ran out of time"


class Gradebook:
    """The verdicts of a run, by notebook. A notebook whose answers, or an examiner whose checks are others now, is graded anew.

    Raises BadInput where the file is something else, which is not overwritten.
    """

    def __init__(self, path: Path):
        self.path, self.lock = path, Lock()
        self.examiner = examiner_hash()
        kept = self._read()
        self.notebooks: dict[str, dict] = kept["notebooks"] if kept["examiner"] == self.examiner else {}

    def known(self, name: str, cells: Sequence[Cell]) -> dict[str, Verdict]:
        """The verdicts on a notebook with these cells, by exercise."""
        kept = self.notebooks.get(name, {})
        return {each["id"]: Verdict(**each) for each in kept["verdicts"]} if kept.get("answers") == answers_hash(cells) else {}

    def keep(self, name: str, cells: Sequence[Cell], verdicts: Iterable[Verdict]) -> None:
        """Write the file anew, with these verdicts, but for those that depend on how busy the machine was."""
        sure = [vars(each) for each in verdicts if each.code not in UNSURE and not any(words in each.message for words in LATE)]
        with self.lock:
            self.notebooks[name] = {"answers": answers_hash(cells), "verdicts": sure}
            part = self.path.with_name(f".{self.path.name}.part")
            part.write_text(json.dumps({"examiner": self.examiner, "notebooks": self.notebooks}, indent=1), encoding="utf-8")
            os.replace(part, self.path)

    def _read(self) -> dict:
        if not self.path.exists():
            return {"examiner": self.examiner, "notebooks": {}}
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if kept.keys() != {"examiner", "notebooks"}:
                raise ValueError
            for each in kept["notebooks"].values():
                [Verdict(**verdict) for verdict in each["verdicts"]]
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
            raise BadInput(f"{self.path} is where a class's verdicts are kept, and something else is in it: move it away, or name another "
                           "table with --csv") from None
        return kept


def answers_hash(cells: Sequence[Cell]) -> str:
    """Of all that decides over a notebook's verdicts: its answer cells and the cells they build on."""
    return hashlib.sha256(json.dumps([(cell.id, cell.source) for cell in cells]).encode()).hexdigest()


def examiner_hash() -> str:
    """Of all that makes verdicts and words them: the package's files and the language."""
    found = hashlib.sha256(language().encode())
    for path in sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".toml")):
        found.update(path.read_bytes())
    return found.hexdigest()
