"""A flat buffer whose optimizer states and master weights lie in the host's memory. It moves gradients down and parameters up.

The tensors of `zero.buffers.buffer`, and where they are here (own: this rank's slice):

    master        (own,)  on the host, in fp32 training too, and so are the optimizer's states, which are made like it
    grad_shard    (own,)  on the device while micro-batches are added up in it; on the host once it has gone down
    shard         (own,)  on the device; on the host where parameters are offloaded too (stage 3)

Each optimizer step moves the real elements of the slice once down and once up, in the dtype of gradients and of parameters:
2Ψ/N + 2Ψ/N bytes in half precision (arXiv 2101.06840, section 3). Padding is never moved.
"""

from dataclasses import dataclass

import torch

from ..errors import BadInput
from ..zero.buffers.buffer import FlatBuffer
from ..zero.optimizer import BufferedStep
from .link_transfer import LinkTransfer


@dataclass
class HostGradient:
    """A gradient (own,) on the host, or on its way there. norm: its 2-norm, taken on the device while it was there; None when the
    gradient has changed since."""

    values: torch.Tensor
    transfer: LinkTransfer
    norm: torch.Tensor | None


@dataclass
class Gradient:
    """All of a buffer's gradient for one update: what has gone down, to be added up, and the factor that belongs to it."""

    host_gradients: list[HostGradient]
    factor: float | torch.Tensor | None
    names: set[str]  # of the parameters that have one

    def total(self, real: int, notes: bool = True) -> torch.Tensor:
        """Their sum (own,), in the first one's memory, without the factor. Waits until all are there (see `wait`)."""
        first, *more = self.host_gradients
        for each in self.host_gradients:
            each.transfer.wait(notes)
        for each in more:
            first.values[:real].add_(each.values[:real])
            first.norm = None
        del self.host_gradients[1:]
        return first.values

    def for_step(self, flat: "OffloadedBuffer", notes: bool = True) -> torch.Tensor:
        """(own,), in the master weights' dtype, times the factor."""
        values, factor = self.total(flat.on_host.stop, notes), self.factor
        with flat.tier.taking():
            return scaled(values, flat.master.dtype, factor)


def scaled(values: torch.Tensor, dtype: torch.dtype, factor: float | torch.Tensor | None) -> torch.Tensor:
    """The values in this dtype times the factor; what is given stays as it is.   factor: a tensor of no dimensions lies on the host."""
    gradient = values.to(dtype)
    if factor is not None:
        gradient = gradient.mul_(factor) if gradient is not values else gradient * factor
    return gradient


def wait_for_source(transfer: LinkTransfer | None) -> None:
    """What it copies, if there is one, may be overwritten."""
    if transfer is not None:
        transfer.wait_for_source()


def send_factors_down(flats: list["OffloadedBuffer"]) -> LinkTransfer | None:
    """The factors that were computed on the device, as clipping does, go to the host: all in one copy, after which the step of no
    buffer waits for the device. None: there are none. They may be used when the transfer is over."""
    factors = {flat: flat.grad_factor for flat in flats
               if isinstance(flat.grad_factor, torch.Tensor) and flat.link.is_apart(flat.grad_factor.device)}
    if not factors:
        return None
    flat, on_device = next(iter(factors)), torch.stack([*factors.values()])
    on_host = flat.tier.empty(len(on_device), on_device.dtype, on_device.device)
    for each, factor in zip(factors, on_host, strict=True):
        each.grad_factor = factor
    return flat.link.down(on_host, on_device, "gradient factors")


class OffloadedBuffer(FlatBuffer):
    """A `FlatBuffer` of an offload (`HostOffload`), which has the tier and the link."""

    steps_masters = True  # what the optimizer steps is never what the modules use

    def __init__(self, offload, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.offload, self.tier, self.link = offload, offload.tier, offload.link
        self.host_gradients: list[HostGradient] = []  # what has gone down since the last zero_grad: one, if backwards say which is last
        self.publishing: LinkTransfer | None = None  # the last that went up out of `master`
        self.rising: LinkTransfer | None = None  # the last that went up out of `shard`, on the host
        self.is_updating = False  # is a delayed update under way, which has its own gradients at the shard parameters?
        parts = self.layout.shard_ranges(self.own)
        self.real = max((part.at + part.stop - part.start for part in parts), default=0)  # elements without the padding at the end
        self.keep(0)

    def keep(self, kept: int) -> None:
        """So many elements at the head of the slice stay on the device with their states (see `partly_offloaded`)."""
        self.kept, self.sent, self.on_host = kept, slice(kept, self.real), slice(0, self.real - kept)  # the last in host's tensors

    def make_shard(self, exact: torch.Tensor) -> None:
        own, host = exact[self.own], self.tier
        copied = self.full.device if exact.dtype is self.dtype else None  # else the link copies what is rounded
        self.master = host.empty(own.numel() - self.kept, exact.dtype, copied, stays=True).copy_(own[self.kept :])
        if not self.shards_parameters:
            self.shard = self.full[self.own]
        elif not self.shard_is_on_host:
            self.shard = self.full[self.own].clone()
        elif exact.dtype is self.dtype and not self.offload.delays:
            self.shard = self.master
        else:
            self.shard = host.empty(own.numel(), self.dtype, self.full.device, stays=True).copy_(own)

    # -- parameters ---------------------------------------------------------------------------------------------------

    @property
    def shard_is_on_host(self) -> bool:
        return self.shards_parameters and self.offload.parameters

    def start_publish(self) -> LinkTransfer | None:
        """Round the master weights to the dtype of the parameters, on the host, and send them up to the slice that the others
        will receive. None: the slice is on the host."""
        if self.shard_is_on_host:
            if self.shard is not self.master:
                wait_for_source(self.rising)
                self.shard.copy_(self.master)
            return None
        values = self.master
        if values.dtype is not self.dtype:
            values = self.tier.empty(values.numel(), self.dtype, self.full.device).copy_(values)
        self.publishing = self.link.up(self.shard[self.sent], values[self.on_host], self.name)
        return self.publishing

    def wait_for_masters(self) -> None:
        """The link reads the master weights no more: they may be stepped. (On a GPU a copy may still have to begin when the
        computation that comes after it has been started.)"""
        wait_for_source(self.publishing)
        if self.shard is self.master:
            wait_for_source(self.rising)

    def round_masters(self) -> None:
        transfer = self.start_publish()
        if transfer is not None:
            transfer.wait()

    def start_raise(self) -> LinkTransfer:
        """Stage 3 with offloaded parameters: send this rank's slice up to its place in `full`."""
        own = self.full[self.own]
        own[self.real :].zero_()
        self.rising = self.link.up(own[: self.real], self.shard[: self.real], self.name)
        return self.rising

    def take_written(self, was_written: bool) -> None:
        """What is compared crosses the link.
        Raises BadInput, on all ranks, while a delayed update is under way, which would undo the write."""
        if was_written and self.is_updating:
            raise BadInput(f"a forward has written into parameters of {self.name!r} (max_norm=, clamp_), while an update of them was "
                           "delayed (delay_after): train such a model without a delay")
        if was_written and self.shard is not self.master:
            held = self.shard
            if not self.shard_is_on_host:
                held = self.tier.empty(self.master.numel(), self.dtype, self.full.device).zero_()
                self.link.down(held[self.on_host], self.shard[self.sent], self.name).wait()
            self.adopt(held)

    # -- gradients ----------------------------------------------------------------------------------------------------

    @property
    def is_down(self) -> bool:
        return bool(self.host_gradients) and self.grad_shard is self.host_gradients[-1].values

    def send_down(self) -> None:
        """The slice of the gradient is reduced: start moving it to the host, and give its memory on the device back."""
        if self.grad_shard is None or self.is_down:
            return
        slice = self.grad_shard
        into = self.tier.empty(slice.numel() - self.kept, slice.dtype, slice.device)
        norm = self.norm_of(slice, torch.float64 if slice.dtype in (torch.float64, torch.complex128) else torch.float32)
        self.host_gradients.append(HostGradient(into, self.link.down(into[self.on_host], slice[self.sent], self.name), norm))
        self.grad_shard = into
        self.take_bucket()  # stages 1 and 2 keep none, then: the next micro-batch begins another

    def add_slice(self, reduced: torch.Tensor) -> None:
        if self.is_down:
            self.grad_shard = None  # `host_gradients` has it; what comes now goes down after it, and is added there
        super().add_slice(reduced)

    def host_gradient(self) -> torch.Tensor:
        """The whole gradient (own,), on the host. Waits until it is there."""
        self.send_down()
        self.grad_shard = Gradient(self.host_gradients, None, set()).total(self.on_host.stop)
        return self.grad_shard

    def reduced_gradient(self) -> torch.Tensor | None:
        """(own,), on the host."""
        self.apply_factor()
        return None if self.grad_shard is None else self.host_gradient()

    def gradient_was_written(self) -> None:
        if self.host_gradients:
            self.host_gradients[0].norm = None

    def publish_gradients(self) -> None:
        """Nothing: they are still coming down. The step gives the optimizer each buffer's when its turn comes."""

    def give_gradients(self) -> None:
        """Give each shard parameter its part of the gradient, in the master weights' dtype."""
        if self.grad_shard is not None:
            self.send_down()
            self.wait_for_masters()
            self.hand_out(self.gradient_for_step(), self.has_grad)

    def gradient_for_step(self) -> torch.Tensor:
        """(own,), on the host."""
        return Gradient(self.host_gradients, self.grad_factor, self.has_grad).for_step(self)

    def take_gradients(self) -> Gradient:
        """The gradient leaves the buffer, which can take the next one; it may still be on its way down."""
        self.send_down()
        taken = Gradient(self.host_gradients, self.grad_factor, set(self.has_grad))
        self.host_gradients, self.grad_shard, self.grad_factor = [], None, None
        return taken

    def withdraw_gradients(self) -> None:
        if not self.is_updating:  # else a zero_grad would take them from the update
            super().withdraw_gradients()

    def gradient_norm(self, dtype: torch.dtype) -> torch.Tensor:
        taken = self.host_gradients[0].norm if self.is_down and len(self.host_gradients) == 1 else None
        if taken is not None and taken.dtype is dtype:
            norm = taken
        else:
            norm = self.norm_on_host(dtype) if self.host_gradients else self.norm_of(self.grad_shard, dtype)
        return norm if self.grad_factor is None else norm * self.grad_factor

    def norm_on_host(self, dtype: torch.dtype) -> torch.Tensor:
        return self.norm_of(self.host_gradient()[self.on_host], dtype).to(self.full.device)

    def scale_gradient(self, factor: float | torch.Tensor) -> None:
        """Later, on the host: the gradient may be on its way."""
        if self.grad_shard is not None:
            self.grad_factor = factor if self.grad_factor is None else self.grad_factor * factor

    def apply_factor(self) -> None:
        if self.grad_factor is not None and self.host_gradients:
            self.host_gradient()
            self.host_gradients[0].norm = None if self.host_gradients[0].norm is None else self.host_gradients[0].norm * self.grad_factor
            if isinstance(self.grad_factor, torch.Tensor):
                self.grad_factor = self.grad_factor.to(self.grad_shard.device)
        super().apply_factor()

    def clear_gradients(self, set_to_none: bool = True) -> None:
        self.host_gradients = []
        super().clear_gradients(set_to_none)

    # -- the step -----------------------------------------------------------------------------------------------------

    def step(self, optimizer_step: BufferedStep) -> object:
        """Update the master weights. Whatever that allocates is the host's."""
        with self.tier.taking():
            return optimizer_step(self)

    def stepped_on_host(self) -> list[torch.Tensor]:
        """What the optimizer steps there."""
        return list(self.shard_params.values())

    # -- what it holds ------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        held = super().tensors()
        held["gradients"] += [each.values for each in self.host_gradients]
        if self.shard is not self.master:
            return held
        return held | {"parameters": [self.full], "optimizer": [self.master]}

    @property
    def handed_out(self) -> list[torch.Tensor]:
        return [] if self.is_updating else super().handed_out  # the thread of a delayed update may free them at any moment

    @property
    def bytes_by_tensor(self) -> dict[str, int]:
        """Those on the device."""
        held = super().bytes_by_tensor
        return held | {"shard": held["shard"] * (not self.shard_is_on_host), "grad_shard": held["grad_shard"] * (not self.is_down),
                       "master": 0, "master_grads": 0}
