"""What was put into a learner's folder, and with it whether the learner has touched it since: `.zerocourse/manifest.json`."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ...errors import BadInput
from .folder import MARK

FILE = "manifest.json"


@dataclass
class Manifest:
    """By the place of a file in the folder, such as notebooks/05_zero1.ipynb, the fingerprint of what was written there.

    offered: the fingerprint of the newest version that was put beside a file which the learner had touched.
    ours: the copies have the cells that show our version (`copies.learners_copy`).
    """

    files: dict[str, str] = field(default_factory=dict)
    offered: dict[str, str] = field(default_factory=dict)
    ours: bool = True

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """An empty one where there is none. Raises BadInput where there is something else."""
    path = folder / MARK / FILE
    try:
        manifest = Manifest(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return Manifest()
    except (ValueError, TypeError) as error:
        raise BadInput(f"{path} is damaged ({error}): remove it, and every file that is not as new counts as yours") from None
    if not all(isinstance(each, dict) for each in (manifest.files, manifest.offered)):
        raise BadInput(f"{path} is damaged (no table of files): remove it, and every file that is not as new counts as yours")
    return manifest


def fingerprint(text: str) -> str:
    """Of what a reader sees of a notebook: its cells and their outputs. Jupyter writes other things, such as the version of
    Python, as soon as a notebook is opened. Of what is no notebook, the whole text."""
    try:
        seen = [(cell["cell_type"], "".join(cell["source"]), cell.get("outputs", [])) for cell in json.loads(text)["cells"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        seen = text
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()


def fingerprint_of(path: Path) -> str | None:
    """None where there is nothing. Bytes that are no text count, too: a learner's file may hold anything."""
    if not path.exists() and not path.is_symlink():
        return None
    if path.is_dir() or path.is_symlink():
        return "not a file"
    return fingerprint(path.read_text("utf-8", errors="surrogateescape"))
