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
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.optim import Optimizer

from ...errors import BadInput, ZeroCourseError
from ...zero.ddp import DataParallel
from . import checkpoint_folder as folders
from .checkpoint_index import merge, metadata_of, name_of, part_of
from .optimizer_state import group_settings, small_states
from .pieces import Piece, aliases, buffers, pieces_to_write, rank_of
from .safe_objects import packed, random_states

POLL_SECONDS = 0.02
_under_way: "WeakKeyDictionary[DataParallel, Saving]" = WeakKeyDictionary()  # of each stage the save in the background


def save_checkpoint(model: nn.Module, optimizer: Optimizer | None, path: str | Path, extra: object = None,
                    asynchronous: bool = False) -> "Saving":
    """Save a model that `shard` returned, with its optimizer, as the folder `path`. Collective: every rank must call it.

    What is saved: parameters (fp32 master weights where they train in half precision), persistent buffers, the
    optimizer's states and hyper-parameters, each rank's random states, and `extra` as rank 0 has it (numbers, strings,
    tensors, and lists, tuples and dictionaries of them), which `load_checkpoint` returns. Gradients are not: save after
    a step. A checkpoint that is there already under this name stays until the new one is whole. All ranks must see one disk.

    asynchronous: copy everything in memory, write in the background, and return at once; the checkpoint is there after
        `wait()` of what is returned. Without it, it is there when this returns.
    Raises BadInput for gradients that no step has used, and CheckpointError when a rank cannot write.
    """
    stage, path = stage_of(model), Path(path)
    finish_earlier(stage)
    if stage.in_backward or stage.has_unused_gradients:
        raise BadInput("there are gradients that no step has used, and a checkpoint holds none: save after optimizer.step()")
    with torch.no_grad():  # what somebody wrote into the model, the master weights take over now
        stage.written.check_step()
        stage.written.before_step()
        stage.written.note_shards()
    content = Content(stage, optimizer, extra)
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


class Content:
    """What this rank writes: pieces of tensors and, as bytes, everything small. It resolves DCP's items to their data."""

    def __init__(self, stage: DataParallel, optimizer: Optimizer | None, extra: object):
        self.rank = rank_of(stage)
        self.pieces = {MetadataIndex(piece.tensor, piece.offset): piece for piece in pieces_to_write(stage, optimizer)}
        values = {f"random/{self.rank}": random_states(stage.device), f"states/{self.rank}": small_states(stage, optimizer)}
        if self.rank == 0:
            values |= {"extra": extra, "groups": group_settings(optimizer), "modules": extra_states(stage.model)}
        self.objects = {MetadataIndex(name): packed(value, name) for name, value in values.items()}
        self.about = about(stage, optimizer)

    def detach(self) -> None:
        """Copy all tensors to memory that nobody else writes."""
        self.pieces = {index: replace(piece, values=piece.values.detach().to("cpu", copy=True))
                       for index, piece in self.pieces.items()}

    def write(self, folder: Path) -> dict:
        """Write this rank's files. Returns its part of the index."""
        items = [WriteItem(index, WriteItemType.SHARD, tensor_data=described(piece)) for index, piece in self.pieces.items()]
        items += [WriteItem(index, WriteItemType.BYTE_IO) for index in self.objects]
        writer = FileSystemWriter(folder)
        plan = writer.prepare_global_plan([SavePlan([])] * self.rank + [SavePlan(items)])[-1]  # which names the files by rank
        written = writer.write_data(plan, self).value()
        pieces = {index: (piece.values.dtype, torch.Size(piece.size), piece.values.shape) for index, piece in self.pieces.items()}
        return part_of(folder, pieces, written)

    def resolve_data(self, item: WriteItem):
        """DCP asks for the data of an item when its turn to be written comes."""
        return self.objects[item.index] if item.index in self.objects else self.pieces[item.index].values.detach().cpu().clone()


def described(piece: Piece) -> TensorWriteData:
    return TensorWriteData(ChunkStorageMetadata(torch.Size(piece.offset), piece.values.shape),
                           TensorProperties(piece.values.dtype), torch.Size(piece.size))


def about(stage: DataParallel, optimizer: Optimizer | None) -> dict:
    """What the index says about the model and the run that saved it."""
    flat_of = {key: flat for flat in stage.flats for key in flat.params}
    parameters = {name: {"shape": list(param.shape), "dtype": name_of(flat_of[name].dtype)}
                  for name, param in stage.model.named_parameters()}
    return {"torch": torch.__version__, "ranks": stage.groups.size, "stage": stage.number,
            "optimizer": type(optimizer).__name__ if optimizer is not None else None, "parameters": parameters,
            "aliases": aliases(stage.model), "buffers": {name: list(each.shape) for name, each in buffers(stage.model).items()}}


def extra_states(model: nn.Module) -> dict[str, object]:
    """What the modules' `get_extra_state` return, by module."""
    return {name: module.get_extra_state() for name, module in model.named_modules()
            if type(module).get_extra_state is not nn.Module.get_extra_state}


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
        index = merge(parts, self.content.about)
        metadata = metadata_of(index)
        stored = [WriteResult(name, where.length, where) for name, where in metadata.storage_data.items()]
        FileSystemWriter(self.partial).finish(metadata, [stored])  # DCP's own index, for its tools
        for rank in range(self.ranks):
            (self.partial / f"part_{rank}.json").unlink()
        folders.write_whole(self.partial / folders.INDEX, json.dumps(index))
        folders.commit(self.path)

    def part(self, rank: int) -> dict:
        """What a rank wrote, or its error. Raises CheckpointError when it says nothing within the time limit."""
        file, until = self.partial / f"part_{rank}.json", time.monotonic() + self.limit
        while not file.exists():
            if time.monotonic() > until:
                raise CheckpointError(f"rank {rank} has not written its part within {self.limit:.0f} s (do all ranks see this disk?)")
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
        """Do some work, and know that all ranks have done it. Raises CheckpointError on every rank when one could not."""
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
