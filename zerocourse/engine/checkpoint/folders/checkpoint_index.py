"""The index of a checkpoint: which tensors it has, and where the pieces of each lie. It communicates nothing.

The files are those of torch's distributed checkpoint (DCP), so that torch's own tools read them. DCP's `.metadata` is a
pickle, though, and whoever loads a pickle runs what it says. So the same facts stand in `index.json` too, with sizes
and checksums, and that is what we read:

    {"format": 2, "about": {...},
     "tensors": {NAME: {"size": [n], "dtype": "float32",
                        "chunks": [{"offset": [0], "sizes": [k], "file": ..., "at": ..., "bytes": ..., "crc32": ...}]}},
     "objects": {NAME: {"file": ..., "at": ..., "bytes": ..., "crc32": ...}},
     "files": {"__0_0.distcp": {"bytes": ...}}, "crc32": ...}

The last checksum is that of the text before it. Each rank makes the part of what it wrote, and `merge` puts the parts
together. All numbers are in bytes but for `size`, `offset` and `sizes`, which are in elements. Format 1, of earlier
versions, has checksums of files alone, and none of its own.
"""

import json
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

from ....comm.torch_private import stored_at
from ....data.file_checksum import checksum_of
from ....errors import BadInput
from .checkpoint_folder import INDEX
from .checksums import is_as_written, span_of
from .index_form import dtype_named, name_of, problem_of

FORMATS = 1, 2  # that are read; the last one is written
OWN_CHECKSUM = re.compile(rb', "crc32": (\d+)}$')  # how the text of an index ends


def part_of(folder: Path, tensors: dict[MetadataIndex, tuple[torch.dtype, torch.Size, torch.Size]],
            written: list[WriteResult]) -> dict:
    """What one rank wrote into `folder`. tensors: by DCP's name for a piece the dtype, the tensor's size, the
    piece's."""
    part: dict = {"tensors": {}, "objects": {}, "files": {}}
    for each in written:
        stored = each.storage_data
        where = {"file": stored.relative_path, "at": stored.offset, "bytes": stored.length}
        where |= {"crc32": checksum_of(folder / stored.relative_path, stored.offset, stored.length)}
        if each.index in tensors:
            dtype, size, sizes = tensors[each.index]
            begun = {"size": list(size), "dtype": name_of(dtype), "chunks": []}
            entry = part["tensors"].setdefault(each.index.fqn, begun)
            entry["chunks"].append({"offset": list(each.index.offset), "sizes": list(sizes), **where})
        else:
            part["objects"][each.index.fqn] = where
    for name in {each.storage_data.relative_path for each in written}:
        part["files"][name] = {"bytes": (folder / name).stat().st_size}
    return part


def merge(parts: Iterable[dict], about: dict) -> dict:
    """The index of the whole checkpoint."""
    index: dict = {"format": FORMATS[-1], "about": about, "tensors": {}, "objects": {}, "files": {}}
    for part in parts:
        for name, entry in part["tensors"].items():
            index["tensors"].setdefault(name, entry | {"chunks": []})["chunks"] += entry["chunks"]
        index["objects"] |= part["objects"]
        index["files"] |= part["files"]
    for entry in index["tensors"].values():
        entry["chunks"].sort(key=lambda chunk: chunk["offset"])
    return index


def text_of(index: dict) -> str:
    """The index as it stands in its file, with its own checksum."""
    text = json.dumps(index)
    return f'{text[:-1]}, "crc32": {zlib.crc32(text.encode())}}}'


def read_index(folder: Path) -> dict:
    """Raises BadInput when it cannot be read, or is not as it was written."""
    text = (folder / INDEX).read_bytes()
    try:
        index = json.loads(text)
        if index["format"] not in FORMATS:
            raise BadInput(f"{folder} has the format {index['format']!r:.20}, and this version of zerocourse reads "
                           f"{' and '.join(map(str, FORMATS))}")
        if index["format"] > 1:
            own = OWN_CHECKSUM.search(text)
            if own is None or zlib.crc32(text[:own.start()] + b"}") != int(own[1]):
                raise BadInput(f"{folder / INDEX} is damaged: it has another checksum than what was written")
        problem = problem_of(index)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        problem = f"{error} is not there" if isinstance(error, KeyError) else str(error)
    if problem:
        raise BadInput(f"{folder / INDEX} is damaged: {problem}")
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
            stored[MetadataIndex(name, chunk["offset"])] = stored_at(chunk["file"], chunk["at"], chunk["bytes"])
    for name, where in index["objects"].items():
        described[name] = BytesStorageMetadata()
        stored[MetadataIndex(name)] = stored_at(where["file"], where["at"], where["bytes"])
    return Metadata(described, storage_data=stored)


def check_sizes(folder: Path, index: dict) -> None:
    """Raises BadInput that names a file which is missing or has not the bytes that were written."""
    for problem in damage(folder, index, contents=False):
        raise BadInput(f"the checkpoint {folder} is damaged: {problem}")


def damage(folder: Path, index: dict, contents: bool = True) -> Iterable[str]:
    """What is wrong with the files, in words: missing ones, sizes, and with `contents`, which reads all, checksums."""
    spans = {span_of(where, index["files"]) for where in index["objects"].values()}
    spans |= {span_of(chunk, index["files"]) for entry in index["tensors"].values() for chunk in entry["chunks"]}
    for name, expected in index["files"].items():
        file = folder / name
        if not file.is_file():
            yield f"{name} is missing"
        elif file.stat().st_size != expected["bytes"]:
            yield f"{name} has {file.stat().st_size:,} bytes and was written with {expected['bytes']:,}"
        elif contents and not all(is_as_written(folder, span) for span in spans if span.file == name):
            yield f"{name} has another checksum than what was written"
