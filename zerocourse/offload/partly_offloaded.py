"""A flat buffer of which an exact share is offloaded: the rest of this rank's slice is stepped on the device. It moves that share.

    kept          elements at the head of the slice whose master weights and states stay on the device
    kept_master   (kept,)        a view of `shard` in fp32 training; fp32 copies in half precision
    master        (own - kept,)  on the host
    kept_grad     (kept,)        on the device, once the rest of the gradient has gone down

A parameter through which the cut goes is two parameters for the optimizer, each with its states; in a checkpoint it is one.
DeepSpeed counts whole sub-groups of 10^9 elements, so that any ratio of a smaller model is nothing or everything (DeepSpeed#4775).
"""

from dataclasses import dataclass

import torch

from ..layout.rankmap import ShardRange
from ..zero.optimizer import BufferedStep, is_seen_stepping
from .link_transfer import LinkTransfer
from .offloaded_buffer import OffloadedBuffer, scaled


class PartlyOffloadedBuffer(OffloadedBuffer):
    """A buffer of a `HostOffload` whose ratio is below 1."""

    def __init__(self, offload, *args, **kwargs):
        super().__init__(offload, *args, **kwargs)
        trains = any(param.requires_grad for param in self.params.values())
        self.keep(self.real - offload.host_elements(self.real, trains))
        self.kept_grad: torch.Tensor | None = None

    def make_shard(self, exact: torch.Tensor) -> None:
        super().make_shard(exact)
        self.kept_is_shard = exact.dtype is self.dtype
        self.kept_master = self.shard[: self.kept] if self.kept_is_shard else exact[self.own][: self.kept].clone()

    # -- parameters ---------------------------------------------------------------------------------------------------

    def ranges(self, share: slice | None = None) -> list[ShardRange]:
        share, cut = share or self.own, self.own.start + self.kept
        return super().ranges(slice(share.start, min(cut, share.stop))) + super().ranges(slice(max(cut, share.start), share.stop))

    def shard_view_of(self, own: tuple[torch.Tensor, torch.Tensor], part: ShardRange) -> torch.Tensor:
        """own: (what is kept, what is on the host)."""
        section, before = (own[0], 0) if part.at < self.kept else (own[1], self.kept)
        return section[part.at - before : part.at - before + part.stop - part.start]

    def master_of(self, part: ShardRange) -> torch.Tensor:
        return self.shard_view_of((self.kept_master, self.master), part)

    def start_publish(self) -> LinkTransfer | None:
        if not self.kept_is_shard:
            self.shard[: self.kept].copy_(self.kept_master)
        return super().start_publish()

    def take_written(self, was_written: bool) -> None:
        super().take_written(was_written)
        if was_written and not self.kept_is_shard:
            self.adopt(self.shard[: self.kept], self.kept_master)

    # -- gradients ----------------------------------------------------------------------------------------------------

    def send_down(self) -> None:
        if self.grad_shard is not None and not self.is_down:
            kept = self.grad_shard[: self.kept]
            self.kept_grad = kept.clone() if self.kept_grad is None else self.kept_grad.add_(kept)
        super().send_down()

    def reduced_gradient(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """((kept,) on the device, (own - kept,) on the host)"""
        on_host = super().reduced_gradient()
        return None if on_host is None else (self.kept_grad, on_host)

    def gradient_for_step(self) -> tuple[torch.Tensor, torch.Tensor]:
        """((kept,) on the device, (own - kept,) on the host)"""
        return scaled(self.kept_grad, self.kept_master.dtype, self.grad_factor), super().gradient_for_step()

    def norm_on_host(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.hypot(super().norm_on_host(dtype), self.norm_of(self.kept_grad, dtype))

    def apply_factor(self) -> None:
        if self.grad_factor is not None and self.kept_grad is not None:
            self.kept_grad.mul_(self.grad_factor)
        super().apply_factor()

    def clear_gradients(self, set_to_none: bool = True) -> None:
        self.kept_grad = None
        super().clear_gradients(set_to_none)

    # -- the step -----------------------------------------------------------------------------------------------------

    def step(self, optimizer_step: BufferedStep) -> object:
        """Both parts, each where it lies; at once, if somebody would notice two calls (their states are told apart later)."""
        if is_seen_stepping(optimizer_step.optimizer):
            return optimizer_step(self)
        with self.tier.taking():
            optimizer_step(self.section(on_host=True))
        return optimizer_step(self.section(on_host=False))

    def section(self, on_host: bool) -> "BufferSection":
        params = {part: param for part, param in self.shard_params.items() if (part.at >= self.kept) == on_host}
        return BufferSection(params)

    def stepped_on_host(self) -> list[torch.Tensor]:
        return list(self.section(on_host=True).shard_params.values())

    # -- what it holds ------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        held = super().tensors()
        kept = [] if self.kept_grad is None else [self.kept_grad]
        masters = [] if self.kept_is_shard else [self.kept_master]
        return held | {"gradients": held["gradients"] + kept, "optimizer": held["optimizer"] + masters}

    @property
    def bytes_by_tensor(self) -> dict[str, int]:
        held = super().bytes_by_tensor
        master = 0 if self.kept_is_shard else self.kept_master.nbytes
        return held | {"grad_shard": self.kept_grad.nbytes if self.is_down else held["grad_shard"], "master": master}


@dataclass(eq=False)
class BufferSection:
    """What of a buffer is stepped at once."""

    shard_params: dict[ShardRange, torch.nn.Parameter]
