"""What the course remembers of a learner, in their folder: one line of JSON for each event, in `.zerocourse/progress.jsonl`.

    {"kind": "prediction", "id": "01.total", "guess": 12.5, "unit": "GB", "quantity": "bytes", "at": 1790000000}
    {"kind": "measured", "id": "01.total", "value": 16.0, "ratio": 0.78, "at": 1790000004}
    {"kind": "verdict", "id": "5.1", "passed": false, "code": "padding", "hash": "0f3a...", "points": 0, "at": 1790000100}
    {"kind": "best", "id": "4.8", "value": 1024, "hash": "77c1...", "at": 1790000300}

The ratio is predicted by measured. `at` is in seconds since 1970, to the second.
"""

import hashlib
import json
import os
import time
import warnings
from collections.abc import Iterable
from pathlib import Path

from ...errors import BadInput
from .folder import MARK, learner_folder

FILE = "progress.jsonl"


def remember(kind: str, id: str, **what) -> None:
    """Append an event to the record of the learner's folder; without a folder, do nothing.

    what: anything that JSON has, and what `tolist` makes into that. A record that cannot be written is a warning and no
    error, because a lesson goes on without it. Several processes may write at once: an event is one write.
    """
    try:
        if folder := learner_folder():
            _append(folder, {"kind": kind, "id": id, **what, "at": int(time.time())})
    except (OSError, BadInput) as error:
        warnings.warn(f"your progress is not remembered: {error}", stacklevel=2)


def events(folder: Path) -> list[dict]:
    """The events of a learner's folder, oldest first. A line that is no event, such as one of which a crash left half, is
    left out. Raises OSError where there is a record that cannot be read."""
    try:
        lines = (folder / MARK / FILE).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [event for event in map(_event, lines) if event]


def answer_hash(sources: Iterable[str]) -> str:
    """Of the source of an answer's cells, in order: the same in a notebook and on the command line."""
    return hashlib.sha256("\n".join(source.strip() for source in sources).encode()).hexdigest()[:16]


def _append(folder: Path, event: dict) -> None:
    (folder / MARK).mkdir(exist_ok=True)
    line = json.dumps(event, default=lambda value: value.tolist()).encode() + b"\n"
    file = os.open(folder / MARK / FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
    try:
        if (end := os.lseek(file, 0, os.SEEK_END)) and _byte(file, end - 1) != b"\n":
            line = b"\n" + line  # after half a line, which would else take this one with it
        if os.write(file, line) != len(line):
            raise OSError(f"{folder / MARK / FILE} has taken only a part of it: is the disk full?")
    finally:
        os.close(file)


def _byte(file: int, place: int) -> bytes:
    os.lseek(file, place, os.SEEK_SET)
    return os.read(file, 1)


def _event(line: bytes) -> dict | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None
    return event if isinstance(event, dict) and all(isinstance(event.get(name), str) for name in ("kind", "id")) else None
