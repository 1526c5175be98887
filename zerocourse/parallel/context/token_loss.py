"""The loss over all tokens of all ranks, weighted by tokens: all-reduces how many of them count, which is 8 bytes.

Ranks have different numbers of targets that count (padding and prompts do not), so the mean of their means is not the mean
over the tokens: a rank with one target would pull as strongly as one with a thousand.
Source: the fault is DeepSpeed's issue #5419.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ...comm import Comm
from .token_cut import NO_LABEL


def token_loss(logits_BTV: Tensor, targets_BT: Tensor, comm: Comm) -> Tensor:
    """A float32 scalar (float64 if the logits are), whose average over the ranks is the mean cross entropy over all targets
    that count. So are its gradients, when they are averaged over the same ranks, as ZeRO does. Collective.

    comm: all ranks over which gradients are averaged: those that share a sequence, and those with other sequences.
    A rank without targets has 0; where no rank has any, all have 0.
    """
    logits = logits_BTV.flatten(0, 1)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(logits, targets_BT.flatten(), ignore_index=NO_LABEL, reduction="sum")
    count = comm.all_reduce((targets_BT != NO_LABEL).sum())
    return total * comm.world_size / count.clamp(min=1)  # from left to right: whole numbers are divided in fp32
