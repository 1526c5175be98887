"""A checkpoint without its model: what is in it, and its weights as safetensors. It communicates nothing."""

import math
from functools import partial
from pathlib import Path

import torch

from .folders.index_form import dtype_named
from .safetensors_export import SHARD_BYTES, LazyTensor, cast, nbytes, write_safetensors
from .source import Source


def export(source: Source, folder: Path, dtype: torch.dtype | None = None, shard_bytes: int = SHARD_BYTES) -> list[str]:
    """Write the weights and persistent buffers of a checkpoint as safetensors. Returns the names of the files.

    dtype: of the floats; None: each as it was trained.   shard_bytes: the most in one file, and in memory.
    """
    weights = {}
    for name, said in source.about["parameters"].items():
        trained, shape = dtype_named(said["dtype"]), tuple(said["shape"])
        wanted = dtype or trained  # a master weight is as exact as the wanted dtype has use for
        weights[name] = LazyTensor(nbytes(shape, trained, dtype), partial(parameter, source, name, shape, wanted))
    for name, shape in source.about["buffers"].items():
        own = dtype_named(source.entry(f"buffer/{name}")["dtype"])
        weights[name] = LazyTensor(nbytes(shape, own, dtype), partial(buffer, source, name, dtype))
    return write_safetensors(weights, folder, shard_bytes)


def parameter(source: Source, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The parameter in its own shape; a float in this dtype."""
    if not math.prod(shape):
        return torch.empty(shape, dtype=dtype)
    return cast(source.tensor(f"model/{name}").view(shape), dtype)


def buffer(source: Source, name: str, dtype: torch.dtype | None) -> torch.Tensor:
    return cast(source.tensor(f"buffer/{name}"), dtype)


def summary(source: Source) -> dict:
    """What a checkpoint holds, in numbers."""
    about = source.about
    return {"ranks": about["ranks"], "stage": about["stage"], "optimizer": about["optimizer"],
            "params": sum(math.prod(said["shape"]) for said in about["parameters"].values()),
            "bytes": sum(file["bytes"] for file in source.index["files"].values()), "files": len(source.index["files"])}
