"""A checkpoint to read from: any range of any tensor, and the small things beside them. It communicates nothing."""

import io
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from .checkpoint_index import SafeReader, check_sizes, dtype_named, read_index
from .pieces import Piece
from .safe_objects import unpacked


class Source:
    """The whole checkpoint in `folder`. It resolves DCP's items to the memory that they are for.

    Raises BadInput when there is none, or when a file of it is missing or cut short.
    """

    def __init__(self, folder: Path):
        self.folder, self.index = folder, read_index(folder)
        self.about = self.index["about"]
        check_sizes(folder, self.index)
        self.reader, self.objects = SafeReader(folder, self.index), {}
        self.targets: dict[MetadataIndex, torch.Tensor] = {}

    def object(self, name: str) -> object:
        """One of the small things that the checkpoint has beside tensors."""
        index = MetadataIndex(name)
        item = ReadItem(LoadItemType.BYTE_IO, index, torch.Size([0]), index, torch.Size([0]), torch.Size([0]))
        self.fetch([item])
        return self.objects.pop(name)

    def tensor(self, name: str) -> torch.Tensor:
        """The whole of a tensor, in the shape that it is saved in (parameters and their states: 1-D)."""
        entry = self.index["tensors"][name]
        values = torch.empty(entry["size"], dtype=dtype_named(entry["dtype"]))
        self.fetch(self.items(Piece(name, values.shape, (0,) * values.dim(), values)))
        self.targets.clear()
        return values

    def items(self, piece: Piece) -> list[ReadItem]:
        """What to read for this piece, of however many pieces there are."""
        self.targets[MetadataIndex(piece.tensor, piece.offset)] = piece.values
        here = ChunkStorageMetadata(torch.Size(piece.offset), piece.values.shape)
        return create_read_items_for_chunk_list(piece.tensor, self.reader.metadata.state_dict_metadata[piece.tensor], [here])

    def fetch(self, items: list[ReadItem]) -> None:
        self.reader.read_data(LoadPlan(items), self).wait()

    # -- what DCP's reader asks for ---------------------------------------------------------------------------------------

    def load_bytes(self, item: ReadItem, value: io.BytesIO) -> None:
        self.objects[item.dest_index.fqn] = unpacked(value)

    def resolve_tensor(self, item: ReadItem) -> torch.Tensor:
        target = self.targets[item.dest_index]
        for dim, (first, length) in enumerate(zip(item.dest_offsets, item.lengths, strict=True)):
            target = target.narrow(dim, first, length)
        return target

    def commit_tensor(self, item: ReadItem, tensor: torch.Tensor) -> None:
        """It is in its place already."""
