"""A batch on another device than the model: the usual mistake of a first run on a GPU, said in one sentence. It sends nothing."""

import re

import torch

from ..comm.torch_private import tree_leaves
from ..errors import BadInput

# What operations say whose tensors are on two devices; one of another mistake may have a tensor that is on the CPU on purpose.
TWO_DEVICES = re.compile(r"same device|expected device|is on cpu|torch\.cuda\.\w+Tensor")


def check_device(error: RuntimeError, inputs: object, device: torch.device) -> None:
    """Raise BadInput where a forward failed because a tensor of its inputs is not on the model's device.

    It is looked at afterwards, because a model may move its inputs, and wants some of them on the CPU, such as lengths.
    """
    for each in tree_leaves(inputs):
        if isinstance(each, torch.Tensor) and each.dim() and each.device != device and TWO_DEVICES.search(str(error)):
            raise BadInput(f"the batch is on {each.device} and the model on {device}: call .to(engine.device)") from error
