"""Stage 3: all-gathers a unit's parameters before it computes, frees them after; only the slices are kept.

16Ψ/N bytes and 3Ψ(N-1)/N elements a step (arXiv 1910.02054, sections 5.3 and 7.2.2): parameters travel once for the
forward and once for the backward, gradients once.
"""

from dataclasses import replace

import torch

from ..autograd.graph import current_backward
from ..comm import Comm, Handle
from ..errors import BadInput, CollectiveError
from .buffers.buffer import FlatBuffer
from .buffers.unit import Unit
from .ddp import local_step
from .passes.schedule import Pass, Prefetcher
from .stage2 import Stage2


def unshard(flat: FlatBuffer, comm: Comm) -> Handle:
    """Give `full` memory again and gather all slices into it. Ψ(N-1)/N elements."""
    flat.storage.allocate()
    flat.full[flat.own].copy_(flat.shard)
    return comm.all_gather(flat.full, flat.layout, flat.name)


def reshard(flat: FlatBuffer) -> None:
    """Free `full`. What autograd saved of it becomes valid again with the next unshard."""
    flat.storage.free()


class Stage3(Stage2):
    """Optimizer states, gradients and parameters are sharded."""

    number = 3
    shards_parameters = True
    ops = replace(Stage2.ops, step=local_step, unshard=unshard, reshard=reshard)

    def __init__(self, *args):
        super().__init__(*args)
        self.prefetcher = Prefetcher(self.options.prefetch)

    # -- gather and release -------------------------------------------------------------------------------------------

    def start_unshard(self, unit: Unit) -> None:
        for flat in unit.flats:
            if not flat.gathered:
                unit.gathers.append((flat, self.ops.unshard(flat, flat.comm)))
                self.meter.recount(flat)

    def unshard_unit(self, unit: Unit) -> None:
        """The unit's parameters are there when this returns."""
        self.start_unshard(unit)
        while unit.gathers:
            flat, handle = unit.gathers.pop(0)
            if handle is not None:
                try:
                    handle.wait()
                except CollectiveError as error:
                    raise CollectiveError(f"{error}. At stage 3 every rank must run the same number of forwards: when a model "
                                          "generates text, say synced_gpus=True") from error
            for extra in self.extras:
                extra.after_unshard(flat)

    def reshard_unit(self, unit: Unit) -> None:
        """Free the unit's parameters, unless somebody holds them."""
        if unit.holds:
            return
        if unit.gathers:  # never free memory that a collective still writes to
            self.unshard_unit(unit)
        for flat in unit.flats:
            if flat.gathered and flat.storage.nbytes:
                for extra in self.extras:
                    extra.before_reshard(flat)
                with self.recorder.span("reshard", flat.name, flat.storage.nbytes):
                    self.ops.reshard(flat)
                    self.meter.recount(flat)
                for extra in self.extras:
                    extra.after_reshard(flat)

    def reshard_all(self) -> None:
        for unit in self.units:
            if not unit.forward_depth:
                self.reshard_unit(unit)

    # -- forward ------------------------------------------------------------------------------------------------------

    def before_compute(self, unit: Unit) -> None:
        """Gather it. Inside the model the next units are known; a unit that is called by itself, or computed again by
        activation checkpointing, has nothing after it that one could gather ahead."""
        if current_backward() != -1 or not self.root.forward_depth:
            self.unshard_unit(unit)
            return
        if unit is self.root and unit.forward_depth == 1:
            self.prefetcher.start()
        for each in (unit, *self.prefetcher.next_after(unit)):  # all before the wait: the link is never idle
            self.start_unshard(each)
        self.unshard_unit(unit)

    def post_forward(self, unit: Unit, failed: bool = False) -> None:
        super().post_forward(unit, failed)
        if current_backward() != -1 or unit.forward_depth:
            return
        no_backward = unit is self.root and (failed or not torch.is_grad_enabled())
        for each in self.units if unit is self.root else [unit]:  # the root's end frees also what was gathered ahead, or kept
            if no_backward or self.options.reshard_after_forward and not each.stays_with_root:
                self.reshard_unit(each)

    # -- backward -----------------------------------------------------------------------------------------------------

    def pre_backward(self, of_pass: Pass, unit: Unit) -> bool:
        is_new = of_pass not in self.backward.passes
        computes = super().pre_backward(of_pass, unit)
        for each in [*(self.last_units if is_new else ()), *([unit] if computes else ())]:
            self.unshard_unit(each)
        return computes

    def leave(self, unit: Unit) -> None:
        """The backward is past the unit."""
        self.meter.end("backward", unit.name)
        if not (unit.stays_with_root or unit.forward_depth):
            self.reshard_unit(unit)

    def end_backward(self) -> None:
        super().end_backward()
        if self.next_backward.reshards:
            self.reshard_all()

    # -- the optimizer ------------------------------------------------------------------------------------------------

    def step(self, *args) -> object:
        if any(unit.holds for unit in self.units):
            raise BadInput("the optimizer's step was called inside gathered() or generating(), which hold the parameters of before: "
                           "step when the context has ended")
        return super().step(*args)

    def recover(self) -> None:
        super().recover()
        self.reshard_all()
