"""Saves that are ended by SIGKILL at a moment of one's choice, so that one can look at what they leave on the disk."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch

from ....engine.checkpoint import content
from ....engine.checkpoint.folders import checkpoint_folder as folders
from ....engine.checkpoint.saving import save_checkpoint
from .resumes import begun


def die(*_, **__) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def half_of_it(file: Path, text: str) -> None:
    """Instead of the note on what this rank has written: cut the rank's data in two, and end."""
    data = max(file.parent.glob("*.distcp"), key=lambda each: each.stat().st_mtime_ns)
    with data.open("r+b") as stream:
        stream.truncate(data.stat().st_size // 2)
    die()


def half_of_the_renames(path: Path) -> None:
    """Instead of `commit`: its first rename, and end."""
    path.rename(folders.beside(path, folders.REPLACED))
    die()


MOMENTS: dict[str, tuple[object, str, Callable, int]] = {
    "a rank has written half of its file": (folders, "write_whole", half_of_it, 1),
    "all data is written, the index is not": (content, "merge", die, 0),
    "the index is written, nothing is renamed": (folders, "commit", die, 0),
    "the old folder is renamed, the new one is not": (folders, "commit", half_of_the_renames, 0)}
"""What has been done when the rank (the last entry) dies: the module and the function in whose place it dies."""


def killed_save(folder: str, moment: str | None) -> None:
    """Save after step 1 as `folder/last`, and again after step 2; in the second save a rank dies. Collective."""
    training = begun(stage=3)
    training.steps(1)
    save_checkpoint(training.engine.module, training.engine.optimizer, Path(folder, "last"), extra={"step": 1})
    training.steps(2)
    where, name, instead, rank = MOMENTS[moment]
    if training.engine.global_rank == rank:
        mock.patch.object(where, name, instead).start()
    save_checkpoint(training.engine.module, training.engine.optimizer, Path(folder, "last"), extra={"step": 2})


class DyingFile:
    """A file that ends its process with SIGKILL when so many bytes have been written to it."""

    def __init__(self, path: Path, after: int):
        self.stream, self.left = path.open("wb", buffering=0), after

    def write(self, data: bytes) -> int:
        data = memoryview(data).cast("B")
        self.stream.write(data[:self.left])
        self.left -= len(data)
        if self.left <= 0:
            die()
        return len(data)

    def flush(self) -> None:
        self.stream.flush()


def saved_in_place(folder: str) -> None:
    """The save that everybody writes first: `torch.save` over the only copy. It dies half way."""
    state = {"step": 1, "weights": torch.arange(20_000.0)}
    torch.save(state, Path(folder, "last.pt"))
    size = Path(folder, "last.pt").stat().st_size
    torch.save(state | {"step": 2}, DyingFile(Path(folder, "last.pt"), size // 2))
