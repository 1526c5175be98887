"""Saves a sharded model and its optimizer: each rank writes what it owns; the small agreements go through the store.

What happens in which order, so that a process can be killed at any moment (see `checkpoint_folder`):

    rank 0 makes the folder NAME.partial         all ranks agree that it is there
    every rank writes and syncs its pieces, and then `part_R.json`, which says what it wrote
    (all ranks agree that all have written; in the background rank 0 waits for the files instead)
    rank 0 puts the parts together in the index, and renames the folder
    all ranks agree that it is there, or raise the error of the one that could not write
"""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from ...errors import BadInput, ZeroCourseError
from ...zero.ddp import DataParallel
from . import checkpoint_folder as folders
from .content import Content, content_of, make_whole

POLL_SECONDS = 0.02
_under_way: "WeakKeyDictionary[DataParallel, Saving]" = WeakKeyDictionary()  # of each stage the save in the background


def save_checkpoint(model: nn.Module, optimizer: Optimizer | None, path: str | Path, extra: object = None,
                    asynchronous: bool = False, leaves_gradients: bool = False) -> "Saving":
    """Save a model that `shard` returned, with its optimizer, as the folder `path`. Collective: every rank must call
    it.

    What is saved: parameters (fp32 master weights where they train in half precision), persistent buffers, the
    optimizer's states and hyper-parameters, each rank's random states, and `extra` as rank 0 has it (numbers, strings,
    tensors, and lists, tuples and dictionaries of them), which `load_checkpoint` returns. Gradients are not: save after
    a step. A checkpoint that is there already under this name stays until the new one is whole. All ranks must see one
    disk.

    asynchronous: copy everything in memory, write in the background, and return at once; the checkpoint is there after
        `wait()` of what is returned. Without it, it is there when this returns.
    leaves_gradients: gradients that no step has used stay where they are, and are not in the checkpoint.
    Raises BadInput for such gradients otherwise, and CheckpointError when a rank cannot write.
    """
    stage, path = stage_of(model), Path(path)
    finish_earlier(stage)
    if stage.in_backward or stage.has_unused_gradients and not leaves_gradients:
        raise BadInput("there are gradients that no step has used, and a checkpoint holds none: save after optimizer.step()")
    stage.settle()
    with torch.no_grad():  # what somebody wrote into the model, the master weights take over now
        stage.written.check_step()
        stage.written.before_step()
        stage.written.note_shards()
    content = content_of(stage, optimizer, extra)
    saving = Saving(stage, path, content)
    if asynchronous:
        content.detach()
        saving.in_background()
        _under_way[stage] = saving
    else:
        saving.now()
    return saving


def finish_earlier(stage: DataParallel) -> None:
    """Wait for a save in the background. Raises its CheckpointError."""
    earlier = _under_way.pop(stage, None)
    if earlier is not None:
        earlier.wait()


def stage_of(model: nn.Module) -> DataParallel:
    stage = getattr(model, "zero", None)
    if not isinstance(stage, DataParallel):
        raise BadInput(f"this {type(model).__name__} is not sharded: call zerocourse.shard(model, optimizer) first")
    return stage


class CheckpointError(ZeroCourseError, RuntimeError):
    """A checkpoint was not saved. The last good one is as it was."""


class Saving:
    """A save under way. It is over when `wait()` has returned, which every rank must call."""

    def __init__(self, stage: DataParallel, path: Path, content: Content):
        self.path, self.content, self.groups = path, content, stage.groups
        self.ranks, self.partial = stage.groups.size, folders.beside(path, folders.PARTIAL)
        self.limit = stage.groups.shard.timeout.total_seconds()
        self.thread: threading.Thread | None = None
        self.error: str | None = None
        self.over = False
        self.agree(lambda: folders.begin(path), only_rank_0=True)

    def now(self) -> None:
        self.agree(self.write)
        self.agree(self.commit, only_rank_0=True)
        self.over = True

    def in_background(self) -> None:
        self.thread = threading.Thread(target=self.try_all, name=f"saving {self.path.name}", daemon=False)
        self.thread.start()

    def wait(self) -> Path:
        """Returns the checkpoint's folder. Raises CheckpointError, on every rank, when one could not write."""
        if not self.over:
            self.thread.join()
            self.over = True
            self.raise_any()
        return self.path

    # -- each rank's work -----------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write what this rank has, and say what it was."""
        part = self.content.write(self.partial)
        folders.write_whole(self.partial / f"part_{self.content.rank}.json", json.dumps(part))
        self.content.pieces.clear()

    def commit(self) -> None:
        """On rank 0: all parts are there, or come within the time limit. Make the index, and rename the folder."""
        parts = [self.part(rank) for rank in range(self.ranks)]
        if any("error" in part for part in parts):
            return  # that rank says so itself, when all ranks are asked
        for rank in range(self.ranks):
            (self.partial / f"part_{rank}.json").unlink()
        make_whole(self.path, parts, self.content.about)

    def part(self, rank: int) -> dict:
        """What a rank wrote, or its error. Raises CheckpointError when it says nothing within the time limit."""
        file, until = self.partial / f"part_{rank}.json", time.monotonic() + self.limit
        while not file.exists():
            if time.monotonic() > until:
                raise CheckpointError(f"rank {rank} has not written its part within {self.limit:.0f} s (do all ranks see "
                                      "this disk?)")
            time.sleep(POLL_SECONDS)
        return json.loads(file.read_text())

    def try_all(self) -> None:
        """Write and commit, without a word to the other ranks but files."""
        try:
            self.write()
        except Exception as error:
            self.error = said(error)
            try:
                folders.write_whole(self.partial / f"part_{self.content.rank}.json", json.dumps({"error": self.error}))
            except OSError:
                pass  # then rank 0 waits as long as it may
        if self.content.rank == 0 and self.error is None:
            try:
                self.commit()
            except Exception as error:
                self.error = said(error)

    # -- together -------------------------------------------------------------------------------------------------------

    def agree(self, work: Callable[[], object], only_rank_0: bool = False) -> None:
        """Do some work, and know that all ranks have done it. Raises CheckpointError on every rank when one could
        not."""
        self.error = None
        if self.content.rank == 0 or not only_rank_0:
            try:
                work()
            except Exception as error:
                self.error = said(error)
        self.raise_any()

    def raise_any(self) -> None:
        for rank, error in enumerate(self.groups.all_gather_object(self.error)):
            if error is not None:
                raise CheckpointError(f"the checkpoint {self.path} was not saved: rank {rank}: {error}")


def said(error: Exception) -> str:
    return str(error) if isinstance(error, ZeroCourseError) else f"{type(error).__name__}: {error}"
