"""Activations in the host's memory from the forward to the backward. It communicates nothing.

    with keeping(model, OnHost(tier)):
        loss = model(tokens, targets)
    loss.backward()
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .tiers import Tier


@dataclass(frozen=True)
class HostCopy:
    """A tensor's copy in the host's tier, and what it takes to make the tensor again."""

    own: Tensor  # (numel,)
    shape: torch.Size
    device: torch.device


class OnHost:
    """A packing (`activations.keeping`): the tier has a copy, and the device's memory is free until the backward.

    The copies are synchronous, so that the step waits for the link twice: 2 bytes over it for each byte that is kept.
    """

    def __init__(self, tier: Tier):
        self.tier = tier

    def pack(self, tensor: Tensor) -> HostCopy:
        """Raises OutOfMemory over the tier's budget."""
        own = self.tier.empty(tensor.numel(), tensor.dtype)
        own.copy_(tensor.reshape(-1))
        return HostCopy(own, tensor.shape, tensor.device)

    def unpack(self, packed: HostCopy) -> Tensor:
        tensor = torch.empty(packed.shape, dtype=packed.own.dtype, device=packed.device)
        return tensor.copy_(packed.own.view(packed.shape))
