"""DeepSpeed's functions that make fp32 weights of a checkpoint, ours or DeepSpeed's. They need no ranks and communicate nothing."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from ...errors import BadInput
from ...formulas.units import parse_bytes
from ...zero.buffers.buffer import SHARDED
from .deepspeed_checkpoint import convert, is_deepspeed
from .folders import checkpoint_folder as folders
from .offline import buffer, export, parameter
from .source import Source

BIN = "pytorch_model.bin"


def get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir: str | Path, tag: str | None = None,
                                             exclude_frozen_parameters: bool = False, lazy_mode: bool = False) -> dict[str, torch.Tensor]:
    """Whole weights by name, floats in fp32 (the master weights), and persistent buffers; tied names share one tensor.

    checkpoint_dir: what `save_checkpoint` got, with its `latest`, or with tag=; or the folder of one checkpoint itself.
    lazy_mode: changes nothing, since tensors have a `contiguous()` anyway. Raises BadInput for what is no checkpoint.
    """
    if exclude_frozen_parameters:
        raise BadInput("exclude_frozen_parameters=True is not supported here: a checkpoint does not say which parameters were frozen, "
                       "so leave names out of the dictionary")
    with opened(checkpoint_dir, tag) as source:
        about = source.about
        state = {name: parameter(source, name, tuple(said["shape"]), torch.float32) for name, said in about["parameters"].items()}
        state |= {name: buffer(source, name, torch.float32) for name in about["buffers"]}
        return state | {name: state[first] for name, first in about.get("aliases", {}).items()}


def load_state_dict_from_zero_checkpoint(model: nn.Module, checkpoint_dir: str | Path, tag: str | None = None) -> nn.Module:
    """Load those weights into a model that is not sharded, on the CPU as DeepSpeed does. Returns it."""
    if any(hasattr(param, SHARDED) for param in model.parameters()):
        raise BadInput("load_state_dict_from_zero_checkpoint got a model that is sharded: call engine.load_checkpoint, or give it the "
                       "model before initialize")
    model = model.cpu()
    model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag), strict=False)
    return model


def convert_zero_checkpoint_to_fp32_state_dict(checkpoint_dir: str | Path, output_dir: str | Path, max_shard_size: str | int | None = "5GB",
                                               safe_serialization: bool = False, tag: str | None = None,
                                               exclude_frozen_parameters: bool = False) -> None:
    """Write those weights: as safetensors in files of at most `max_shard_size`, or, without safe_serialization, as one
    `pytorch_model.bin`. Raises BadInput."""
    folder = Path(output_dir)
    if not safe_serialization:
        state = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag, exclude_frozen_parameters)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(state, folder / f"{BIN}.draft")
        (folder / f"{BIN}.draft").replace(folder / BIN)
        return
    if exclude_frozen_parameters:
        raise BadInput("exclude_frozen_parameters=True is not supported here: a checkpoint does not say which parameters were frozen")
    with opened(checkpoint_dir, tag) as source:
        size = parse_bytes(max_shard_size) if isinstance(max_shard_size, str) else max_shard_size
        export(source, folder, torch.float32, *([] if size is None else [size]))


@contextmanager
def opened(checkpoint_dir: str | Path, tag: str | None) -> Iterator[Source]:
    """The checkpoint in that folder; one of DeepSpeed's is converted, beside it in a temporary folder."""
    folder = Path(checkpoint_dir)
    tag = tag or folders.latest(folder)
    folder = folder / str(tag) if tag is not None else folder
    if not is_deepspeed(folder):
        yield Source(folders.must_read(folder))
        return
    with tempfile.TemporaryDirectory() as between:
        convert(folder, Path(between, "c"))
        yield Source(Path(between, "c"))
