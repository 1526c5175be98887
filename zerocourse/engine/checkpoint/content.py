"""What one rank writes into a checkpoint, and what makes a whole of all ranks' parts. It communicates nothing."""

from collections.abc import Iterable, Set
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.optim import Optimizer

from ...zero.ddp import DataParallel
from ...zero.whole.expert_rows import whole_shape
from .folders import checkpoint_folder as folders
from .folders.checkpoint_index import merge, metadata_of, part_of, text_of
from .folders.index_form import name_of
from .optimizer_state import group_settings, small_states
from .pieces import Piece, aliases, buffers, frozen, pieces_to_write, rank_of
from .safe_objects import packed, random_states


class Content:
    """What this rank writes: pieces of tensors and, as bytes, everything small. It gives DCP the data of its items."""

    def __init__(self, rank: int, pieces: Iterable[Piece], objects: dict[str, object], about: dict):
        self.rank, self.about = rank, about
        self.pieces = {MetadataIndex(piece.tensor, piece.offset): piece for piece in pieces}
        self.objects = {MetadataIndex(name): packed(value, name) for name, value in objects.items()}

    @property
    def nbytes(self) -> int:
        """Of this rank's pieces of tensors."""
        return sum(piece.values.nbytes for piece in self.pieces.values())

    def detach(self) -> None:
        """Copy all tensors to memory that nobody else writes."""
        self.pieces = {index: replace(piece, values=piece.copied(), flat=None) for index, piece in self.pieces.items()}

    def write(self, folder: Path) -> dict:
        """Write this rank's files. Returns its part of the index."""
        items = [WriteItem(index, WriteItemType.SHARD, tensor_data=described(piece))
                 for index, piece in self.pieces.items()]
        items += [WriteItem(index, WriteItemType.BYTE_IO) for index in self.objects]
        writer = FileSystemWriter(folder)
        plan = writer.prepare_global_plan([SavePlan([])] * self.rank + [SavePlan(items)])[-1]  # names files by rank
        written = writer.write_data(plan, self).value()
        pieces = {index: (piece.values.dtype, torch.Size(piece.size), piece.values.shape)
                  for index, piece in self.pieces.items()}
        return part_of(folder, pieces, written)

    def resolve_data(self, item: WriteItem):
        """DCP asks for the data of an item when its turn to be written comes."""
        if item.index in self.objects:
            return self.objects[item.index]
        return self.pieces[item.index].copied()  # a view would be saved with all of its storage


def described(piece: Piece) -> TensorWriteData:
    return TensorWriteData(ChunkStorageMetadata(torch.Size(piece.offset), piece.values.shape),
                           TensorProperties(piece.values.dtype), torch.Size(piece.size))


def content_of(stage: DataParallel, optimizer: Optimizer | None, extra: object, exclude_frozen: bool = False) -> Content:
    """This rank's content. Raises BadInput for what a checkpoint cannot hold."""
    without = frozen(stage.model) if exclude_frozen else set()
    rank = rank_of(stage)
    objects = {f"random/{rank}": random_states(stage.device), f"states/{rank}": small_states(stage, optimizer)}
    if rank == 0:
        objects |= {"extra": extra, "groups": group_settings(optimizer), "modules": extra_states(stage.model)}
    return Content(rank, pieces_to_write(stage, optimizer, without), objects, about(stage, optimizer, without))


def about(stage: DataParallel, optimizer: Optimizer | None, without: Set[str]) -> dict:
    """What the index says about the model and the run that saved it.   without: parameters that are left out."""
    flat_of = {key: flat for flat in stage.flats for key in flat.params}
    parameters = {name: {"shape": list(whole_shape(param)), "dtype": name_of(flat_of[name].dtype)}
                  for name, param in stage.model.named_parameters() if name not in without}
    return {"torch": torch.__version__, "ranks": stage.groups.size, "stage": stage.number,
            "optimizer": type(optimizer).__name__ if optimizer is not None else None, "parameters": parameters,
            "excluded": sorted(without), **({"aligned": True} if stage.options.aligned else {}),
            "aliases": {name: first for name, first in aliases(stage.model).items() if first not in without},
            "buffers": {name: list(each.shape) for name, each in buffers(stage.model).items()}}


def extra_states(model: nn.Module) -> dict[str, object]:
    """What the modules' `get_extra_state` return, by module."""
    return {name: module.get_extra_state() for name, module in model.named_modules()
            if type(module).get_extra_state is not nn.Module.get_extra_state}


def make_whole(path: Path, parts: list[dict], about: dict) -> None:
    """All ranks have written their parts into `NAME.partial`: make the index, and let the folder take its place."""
    partial, index = folders.beside(path, folders.PARTIAL), merge(parts, about)
    metadata = metadata_of(index)
    stored = [WriteResult(name, where.length, where) for name, where in metadata.storage_data.items()]
    FileSystemWriter(partial).finish(metadata, [stored])  # DCP's own index, for its tools
    folders.write_whole(partial / folders.INDEX, text_of(index))
    folders.commit(path)
