"""Stage 3: all-gathers a unit's parameters before it computes, frees them after; only the slices are kept.

16Ψ/N bytes and 3Ψ(N-1)/N elements a step (arXiv 1910.02054, sections 5.3 and 7.2.2): parameters travel once for the
forward and once for the backward, gradients once.
"""

from dataclasses import replace

import torch
from torch import nn

from ..comm.group import Comm, Handle
from ..errors import BadInput
from . import hooks
from .ddp import StageOps, local_step
from .buffer import FlatBuffer
from .schedule import Prefetcher
from .stage2 import Stage2
from .unit import Unit


def unshard(flat: FlatBuffer, comm: Comm) -> Handle:
    """Give `full` memory again and gather all slices into it. Ψ(N-1)/N elements."""
    flat.storage.allocate()
    flat.full[flat.own].copy_(flat.shard)
    return comm.all_gather(flat.full, flat.layout, flat.name)


def reshard(flat: FlatBuffer) -> None:
    """Free `full`. What autograd saved of it becomes valid again with the next unshard."""
    flat.storage.free()


class Stage3(Stage2):
    """Optimizer states, gradients and parameters are sharded.

    prefetch: units gathered ahead.   reshard_after_forward: False keeps the parameters until the backward used them,
    which sends 2Ψ instead of 3Ψ and holds them all at once.
    """

    number = 3
    shards_parameters = True
    ops = replace(Stage2.ops, step=local_step, unshard=unshard, reshard=reshard)

    def __init__(self, model: nn.Module, units: list[Unit], comm: Comm, ops: StageOps | None = None, in_flight: int = 1,
                 prefetch: int = 1, reshard_after_forward: bool = True):
        super().__init__(model, units, comm, ops, in_flight)
        self.prefetcher, self.reshard_after_forward = Prefetcher(prefetch), reshard_after_forward
        self.current = self.root  # the unit that computes
        self.ahead: list[Unit] = []  # those that are to be gathered meanwhile, and are not begun yet
        for unit in units[1:]:  # not the root
            for module in unit.module.modules():
                module._parameters = FetchedOnUse(self, unit, module._parameters)

    # -- gather and release -------------------------------------------------------------------------------------------

    def start_gather(self, unit: Unit) -> None:
        for flat in unit.flats:
            if not flat.gathered:
                handle = self.ops.unshard(flat, self.comm)
                unit.gathers.append((flat, handle))

    def gather(self, unit: Unit) -> None:
        """The unit's parameters are there when this returns."""
        self.start_gather(unit)
        while unit.gathers:
            flat, handle = unit.gathers.pop(0)
            if handle is not None:
                handle.wait()
            flat.show()

    def release(self, unit: Unit) -> None:
        """Free the unit's parameters."""
        if unit.gathers:  # never free memory that a collective still writes to
            self.gather(unit)
        for flat in unit.flats:
            if flat.gathered:
                with self.recorder.span("reshard", flat.name, flat.storage.nbytes):
                    self.ops.reshard(flat)
                if not flat.gathered:
                    flat.hide()

    def use(self, unit: Unit, kind: str) -> None:
        """Gather the unit, and start gathering those that come next (before the wait: the link is never idle).

        With one reduction in flight, those that come next wait in the backward until the middle of the unit: the
        reduction has the link until then, and they take memory that it gave back.
        """
        if kind == "forward" and hooks.backward_is_running():  # checkpointing computes it again; its backward follows
            self.gather(unit)
            return
        if kind == "forward" and unit is self.root:
            self.prefetcher.start("forward")
        self.gather_ahead()
        self.start_gather(unit)
        self.current = unit
        self.ahead = [each for each in self.prefetcher.next_after(unit, kind) if not each.gathering]
        if self.in_flight != 1 or not self.reducing:
            self.gather_ahead()
        self.gather(unit)

    def gather_ahead(self) -> None:
        """Start gathering those that come next. On every rank that is after the reduction of the unit before `current`,
        and before anything else is gathered or reduced."""
        if self.ahead and self.in_flight == 1:
            self.wait_for_reductions()
        while self.ahead:
            self.start_gather(self.ahead.pop(0))

    # -- the verbs ----------------------------------------------------------------------------------------------------

    def post_forward(self, unit: Unit) -> None:
        super().post_forward(unit)
        if hooks.backward_is_running():
            return
        if unit is self.root:  # whoever was gathered early or held for another unit goes now
            keep = not self.reshard_after_forward or unit.external
            if not (keep and torch.is_grad_enabled()):
                self.release_all()
        elif self.reshard_after_forward and not unit.external:
            self.release(unit)

    def pre_backward(self, unit: Unit) -> None:
        if torch.is_grad_enabled():  # create_graph=True
            raise BadInput("a backward with create_graph=True at stage 3 would free the parameters that a backward through it "
                           "needs: use stage 2 for a gradient penalty")
        super().pre_backward(unit)

    def begin_backward(self) -> None:
        super().begin_backward()
        lasting = [unit for unit in self.units if unit.external or unit is self.root]
        for unit in [*lasting, *self.prefetcher.start("backward")]:
            self.start_gather(unit)
        for unit in lasting:
            self.gather(unit)

    def on_gradient(self, flat: FlatBuffer, key: str, param: nn.Parameter) -> None:
        super().on_gradient(flat, key, param)
        if self.ahead and self.current.half_done:
            self.gather_ahead()

    def is_full(self, unit: Unit, flat: FlatBuffer) -> bool:
        """While units gather for their backward, a reduction waits for its unit's end, to come at the same point of this
        sequence on all ranks, whichever parameters a rank has used. A unit none of whose inputs needs a gradient has no
        such end: its reduction comes after all gathers."""
        return unit is self.root and super().is_full(unit, flat)

    def post_backward(self, unit: Unit) -> None:
        self.gather_ahead()
        super().post_backward(unit)
        if not unit.external:
            self.release(unit)

    def end_backward(self) -> None:
        self.gather_ahead()
        super().end_backward()
        for unit in self.units:
            if not unit.computes:
                self.release(unit)

    def step(self, *args) -> object:
        self.release_all()
        return super().step(*args)

    def recover(self) -> None:
        self.ahead = []
        super().recover()
        self.release_all()

    def release_all(self) -> None:
        for unit in self.units:
            self.release(unit)


class FetchedOnUse(dict):
    """A module's parameters: who takes one out in a forward, while its unit does not compute, has the unit gathered.

    That happens when another unit uses it, as in `F.linear(x, other.weight)`. From then on the unit stays gathered for
    as long as the root is, also in the backward. Whoever iterates over parameters gets none of them: most only want to count.
    """

    def __init__(self, stage: Stage3, unit: Unit, params: dict):
        super().__init__(params)
        self.stage, self.unit = stage, unit

    def __getitem__(self, name: str) -> nn.Parameter | None:
        if self.stage.in_forward and not self.unit.computes:
            self.unit.external = True
            self.stage.gather(self.unit)
        return super().__getitem__(name)
