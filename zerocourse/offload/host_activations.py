"""What forward keeps for backward, in the host's memory. It moves each tensor down in the forward and up in the backward.

    checkpoint_blocks(model, packing=HostActivations(rate=200e6))

With checkpointed blocks that is each block's input, 2 bytes an element in half precision, so that the device holds those
of the block that computes and of the one before it, whose copy may be under way. In the backward, blocks come in the reverse
order: while one computes, the input of the one before it comes up.
Source: Rajbhandari et al. 2020, arXiv 1910.02054, section 6.1 (P_a+cpu).
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .host_link import HostLink
from .link_transfer import LinkTransfer
from .tiers import Tier

NAME = "activations"


@dataclass(eq=False)
class OnHost:
    """A tensor that lies on the host, or is on its way there."""

    values: Tensor  # (numel,)
    transfer: LinkTransfer
    shape: torch.Size
    device: torch.device
    before: Callable[[], "OnHost | None"]  # what was packed before it, while a graph still keeps that
    rising: tuple[Tensor, LinkTransfer] | None = None  # the tensor on the device again, and what brings it
    was_used: bool = False


class HostActivations:
    """A packing (`activations.keeping`).   budget, pin_memory, rate, link, tier: as for `HostOffload`."""

    def __init__(self, budget: int | str | None = None, rate: float | None = None, pin_memory: bool = True,
                 link: HostLink | None = None, tier: Tier | None = None):
        self.tier, self.link = tier or Tier("host", budget, pin=pin_memory), link or HostLink(rate)
        self.last: LinkTransfer | None = None  # a transfer keeps what it copies alive, so it is released before the next begins
        self.latest: Callable[[], OnHost | None] = lambda: None  # a weak reference

    def attach(self, stage) -> None:
        """Use the tier and the link of the stage's offload, where there is one, and its timeline."""
        if stage.offload is not None:
            self.tier, self.link = stage.offload.tier, stage.offload.link
        self.link.recorder = stage.recorder

    def pack(self, tensor: Tensor) -> OnHost:
        flat = tensor.reshape(-1)
        values = self.tier.empty(flat.numel(), flat.dtype, flat.device)
        if self.last is not None:
            self.last.release()
        self.last = self.link.down(values, flat, NAME)
        packed = OnHost(values, self.last, tensor.shape, tensor.device, before=self.latest)
        self.latest = weakref.ref(packed)
        return packed

    def unpack(self, packed: OnHost) -> Tensor:
        tensor, transfer = self.start_raise(packed)
        packed.rising, packed.was_used = None, True
        upcoming = packed.before()
        if upcoming is not None and not upcoming.was_used and self.link.takes_time(packed.device):
            self.start_raise(upcoming)
        transfer.wait()
        return tensor

    def start_raise(self, packed: OnHost) -> tuple[Tensor, LinkTransfer]:
        """Start bringing it up, if that has not begun."""
        if packed.rising is None:
            packed.transfer.release()  # in the order of what computes, so a stream that waits for that finds it on the host
            tensor = torch.empty(packed.shape, dtype=packed.values.dtype, device=packed.device)
            packed.rising = tensor, self.link.up(tensor.view(-1), packed.values, NAME)
        return packed.rising
