"""A checkpoint to read from: any range of any tensor, and the small things beside them. It communicates nothing.

Bytes are used when they have been compared with the checksum of what was written. Whoever must have all or nothing, as a
model that takes a checkpoint over, checks everything first (`check`).
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from ...errors import BadInput
from .folders.checkpoint_index import check_sizes, metadata_of, read_index
from .folders.checksums import FileSection, Span, is_as_written, span_of
from .folders.index_form import dtype_named
from .pieces import Piece
from .safe_objects import unpacked


class Source:
    """The whole checkpoint in `folder`.

    Raises BadInput when there is none, when a file of it is missing or cut short, and, here and in all methods, when
    what is read is not what was written.
    """

    def __init__(self, folder: Path):
        self.folder, self.index = folder, read_index(folder)
        self.about = self.index["about"]
        check_sizes(folder, self.index)
        self.described = metadata_of(self.index).state_dict_metadata
        self.chunks = {MetadataIndex(name, chunk["offset"]): chunk
                       for name, entry in self.index["tensors"].items() for chunk in entry["chunks"]}
        self.checked: set[Span] = set()
        self.targets: dict[MetadataIndex, torch.Tensor] = {}

    def entry(self, name: str) -> dict:
        """What the index says of a tensor."""
        return self.must_have("tensors", name)

    def object(self, name: str) -> object:
        """One of the small things that the checkpoint has beside tensors."""
        return self.stored(name, self.must_have("objects", name))

    def must_have(self, kind: str, name: str) -> dict:
        if name not in self.index[kind]:
            raise BadInput(f"the checkpoint {self.folder} has no {name!r}")
        return self.index[kind][name]

    def tensor(self, name: str) -> torch.Tensor:
        """The whole of a tensor, in the shape that it is saved in (parameters and their states: 1-D)."""
        entry = self.entry(name)
        values = torch.empty(entry["size"], dtype=dtype_named(entry["dtype"]))
        self.fetch(self.items(Piece(name, values.shape, (0,) * values.dim(), values)))
        self.targets.clear()
        return values

    def items(self, piece: Piece) -> list[ReadItem]:
        """What to read for this piece, of however many pieces there are."""
        self.entry(piece.tensor)
        self.targets[MetadataIndex(piece.tensor, piece.offset)] = piece.values
        here = ChunkStorageMetadata(torch.Size(piece.offset), piece.values.shape)
        return create_read_items_for_chunk_list(piece.tensor, self.described[piece.tensor], [here])

    def fetch(self, items: Iterable[ReadItem]) -> None:
        """Read into the memory that `items` was given."""
        for item in items:
            name, chunk = item.storage_index.fqn, self.chunks[item.storage_index]
            stored = self.stored(name, chunk)
            if not isinstance(stored, torch.Tensor) or list(stored.shape) != chunk["sizes"]:
                raise BadInput(f"the checkpoint {self.folder} is damaged: what {chunk['file']} has at {chunk['at']} is not of "
                               f"{name!r}")
            target = self.targets[item.dest_index].detach()
            for dim, length in enumerate(item.lengths):
                stored = stored.narrow(dim, item.storage_offsets[dim], length)
                target = target.narrow(dim, item.dest_offsets[dim], length)
            target.copy_(stored)

    def check(self, name: str, start: int = 0, stop: int | None = None) -> None:
        """Read the chunks that have elements [start, stop) of a tensor, or all of them, and use nothing of it."""
        for chunk in self.entry(name)["chunks"]:
            if stop is None or start < chunk["offset"][0] + chunk["sizes"][0] and chunk["offset"][0] < stop:
                self.check_bytes(name, chunk)

    def check_bytes(self, name: str, where: dict) -> None:
        """They are what was written, or have been found to be."""
        span = span_of(where, self.index["files"])
        if span not in self.checked and not is_as_written(self.folder, span):
            raise BadInput(f"the checkpoint {self.folder} is damaged, or mixed with another: {span.file} has another "
                           f"checksum than what was written, in {name!r}")
        self.checked.add(span)

    def stored(self, name: str, where: dict) -> object:
        """The object or the tensor at that place."""
        self.check_bytes(name, where)
        try:
            with (self.folder / where["file"]).open("rb") as file:
                return unpacked(FileSection(file, where["at"], where["bytes"]))
        except OSError:
            raise
        except Exception as error:  # pickle's, zipfile's and torch's own, which say more than is true
            raise BadInput(f"the checkpoint {self.folder} has {name!r} in {where['file']} in a form that cannot be read "
                           f"without running its code, or it is damaged ({type(error).__name__})") from error
