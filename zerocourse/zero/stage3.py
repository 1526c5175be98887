"""Stage 3: all-gathers a unit's parameters before it computes, frees them after; only the slices are kept.

16Ψ/N bytes and 3Ψ(N-1)/N elements a step (arXiv 1910.02054, sections 5.3 and 7.2.2): parameters travel once for the
forward and once for the backward, gradients once.
"""

from dataclasses import replace

import torch
from torch import nn

from ..comm import Comm, Handle
from ..errors import BadInput
from . import hooks
from .buffer import FlatBuffer
from .ddp import local_step
from .extras.hidden import Hiding
from .extras.refusals import refuse_create_graph, same_number_of_forwards
from .schedule import Pass, Prefetcher
from .stage2 import Stage2
from .unit import Unit
from .walk import Walk


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
        self.current = self.root  # the unit that computes
        self.prefetcher = Prefetcher(self.options.prefetch)
        self.hiding = Hiding(self.flats, self.gather_for_use)

    # -- gather and release -------------------------------------------------------------------------------------------

    def start_unshard(self, unit: Unit) -> None:
        for flat in unit.flats:
            if not flat.gathered:
                unit.gathers.append((flat, self.ops.unshard(flat, self.comm)))
                self.meter.recount(flat)

    def unshard_unit(self, unit: Unit) -> None:
        """The unit's parameters are there when this returns."""
        self.start_unshard(unit)
        while unit.gathers:
            flat, handle = unit.gathers.pop(0)
            if handle is not None:
                with same_number_of_forwards():
                    handle.wait()
            self.hiding.show(flat)

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
                self.hiding.hide(flat)

    def reshard_all(self) -> None:
        for unit in self.units:
            if not unit.forward_depth:
                self.reshard_unit(unit)

    def unshard_and_prefetch(self, unit: Unit, upcoming: list[Unit]) -> None:
        """Gather the unit, and start gathering those that come next (before the wait: the link is never idle).

        In a backward with in_flight=1 they start later, when half of this unit's gradients have come. By then the last unit's
        reduction is over, and has given its memory back. On every rank: wait for the reduction of the unit before,
        start gathering the next, reduce this one.
        """
        self.start_upcoming()
        self.start_unshard(unit)
        self.current = unit
        self.upcoming = [each for each in upcoming if not each.is_allocated]
        if self.options.in_flight != 1 or not self.in_flight:
            self.start_upcoming()
        self.unshard_unit(unit)

    def start_upcoming(self) -> None:
        """Start gathering those that come next."""
        if self.upcoming and self.options.in_flight == 1:
            self.wait_for_reductions()
        while self.upcoming:
            self.start_unshard(self.upcoming.pop(0))

    def gather_for_use(self, flat: FlatBuffer) -> bool:
        """A parameter is used while its unit does not compute."""
        if not (self.root.forward_depth or self.in_backward):
            return False
        unit = self.unit_of[flat]
        unit.stays_with_root = True
        self.unshard_unit(unit)
        return True

    # -- forward ------------------------------------------------------------------------------------------------------

    def before_compute(self, unit: Unit) -> None:
        """Gather it. Inside the model the next units are known; a unit that is called by itself, or computed again by
        activation checkpointing, has nothing after it that one could gather ahead."""
        if hooks.current_backward() != -1 or not self.root.forward_depth:
            self.unshard_unit(unit)
            return
        if unit is self.root and unit.forward_depth == 1:
            self.prefetcher.start()
        self.unshard_and_prefetch(unit, self.prefetcher.next_after(unit))

    def post_forward(self, unit: Unit, failed: bool = False) -> None:
        super().post_forward(unit, failed)
        if hooks.current_backward() != -1 or unit.forward_depth:
            return
        no_backward = unit is self.root and (failed or not torch.is_grad_enabled())
        for each in self.units if unit is self.root else [unit]:  # the root's end frees also what was gathered ahead, or kept
            if no_backward or self.options.reshard_after_forward and not each.stays_with_root:
                self.reshard_unit(each)

    # -- backward -----------------------------------------------------------------------------------------------------

    def begin_pass(self, of_pass: Pass) -> None:
        self.walk.begin_pass(of_pass)
        super().begin_pass(of_pass)
        for unit in [*self.last_units, *of_pass.ahead[: self.options.prefetch]]:
            self.start_unshard(unit)
        for unit in self.last_units:
            self.unshard_unit(unit)

    def pre_backward(self, of_pass: Pass, unit: Unit) -> None:
        refuse_create_graph()
        super().pre_backward(of_pass, unit)
        self.walk.come_to(of_pass, unit)

    def enter(self, unit: Unit) -> None:
        self.unshard_and_prefetch(unit, self.passes[-1].ahead[: self.options.prefetch])

    def on_gradient(self, flat: FlatBuffer, key: str, param: nn.Parameter) -> None:
        entered = self.walk.entered
        if self.unit_of[flat] is self.root and not self.walk.has_units_ahead and not any(unit.awaits_gradients for unit in entered):
            self.walk.leave_all()  # nothing follows the last unit, so a root's gradient, after all of its own, tells that it is over
        super().on_gradient(flat, key, param)
        if self.upcoming and sum(2 * len(flat.awaited) - flat.trainable for flat in self.current.flats) <= 0:  # half are there
            self.start_upcoming()

    def ready_to_reduce(self, flat: FlatBuffer) -> bool:
        """A reduction waits until the backward has left its unit, so that all ranks start it at the same point among the
        gathers, whichever parameters a rank has used. After the last gather full buckets are reduced at once."""
        unit = self.unit_of[flat]
        if unit in self.walk.exited and not unit.stays_with_root:
            return not flat.awaited
        return not self.walk.has_units_ahead and super().ready_to_reduce(flat)

    def leave(self, unit: Unit) -> None:
        self.start_upcoming()
        self.meter.end("backward", unit.name)
        self.reduce_full_buckets()
        if self.reshards and not (unit.stays_with_root or unit.forward_depth or self.walk.is_repeated(unit)):
            self.reshard_unit(unit)  # units that ran twice stay, since only some ranks would have to gather them again

    def end_backward(self) -> None:
        self.start_upcoming()
        self.walk.finish()
        super().end_backward()
        if self.reshards:
            self.reshard_all()

    def forget_backward(self) -> None:
        super().forget_backward()
        self.upcoming: list[Unit] = []  # units that are to be gathered while `current` computes, and are not begun yet
        self.walk = Walk(self.enter, self.leave)

    # -- the optimizer ------------------------------------------------------------------------------------------------

    def step(self, *args) -> object:
        if any(unit.holds for unit in self.units):
            raise BadInput("the optimizer's step was called inside gathered() or generating(), which hold the parameters of before: "
                           "step when the context has ended")
        self.reshard_all()
        return super().step(*args)

    def recover(self) -> None:
        super().recover()
        self.reshard_all()
