"""Whether what stands in the index of a checkpoint fits together. It communicates nothing.

An index of format 1 has no checksum of its own, so anything may stand in one that was damaged. What has another type
than it should raises one of Python's own errors here, which `read_index` makes a sentence of.
"""

import math
from pathlib import Path

import torch

from ....errors import BadInput
from .checksums import span_of


def problem_of(index: dict) -> str | None:
    """What does not fit together, in words."""
    about, files, objects = index["about"], index["files"], index["objects"]
    ranks, _ = whole_numbers([about["ranks"], about["stage"]])
    if ranks + 3 > len(objects):
        return f"it has {len(objects)} objects, and {ranks} ranks write at least {ranks + 3}"
    missing = {"extra", "groups", "modules", *(f"states/{rank}" for rank in range(ranks))} - objects.keys()
    if missing or "optimizer" not in about:
        return f"{min(missing, default='optimizer')!r} is not there"
    shapes = {f"model/{name}": said["shape"] for name, said in about["parameters"].items()}
    shapes |= {f"buffer/{name}": shape for name, shape in about["buffers"].items()}
    for name, entry in index["tensors"].items():
        problem = problem_of_tensor(entry, shapes.get(name))
        if problem:
            return f"{name!r} {problem}"
    for where in [*objects.values(), *(chunk for entry in index["tensors"].values() for chunk in entry["chunks"])]:
        span = span_of(where, files)
        at, nbytes, whole, _ = whole_numbers([where["at"], where["bytes"], files[span.file]["bytes"], span.crc32])
        if Path(span.file).name != span.file or at + nbytes > whole:
            return f"{span.file!r} has not the bytes {at} to {at + nbytes}"
    return None


def problem_of_tensor(entry: dict, shape: list[int] | None) -> str | None:
    """shape: that of the parameter or buffer, where the tensor is one. Chunks of a 1-D tensor come in order and make it
    whole; another tensor is one chunk."""
    size, itemsize, end = whole_numbers(entry["size"]), dtype_named(entry["dtype"]).itemsize, 0
    if shape is not None and math.prod(whole_numbers(shape)) != math.prod(size):
        return f"has {math.prod(size)} elements, and its shape is {shape}"
    for chunk in entry["chunks"]:
        offset, sizes = whole_numbers(chunk["offset"]), whole_numbers(chunk["sizes"])
        if offset != ([end] if len(size) == 1 else [0] * len(size)) or len(sizes) != len(size):
            return f"has a chunk at {offset} where the one before ends at {end}"
        if math.prod(sizes) * itemsize > chunk["bytes"]:
            return f"has a chunk of {sizes} elements in {chunk['bytes']} bytes"
        end += math.prod(sizes)
    return None if end == math.prod(size) else f"has {math.prod(size)} elements, and {end} in its chunks"


def whole_numbers(values: list[int]) -> list[int]:
    if not isinstance(values, list) or any(type(each) is not int or each < 0 for each in values):
        raise TypeError(f"{values!r:.60} are not whole numbers")
    return values


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise BadInput(f"the checkpoint has a tensor of the dtype {name!r}, which this torch does not know")
    return dtype
