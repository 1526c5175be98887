"""The index of a checkpoint: which tensors it has, and where the pieces of each lie. It communicates nothing.

The files are those of torch's distributed checkpoint (DCP), so that torch's own tools read them. DCP's `.metadata` is a
pickle, though, and whoever loads a pickle runs what it says. So the same facts stand in `index.json` too, with sizes
and checksums of the files, and that is what we read:

    {"format": 1, "about": {...},
     "tensors": {NAME: {"size": [n], "dtype": "float32",
                        "chunks": [{"offset": [0], "sizes": [k], "file": ..., "at": ..., "bytes": ...}]}},
     "objects": {NAME: {"file": ..., "at": ..., "bytes": ...}},
     "files": {"__0_0.distcp": {"bytes": ..., "crc32": ...}}}

Each rank makes the part of what it wrote, and `merge` puts the parts together. All numbers are in bytes but for `size`,
`offset` and `sizes`, which are in elements.
"""

import json
import zlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

from ...errors import BadInput
from .checkpoint_folder import INDEX

FORMAT = 1
READ_BYTES = 1 << 24  # at once


def part_of(folder: Path, tensors: dict[MetadataIndex, tuple[torch.dtype, torch.Size, torch.Size]],
            written: list[WriteResult]) -> dict:
    """What one rank wrote into `folder`. tensors: by DCP's name for a piece the dtype, the tensor's size, the
    piece's."""
    part: dict = {"tensors": {}, "objects": {}, "files": {}}
    for each in written:
        stored = each.storage_data
        where = {"file": stored.relative_path, "at": stored.offset, "bytes": stored.length}
        if each.index in tensors:
            dtype, size, sizes = tensors[each.index]
            begun = {"size": list(size), "dtype": name_of(dtype), "chunks": []}
            entry = part["tensors"].setdefault(each.index.fqn, begun)
            entry["chunks"].append({"offset": list(each.index.offset), "sizes": list(sizes), **where})
        else:
            part["objects"][each.index.fqn] = where
    for name in {each.storage_data.relative_path for each in written}:
        part["files"][name] = {"bytes": (folder / name).stat().st_size, "crc32": checksum_of(folder / name)}
    return part


def merge(parts: Iterable[dict], about: dict) -> dict:
    """The index of the whole checkpoint."""
    index: dict = {"format": FORMAT, "about": about, "tensors": {}, "objects": {}, "files": {}}
    for part in parts:
        for name, entry in part["tensors"].items():
            index["tensors"].setdefault(name, entry | {"chunks": []})["chunks"] += entry["chunks"]
        index["objects"] |= part["objects"]
        index["files"] |= part["files"]
    for entry in index["tensors"].values():
        entry["chunks"].sort(key=lambda chunk: chunk["offset"])
    return index


def read_index(folder: Path) -> dict:
    """Raises BadInput when it cannot be read."""
    try:
        index = json.loads((folder / INDEX).read_text())
        if index["format"] != FORMAT:
            raise BadInput(f"{folder} has the format {index['format']}, and this version of zerocourse reads {FORMAT}")
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise BadInput(f"{folder / INDEX} is damaged: {error}") from error
    return index


def metadata_of(index: dict) -> Metadata:
    """The index in DCP's own terms."""
    described, stored = {}, {}
    for name, entry in index["tensors"].items():
        chunks = [ChunkStorageMetadata(torch.Size(chunk["offset"]), torch.Size(chunk["sizes"]))
                  for chunk in entry["chunks"]]
        dtype = TensorProperties(dtype_named(entry["dtype"]))
        described[name] = TensorStorageMetadata(dtype, torch.Size(entry["size"]), chunks)
        for chunk in entry["chunks"]:
            stored[MetadataIndex(name, chunk["offset"])] = _StorageInfo(chunk["file"], chunk["at"], chunk["bytes"])
    for name, where in index["objects"].items():
        described[name] = BytesStorageMetadata()
        stored[MetadataIndex(name)] = _StorageInfo(where["file"], where["at"], where["bytes"])
    return Metadata(described, storage_data=stored)


class SafeReader(FileSystemReader):
    """DCP's reader, which knows where the pieces are from the index and never opens DCP's pickle."""

    def __init__(self, folder: Path, index: dict):
        super().__init__(folder)
        self.metadata = metadata_of(index)
        self.set_up_storage_reader(self.metadata, is_coordinator=False)


def check_sizes(folder: Path, index: dict) -> None:
    """Raises BadInput that names a file which is missing or has not the bytes that were written."""
    for problem in damage(folder, index, contents=False):
        raise BadInput(f"the checkpoint {folder} is damaged: {problem}")


def damage(folder: Path, index: dict, contents: bool = True) -> Iterable[str]:
    """What is wrong with the files, in words: missing ones, sizes, and with `contents`, which reads all, checksums."""
    for name, expected in index["files"].items():
        file = folder / name
        if not file.is_file():
            yield f"{name} is missing"
        elif file.stat().st_size != expected["bytes"]:
            yield f"{name} has {file.stat().st_size:,} bytes and was written with {expected['bytes']:,}"
        elif contents and checksum_of(file) != expected["crc32"]:
            yield f"{name} has another checksum than what was written"


def checksum_of(file: Path) -> int:
    total = 0
    with file.open("rb") as stream:
        while block := stream.read(READ_BYTES):
            total = zlib.crc32(block, total)
    return total


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise BadInput(f"the checkpoint has a tensor of the dtype {name!r}, which this torch does not know")
    return dtype
