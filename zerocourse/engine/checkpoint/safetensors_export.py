"""Weights as safetensors, as Hugging Face's `from_pretrained` reads them. Gathers the model on rank 0."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from ...errors import BadInput
from ...zero.whole.consolidate import state_dict
from .folders.checkpoint_folder import write_whole
from .pieces import aliases
from .saving import said, stage_of

FILE, FILE_INDEX, FILES = "model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"
SHARD_BYTES = 5_000_000_000


@dataclass
class LazyTensor:
    """A tensor that is made when its turn to be written comes."""

    nbytes: int
    make: Callable[[], torch.Tensor]


def save_safetensors(model: nn.Module, folder: str | Path, dtype: torch.dtype | None = None,
                     shard_bytes: int = SHARD_BYTES) -> None:
    """Write the whole weights of a sharded model into `folder`. Collective; every rank returns when the files are
    there.

    dtype: of the floats in the files; None: as they train.   shard_bytes: the most in one file.
    Tied weights are written once, under their first name, and the model's `config`, where it has one, beside them.
    """
    stage, error = stage_of(model), None
    state = state_dict(model, rank_0_only=True)
    if state:
        try:
            tied = aliases(model)
            tensors = {name: LazyTensor(nbytes(value.shape, value.dtype, dtype), partial(cast, value, dtype))
                       for name, value in state.items() if isinstance(value, torch.Tensor) and name not in tied}
            write_safetensors(tensors, Path(folder), shard_bytes)
            for part in ("config", "generation_config"):
                if hasattr(getattr(model, part, None), "save_pretrained"):
                    getattr(model, part).save_pretrained(folder)
        except Exception as caught:
            error = said(caught)
    for each in stage.groups.all_gather_object(error):
        if each is not None:
            raise BadInput(f"the weights cannot be written to {folder}: {each}")


def nbytes(shape: tuple[int, ...], own: torch.dtype, wanted: torch.dtype | None) -> int:
    return torch.Size(shape).numel() * (wanted if wanted is not None and own.is_floating_point else own).itemsize


def cast(value: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return (value.to(dtype) if dtype is not None and value.is_floating_point() else value).contiguous()


def write_safetensors(tensors: dict[str, LazyTensor], folder: Path, shard_bytes: int = SHARD_BYTES) -> list[str]:
    """Write tensors into files of at most so many bytes (a longer tensor goes alone). Returns the files' names.

    No more than one file's tensors are in memory at once. Files of an earlier export go when the new ones are there.
    """
    shards: list[dict[str, LazyTensor]] = [{}]
    for name, tensor in tensors.items():
        if shards[-1] and sum(each.nbytes for each in shards[-1].values()) + tensor.nbytes > shard_bytes:
            shards.append({})
        shards[-1][name] = tensor
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = [FILE]
    for name, shard in zip(names, shards, strict=True):
        draft = folder / f"{name}.draft"
        try:
            save_file({key: tensor.make() for key, tensor in shard.items()}, draft, metadata={"format": "pt"})
        except SafetensorError as error:  # what the system said, in words of its own
            raise BadInput(f"{folder / name} cannot be written: {error}") from error
        else:
            draft.replace(folder / name)
        finally:
            draft.unlink(missing_ok=True)
    if len(shards) > 1:
        where = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        total = sum(tensor.nbytes for tensor in tensors.values())
        write_whole(folder / FILE_INDEX, json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2))
    earlier = {FILE, *(file.name for file in folder.glob(FILES))} | ({FILE_INDEX} if len(shards) == 1 else set())
    for name in earlier - set(names):
        (folder / name).unlink(missing_ok=True)
    return names
