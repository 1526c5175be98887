"""What forward keeps for backward, in the host's memory. It moves each tensor down in the forward and up in the backward.

    checkpoint_blocks(model, packing=HostActivations(rate=200e6))

With checkpointed blocks that is each block's input, 2 bytes an element in half precision, so that the device holds those
of the block that computes and of the one before it, whose copy may be under way.
Source: Rajbhandari et al. 2020, arXiv 1910.02054, section 6.1 (P_a+cpu).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .host_link import HostLink, LinkTransfer
from .tiers import Tier

NAME = "activations"


@dataclass(frozen=True)
class OnHost:
    """A tensor that lies on the host, or is on its way there."""

    values: Tensor  # (numel,)
    transfer: LinkTransfer
    shape: torch.Size
    device: torch.device


class HostActivations:
    """A packing (`activations.keeping`).   budget, pin_memory, rate, link, tier: as for `HostOffload`."""

    def __init__(self, budget: int | str | None = None, rate: float | None = None, pin_memory: bool = True,
                 link: HostLink | None = None, tier: Tier | None = None):
        self.tier, self.link = tier or Tier("host", budget, pin=pin_memory), link or HostLink(rate)
        self.last: LinkTransfer | None = None  # a transfer keeps what it copies alive, so one at most is under way

    def attach(self, stage) -> None:
        """Use the tier and the link of the stage's offload, where there is one, and its timeline."""
        if stage.offload is not None:
            self.tier, self.link = stage.offload.tier, stage.offload.link
        self.link.recorder = stage.recorder

    def pack(self, tensor: Tensor) -> OnHost:
        flat = tensor.reshape(-1)
        values = self.tier.empty(flat.numel(), flat.dtype, flat.device)
        if self.last is not None:
            self.last.wait()
        self.last = self.link.down(values, flat, NAME)
        return OnHost(values, self.last, tensor.shape, tensor.device)

    def unpack(self, packed: OnHost) -> Tensor:
        packed.transfer.wait()
        tensor = torch.empty(packed.shape, dtype=packed.values.dtype, device=packed.device)
        self.link.up(tensor.view(-1), packed.values, NAME).wait()
        return tensor
