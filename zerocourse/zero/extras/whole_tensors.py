"""Optimizers that look at whole tensors: Adafactor, Muon, Lamb. Needed by: Hugging Face's `--optim adafactor`, Muon under ZeRO.

With a rank map for whole tensors each is, whole, on one rank, which updates it as one process would: the parts that the optimizer
steps get their parameters' shapes. It communicates nothing.
"""

import weakref

import torch
from torch.optim import Optimizer

from ...errors import BadInput
from ..extra import Extra
from .refusals import WHOLE_TENSORS, is_one_of


class WholeTensors(Extra):
    def __init__(self, stage):
        self.stage = weakref.ref(stage)

    def before_take_over(self, optimizer: Optimizer) -> None:
        give_shapes(optimizer, self.stage())


def give_shapes(optimizer: Optimizer, stage) -> None:
    """Nothing for an optimizer whose update is element-wise. Raises BadInput where an offload cuts tensors, or lays states out flat."""
    if not is_one_of(optimizer, WHOLE_TENSORS):
        return
    if stage.offload is not None and stage.offload.disk is not None:
        raise BadInput(f"{type(optimizer).__name__} has states of other shapes than its parameters, for which the disk has no place: "
                       "offload to the host")
    for flat in stage.flats:
        for part, param in flat.shard_params.items():
            if (part.start, part.stop) != (0, flat.params[part.name].numel()):
                raise BadInput(f"{type(optimizer).__name__} looks at whole tensors, and this rank has a part of {part.name!r} in another "
                               "memory: leave the offload's ratio at 1")
            with torch.no_grad():
                param.data = param.data.view(flat.params[part.name].shape)
