"""Stage 0, data parallel: all-reduces the gradients, frees nothing. The base class of stages 1 to 3.

Every rank holds all parameters, gradients and optimizer states: 16 bytes a parameter (Rajbhandari et al. 2020,
arXiv 1910.02054, section 3.1). Gradients are collected in one bucket per flat buffer and reduced while the backward goes
on. What a stage does to a unit, and where:

                                 stages 0 and 1             stage 2                    stage 3
    pre_forward   (before_compute)                                                     all-gather parameters, prefetch
    post_forward                                                                       free parameters
    pre_backward  (Gather)                                                             all-gather parameters, prefetch
    on_gradient   (collect)      into the bucket            into the bucket            into the bucket
    bucket full   (Reduce)       reduce it, keep it         reduce-scatter, free it    reduce-scatter, free it
    unit's end    (Free)                                                               free parameters
    end_backward  (finish)       agree, publish gradients   the same                   the same
    step          (ops.step)     update; stage 1: gather    update, gather             update
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from ..autograd.graph import current_backward
from ..autograd.running import is_running
from ..comm import Comm, Handle
from ..comm.events import Recorder
from ..measure.ledger import Ledger
from ..measure.stage_meter import StageMeter
from ..measure.storages import held_by
from . import hooks
from .buffers.buffer import FlatBuffer
from .buffers.groups import Groups
from .buffers.unit import Unit
from .extra import Extra
from .options import BackwardOptions, ZeroOptions
from .passes.backward import Backward
from .passes.program import REDUCE, SHARE, SUM, Call
from .passes.reducing import Reductions
from .passes.schedule import Forward, Pass
from .passes.written import WrittenParameters


def all_reduce(flat: FlatBuffer, comm: Comm) -> Handle:
    """Sum the bucket over the ranks, on every rank: a reduce-scatter, then an all-gather. 2Ψ(N-1)/N elements."""
    own = flat.grad[flat.reduce_slice]
    reduced = comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=own).then(lambda: flat.sum_replicas(own))
    return reduced.then(lambda: comm.all_gather(flat.grad, flat.layout, flat.name)).then(flat.slice_is_reduced)


def local_step(flats: list[FlatBuffer], comm: Comm, optimizer_step: Callable[..., object]) -> object:
    """Every rank updates what it holds of every parameter, and tells nobody."""
    result = None
    for flat in flats:
        result = optimizer_step(flat)
        flat.round_masters()
    return result


@dataclass(frozen=True)
class StageOps:
    """The functions that make a stage what it is. Any of them can be given from outside.

    reduce(flat, comm): the bucket `flat.grad` is complete, zeros where there was no gradient; bring this rank's part of
        the sum to `flat.grad_shard`. May return a Handle.
    step(flats, comm, optimizer_step): `flat.grad_shard` is there; update, and make every rank's parameters new.
        `optimizer_step(flat)` steps one buffer, `optimizer_step()` all of them.
    unshard(flat, comm): bring all slices to `flat.full` (stage 3). May return a Handle.
    reshard(flat): free `flat.full` (stage 3).
    """

    reduce: Callable[[FlatBuffer, Comm], Handle | None]
    step: Callable[[list[FlatBuffer], Comm, Callable[..., object]], object]
    unshard: Callable[[FlatBuffer, Comm], Handle | None] = lambda flat, comm: None
    reshard: Callable[[FlatBuffer], None] = lambda flat: None


class DataParallel:
    """One model and its optimizer, trained by the ranks of `groups`. What the next backward does, `backward_options` says."""

    number = 0
    shards_optimizer = False  # does a rank update only its slice?
    shards_gradients = False  # is the full gradient dropped after each backward?
    shards_parameters = False  # is the full parameter dropped after use?
    ops = StageOps(all_reduce, local_step)

    def __init__(self, model: nn.Module, units: list[Unit], groups: Groups, options: ZeroOptions = ZeroOptions(),
                 ops: StageOps | None = None):
        self.model, self.units, self.groups, self.options, self.ops = model, units, groups, options, ops or self.ops
        self.unit_of = {flat: unit for unit in units for flat in unit.flats}
        self.recorder.time_on(self.device)
        self.forward = Forward()
        self.backward: Backward | None = None  # that runs, or has ended in an exception
        self.next_backward = BackwardOptions()
        self.reductions = Reductions(self)
        self.optimizer: Optimizer | None = None  # that steps this model
        self.offload = None  # what keeps states in another memory (see `offload`), where there is one
        self.written = WrittenParameters(self)
        self.extras: list[Extra] = [self.written]  # `shard` adds those that it is handed
        self.meter = StageMeter(self.recorder, self.flats, ["bucket"] * self.shards_gradients + ["full"] * self.shards_parameters)
        hooks.attach(self)

    @property
    def flats(self) -> list[FlatBuffer]:
        return list(self.unit_of)

    @property
    def root(self) -> Unit:
        """What is in no other unit."""
        return self.units[0]

    @property
    def comm(self) -> Comm:
        return self.groups.shard

    @property
    def recorder(self) -> Recorder:
        return self.comm.recorder

    @property
    def device(self) -> torch.device:
        return self.flats[0].full.device

    # -- forward ------------------------------------------------------------------------------------------------------

    def pre_forward(self, unit: Unit) -> None:
        recomputes = current_backward() != -1  # activation checkpointing computes the unit again
        if unit is self.root and not recomputes and not (unit.forward_depth and is_running(unit.module)):
            if unit.forward_depth or self.backward is not None:
                self.recover()
            for extra in self.extras:
                extra.before_forward()
            self.forward = Forward(before=self.forward.of_pass)
        elif self.forward.of_pass.had_backward and not recomputes and not self.root.forward_depth:  # a unit that is called by itself
            self.forward.of_pass = Pass(before=self.forward.of_pass)
        unit.forward_depth += 1
        if unit is not self.root:
            self.forward.begin(unit)
        self.before_compute(unit)
        if torch.is_grad_enabled():
            hooks.watch_gradients(self, unit)
        self.meter.begin("forward", unit.name)

    def before_compute(self, unit: Unit) -> None:
        """The unit is about to compute its forward: its parameters must be there (below stage 3 they are)."""

    def post_forward(self, unit: Unit, failed: bool = False) -> None:
        unit.forward_depth = max(0, unit.forward_depth - 1)
        if not unit.forward_depth:
            self.meter.end("forward", unit.name)
        # Reentrant checkpointing runs the first forward under no_grad; it counts all the same, for its place in the order.
        records = bool(torch.is_grad_enabled() or self.root.forward_depth)
        self.forward.end(unit, counts=records and not failed and current_backward() == -1)

    @property
    def active_pass(self) -> Pass:
        """The pass that computes: that of the backward while it runs (it may compute units again), else the last forward's."""
        return self.backward.passes[-1] if self.backward is not None and self.backward.passes else self.forward.of_pass

    @contextmanager
    def backward_options(self, **options: bool | None) -> Iterator[None]:
        """What the backwards inside do: fields of `BackwardOptions`."""
        before, self.next_backward = self.next_backward, BackwardOptions(**options)
        try:
            yield
        finally:
            self.next_backward = before

    def no_sync(self):
        """Backwards inside only add to the local gradients; the first one after it reduces the sum (stages 0 and 1)."""
        return self.backward_options(reduces=False)

    # -- backward -----------------------------------------------------------------------------------------------------

    def begin_backward(self) -> None:
        for extra in self.extras:
            extra.before_backward()
        for flat in self.flats:
            flat.apply_factor()
            flat.trainable = sum(param.requires_grad for param in flat.params.values())
        self.backward = Backward(self)

    def pre_backward(self, of_pass: Pass, unit: Unit) -> bool:
        """Returns whether the unit's backward computes now."""
        computes = self.backward.come_to(of_pass, unit)
        self.meter.begin("backward", unit.name)
        return computes

    def on_gradient(self, flat: FlatBuffer, key: str, param: nn.Parameter) -> None:
        self.backward.gradient_came(flat, key, param)

    def end_backward(self) -> None:
        for extra in self.extras:
            extra.after_backward()
        for unit in self.units:
            self.meter.end("backward", unit.name)
        self.backward.end()
        self.reductions.needs_finish = self.reductions.has_unused = True
        if self.reduces_now and self.next_backward.is_last is not False:
            self.reductions.finish(self.sums_replicas)
        self.forget_backward()

    def forget_backward(self) -> None:
        """Nothing of a backward is left over."""
        if self.backward is not None:
            self.backward.read_message()
            for each in self.backward.passes:
                each.had_backward = True
            self.backward = None

    @property
    def backward_failed(self) -> bool:
        """Has the last backward ended in an exception, so that `end_backward` was not called?"""
        return self.backward is not None and current_backward() == -1

    @property
    def last_units(self) -> list[Unit]:
        """Units whose gradients are finished only at the end of a backward."""
        return [unit for unit in self.units if unit is self.root or unit.stays_with_root]

    @property
    def reduction_parts(self) -> tuple[str, ...]:
        """Of each reduction of this backward (see `program`)."""
        sums = (SUM, SHARE) if self.groups.replicate is not None and (self.sums_replicas or not self.shards_gradients) else ()
        return (REDUCE, *sums, *(() if self.shards_optimizer else (SHARE,))) if self.reduces_now else ()

    @property
    def reduces_now(self) -> bool:
        return self.next_backward.reduces

    @property
    def sums_replicas(self) -> bool:
        """Does this backward sum over the replicas, too? That link is the slow one, so it is used once in an optimizer step."""
        chosen = self.next_backward
        return chosen.reduces if chosen.is_last is None else chosen.is_last

    # -- the optimizer ------------------------------------------------------------------------------------------------

    def step(self, optimizer_step: Callable[..., object], closure: Callable[[], object] | None = None) -> object:
        """One update of all parameters, on all ranks. `closure` runs the model first, as torch's optimizers allow."""
        if self.backward is not None or self.root.forward_depth:
            self.recover()
        with torch.enable_grad():
            loss = None if closure is None else closure()
        self.reshard_all()
        for extra in self.extras:
            extra.check_step()
        with self.recorder.span("step", "optimizer"), torch.no_grad():
            self.flush()
            for extra in self.extras:
                extra.before_step()
            result = None if (updated := [flat for flat in self.flats if flat.has_grad]) else optimizer_step()
            for comm in dict.fromkeys(flat.comm for flat in updated):  # two, where experts are cut
                result = self.ops.step([flat for flat in updated if flat.comm is comm], comm, optimizer_step)
            self.written.note_update(updated)
            self.forward = Forward()  # those before it will not be in one backward with those that come
        for extra in self.extras:
            extra.after_step()
        self.reductions.has_unused = False
        self.recorder.next_step()
        return loss if closure is not None else result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, on this rank; without `set_to_none` those that were there become zeros."""
        if self.backward_failed:
            self.forget_backward()
        self.reductions.wait()
        self.reductions.needs_finish = self.reductions.has_unused = False
        for flat in self.flats:
            flat.clear_gradients(set_to_none)
            self.meter.recount(flat)

    def flush(self) -> None:
        """Finish what backwards left that did not reduce, or were not the last."""
        if self.reductions.needs_finish:
            self.reductions.finish()

    def reshard_all(self) -> None:
        """Free what is gathered (stage 3): a step makes it old."""

    def settle(self) -> None:
        """Apply what an offload has delayed: the parameters are those of all steps so far. Collective."""
        if self.offload is not None:
            self.offload.settle()

    def sum_of_squares(self) -> torch.Tensor:
        """Of the gradients that this rank counts, a scalar."""
        self.flush()
        precise = torch.float64 if any(flat.dtype in (torch.float64, torch.complex128) for flat in self.flats) else torch.float32
        parts = [flat.gradient_norm(precise) for flat in self.flats  # an offload's `grad_shard` may lack what stays on the device
                 if self.counts(flat) and flat.grad_shard is not None and flat.own.stop > flat.own.start]
        return torch.stack(parts).square().sum() if parts else torch.zeros((), dtype=precise, device=self.device)

    @property
    def adds_squares(self) -> bool:
        """Does a rank hold only some of the gradients: slices, or some of the experts?"""
        return self.shards_optimizer or self.groups.experts is not None

    def counts(self, flat: FlatBuffer) -> bool:
        """Does this rank count a buffer's gradient in the norm? Of whole buffers on many ranks, the first one counts."""
        return flat.counts_in_norm and (self.shards_optimizer or not self.adds_squares or not flat.comm.rank)

    def grad_norm(self) -> torch.Tensor:
        """The 2-norm of the whole gradient, the same on every rank.
        Every element counts once: a rank adds up its slice and the ranks add up their sums (stage 0: all is local, but experts),
        over the groups of `Groups.norm`, too; of what is replicated there, only one copy counts (see `counts_in_norm`).
        """
        total = self.sum_of_squares()
        for comm in (*[self.comm] * self.adds_squares, *self.groups.norm):
            comm.all_reduce(total)
        return total.sqrt()

    def scale_gradients(self, factor: float | torch.Tensor) -> None:
        """Multiply all gradients, in place."""
        self.flush()
        for flat in self.flats:
            flat.scale_gradient(factor)

    def clip_grad_norm_(self, max_norm: float, norm: torch.Tensor | None = None) -> torch.Tensor:
        """Scale the gradients so that their norm is at most `max_norm`; returns the norm before.   norm: theirs, where it is known."""
        norm = self.grad_norm() if norm is None else norm
        self.scale_gradients(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
        return norm

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """A forward or backward ended in an exception: finish what is under way. After a backward all gradients since the
        last zero_grad are dropped, because what it added to earlier micro-batches cannot be taken out again."""
        if self.backward is not None:
            self.zero_grad()
        self.forget_backward()
        self.meter.forget()
        self.forward.stack.clear()
        for unit in self.units:
            unit.forward_depth = 0

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """Every tensor this stage holds, by kind: parameters, gradients, optimizer (the fp32 master weights), and what its extras hold."""
        return held_by((*self.flats, *self.extras))

    def memory(self, optimizer: Optimizer | None = None) -> dict[str, int]:
        """Bytes of the storages this rank holds, by kind, with the optimizer's states (scalar step counters apart).
        With offload these are the device's, and `host_bytes` are the host's."""
        ledger = Ledger(self.model, optimizer)
        held = ledger.now()
        kinds = {"parameters_bytes": held.parameters, "gradients_bytes": held.gradients, "optimizer_bytes": held.optimizer}
        return kinds | {"total_bytes": sum(kinds.values())} | {f"{tier}_bytes": ledger.now(tier).total for tier in ledger.alive_in}
