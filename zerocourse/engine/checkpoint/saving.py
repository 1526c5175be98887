"""Saves a sharded model and its optimizer: each rank writes what it owns; the small agreements go through the store.

What happens in which order, so that a process can be killed at any moment (see `checkpoint_folder`):

    rank 0 locks the name, makes the folder NAME.partial, and all ranks agree that it is there
    every rank writes and syncs its pieces, and then `part_R.json`, which says what it wrote
    (all ranks agree that all have written; in the background rank 0 waits for the files instead)
    rank 0 puts the parts together in the index, renames the folder, and unlocks the name
    all ranks agree that it is there, or raise the error of the one that could not write, and remove what was written
"""

import errno
import json
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from ...errors import BadInput, ZeroCourseError
from ...formulas.units import gb
from ...zero.ddp import DataParallel
from .content import Content, content_of, make_whole
from .folders import checkpoint_folder as folders

POLL_SECONDS = 0.02
SEEN_SECONDS = 60.0  # until what another rank has written and synced is seen here, on a disk of the network
NO_SPACE = errno.ENOSPC, errno.EDQUOT
_under_way: "WeakKeyDictionary[DataParallel, Saving]" = WeakKeyDictionary()  # of each stage the save in the background


def save_checkpoint(model: nn.Module, optimizer: Optimizer | None, path: str | Path, extra: object = None,
                    asynchronous: bool = False, leaves_gradients: bool = False, exclude_frozen: bool = False) -> "Saving":
    """Save a model that `shard` returned, with its optimizer, as the folder `path`. Collective: every rank must call
    it.

    What is saved: parameters (fp32 master weights where they train in half precision), persistent buffers, the
    optimizer's states and hyper-parameters, each rank's random states, and `extra` as rank 0 has it (numbers, strings,
    tensors, and lists, tuples and dictionaries of them), which `load_checkpoint` returns. Gradients are not: save after
    a step. A checkpoint that is there already under this name stays until the new one is whole. All ranks must see one
    disk.

    asynchronous: copy everything in memory, write in the background, and return at once; the checkpoint is there after
        `wait()` of what is returned. Without it, it is there when this returns.
    exclude_frozen: leave out parameters that do not require gradients, as of a base model under LoRA. Such a checkpoint is
        loaded with `strict=False` into a model that has their values.
    leaves_gradients: gradients that no step has used stay where they are, and are not in the checkpoint.
    Raises BadInput for such gradients otherwise, and CheckpointError when a rank cannot write.
    """
    stage, path = stage_of(model), Path(path)
    finish_earlier(stage)
    if stage.backward is not None or stage.reductions.has_unused and not leaves_gradients:
        raise BadInput("there are gradients that no step has used, and a checkpoint holds none: save after optimizer.step()")
    stage.settle()
    with torch.no_grad():  # what somebody wrote into the model, the master weights take over now
        stage.written.check_step()
        stage.written.before_step()
        stage.written.note_shards()
    content = content_of(stage, optimizer, extra, exclude_frozen)
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
        self.path, self.content, self.groups, self.device = path, content, stage.groups, stage.device
        self.ranks, self.partial = stage.groups.size, folders.beside(path, folders.PARTIAL)
        self.limit = stage.groups.shard.timeout.total_seconds()
        self.thread: threading.Thread | None = None
        self.error: str | None = None
        self.own_part: dict = {}
        self.nbytes = content.nbytes
        self.over = False
        self.lock = folders.lock_of(path)  # rank 0 takes it
        self.agree(self.begin, only_rank_0=True)

    def now(self) -> None:
        self.agree(self.write)
        self.agree(lambda: self.commit(min(self.limit, SEEN_SECONDS)), only_rank_0=True)
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

    def begin(self) -> None:
        """On rank 0: nobody else saves under this name from now on. Raises BadInput when somebody does."""
        self.lock.take()
        folders.begin(self.path)

    def write(self) -> None:
        """Write what this rank has, and say what it was."""
        if not self.partial.exists():
            raise CheckpointError(f"{self.partial}, which rank 0 has made, is not there for this rank: save into one folder, on a disk "
                                  "that all ranks see")
        try:
            self.own_part = self.content.write(self.partial)
            if self.content.rank:
                folders.write_whole(self.note_of(self.content.rank), json.dumps(self.own_part))
        except Exception:
            self.make_room()
            raise
        self.content.pieces.clear()

    def make_room(self) -> None:
        """Remove what this rank has written, so that there is room to say that it failed."""
        for file in self.partial.glob(f"__{self.content.rank}_*"):
            file.unlink(missing_ok=True)

    def commit(self, seconds: float) -> None:
        """On rank 0: all parts are there, or come within so many seconds. Make the index, and rename the folder."""
        parts = [self.own_part, *(self.part(rank, seconds) for rank in range(1, self.ranks))]
        if any("error" in part for part in parts):
            return  # that rank says so itself, when all ranks are asked
        for rank in range(1, self.ranks):
            self.note_of(rank).unlink()
        make_whole(self.path, parts, self.content.about)
        self.lock.release()

    def note_of(self, rank: int) -> Path:
        """The file in which a rank says what it wrote, or its error; nothing, when there was no room for that."""
        return self.partial / f"part_{rank}.json"

    def part(self, rank: int, seconds: float) -> dict:
        """What a rank wrote, or its error. Raises CheckpointError when it can say nothing any more, or does not."""
        note, until = self.note_of(rank), time.monotonic() + seconds
        while not note.exists():
            if not self.partial.is_dir():
                raise CheckpointError(f"somebody has removed {self.partial} while ranks were writing into it")
            if time.monotonic() > until:
                raise CheckpointError(f"rank {rank} has not written its part within {seconds:.0f} s (do all ranks see this "
                                      "disk?)")
            time.sleep(POLL_SECONDS)
        return json.loads(note.read_text() or '{"error": ""}')

    def try_all(self) -> None:
        """Write and commit, without a word to the other ranks but files."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # a new thread's is the first, on which each rank would open a context
        try:
            self.write()
        except Exception as error:
            self.error = self.why(error)
            with suppress(OSError):  # rank 0, which waits, sees that the folder is gone, or waits as long as it may
                self.note_of(self.content.rank).touch()
                folders.write_whole(self.note_of(self.content.rank), json.dumps({"error": self.error}))
        if self.content.rank == 0 and self.error is None:
            try:
                self.commit(self.limit)
            except Exception as error:
                self.error = self.why(error)

    def why(self, error: Exception) -> str:
        """One sentence; for a full disk with what to do. Of several errors that follow from one another torch raises the
        last."""
        cause: BaseException | None = error
        while cause is not None and getattr(cause, "errno", None) not in NO_SPACE:
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            return said(error)
        folder = self.path.parent
        there = ", ".join([name for name in folders.all_in(folder) if name != self.path.name][:3])
        return (f"there is no space left in {folder}: of the checkpoint this rank writes {gb(self.nbytes)}, and "
                f"{gb(shutil.disk_usage(folder).free)} are free; remove what is not needed there"
                f"{f', such as the older {there}' if there else ''}, or save to another disk")

    # -- together -------------------------------------------------------------------------------------------------------

    def agree(self, work: Callable[[], object], only_rank_0: bool = False) -> None:
        """Do some work, and know that all ranks have done it. Raises CheckpointError on every rank when one could
        not."""
        self.error = None
        if self.content.rank == 0 or not only_rank_0:
            try:
                work()
            except Exception as error:
                self.error = self.why(error)
            except BaseException:  # Ctrl-C: what was written stays, as if the process had been killed
                self.lock.release()
                raise
        self.raise_any()

    def raise_any(self) -> None:
        """The errors of all ranks are known, and none of them writes any more."""
        errors = self.groups.all_gather_object(self.error)
        if any(error is not None for error in errors):
            if self.lock.held:
                folders.abandon(self.path)
                self.lock.release()
            self.groups.all_gather_object("removed")
            rank, error = next((rank, error) for rank, error in enumerate(errors) if error is not None)
            raise CheckpointError(f"the checkpoint {self.path} was not saved: rank {rank}: {error}")


def said(error: Exception) -> str:
    return str(error) if isinstance(error, ZeroCourseError) else f"{type(error).__name__}: {error}"
