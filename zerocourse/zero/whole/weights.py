"""Weights from a folder of safetensors: each rank reads the slices that it owns; gathers what else it shows.

So a model that is built on the meta device gets its weights without a copy of it anywhere: at stage 3 a rank reads, and
holds, its N-th of the bytes, and at stages 1 and 2 the slices of the others come over the network.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from ...errors import BadInput
from ...init.safetensors_folder import SafetensorsFolder
from ..ddp import DataParallel

Reader = Callable[[int, int], torch.Tensor]  # the elements [start, stop) of a parameter, in the order of its rows, 1-D


def load_safetensors(model: nn.Module, folder) -> int:
    """Set the parameters of a model that `shard` returned, and its persistent buffers, from a local folder of
    safetensors. Collective.

    folder: as Hugging Face's `save_pretrained` writes it. Names that the model lacks are passed over, and so are
    buffers that the folder lacks. Returns the bytes that this rank has read. Raises BadInput, before anything changes,
    that names parameters that are not there or have another shape.
    """
    weights = SafetensorsFolder(folder)
    readers = readers_of(model, weights)
    model.zero.settle()
    read_weights(model.zero, readers)
    read_buffers(model, weights)
    return weights.bytes_read


def readers_of(model: nn.Module, weights: SafetensorsFolder) -> dict[str, Reader]:
    """By parameter (under its first name) what reads it from the folder. Raises BadInput for one that is not there."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        names.setdefault(param, []).append(name)
    prefix = getattr(model, "base_model_prefix", "")
    found = {called[0]: weights.name_of(called, prefix) for called in names.values()}
    missing = [name for name, stored in found.items() if stored is None]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise BadInput(f"{weights.path} has no weights for {', '.join(map(repr, missing[:3]))}{more}")
    for param, (name, *_) in names.items():
        shape = weights.tensors[found[name]].shape
        if shape != tuple(param.shape):
            raise BadInput(f"{name!r} is {shape} in {weights.path}, and {tuple(param.shape)} in the model")
    return {name: partial(weights.read, stored) for name, stored in found.items()}


def read_weights(stage: DataParallel, readers: dict[str, Reader]) -> None:
    """Fill this rank's slices of the parameters that have a reader."""
    with torch.no_grad():
        for flat in stage.flats:
            with flat.at_hand(writes=True):
                for part in flat.ranges():
                    if part.name in readers:
                        flat.master_of(part).copy_(readers[part.name](part.start, part.stop))
    publish(stage)


def read_buffers(model: nn.Module, weights: SafetensorsFolder) -> None:
    """Set the persistent buffers that the folder has. Every rank reads them."""
    prefix = getattr(model, "base_model_prefix", "")
    persistent = type(model).state_dict(model, keep_vars=True)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            found = weights.name_of([name], prefix) if name in persistent else None
            if found is not None and weights.tensors[found].shape == tuple(buffer.shape):
                buffer.copy_(weights.read(found).view(buffer.shape))


def publish(stage: DataParallel) -> None:
    """Every rank has filled its master weights: round them to the training dtype, and fetch the slices of the others
    where this rank has all of them."""
    with torch.no_grad():
        for flat in stage.flats:
            flat.round_masters()
            if flat.gathered:
                with flat.at_hand():
                    flat.full[flat.own].copy_(flat.shard)
                if stage.shards_optimizer:
                    flat.comm.all_gather(flat.full, flat.layout, flat.name).wait()
    stage.written.note_shards()
