"""Stage 0, data parallel: all-reduces the gradients, frees nothing. The ground that stages 1 to 3 step on.

Every rank holds all parameters, gradients and optimizer states: 16 bytes a parameter (Rajbhandari et al. 2020,
arXiv 1910.02054, section 3.1). Gradients are collected in one bucket a flat buffer and reduced while the backward goes on.
"""

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.graph import increment_version
from torch.optim import Optimizer

from ..comm import Comm, Handle
from ..measure.ledger import Ledger
from . import hooks
from .backward import BackwardWalk
from .buffer import FlatBuffer
from .extras.gradients import refuse_assigned_gradients
from .extras.model_buffers import ModelBuffers
from .extras.replaced import Registered, refuse_other_memory
from .extras.written import WrittenParameters
from .groups import Groups
from .options import ZeroOptions
from .schedule import Pass
from .unit import Unit


def all_reduce(flat: FlatBuffer, comm: Comm) -> Handle:
    """Sum the bucket over the ranks, on every rank: a reduce-scatter, then an all-gather. 2Ψ(N-1)/N elements."""

    def gather(summed):
        flat.sum_replicas(summed)
        comm.all_gather(flat.grad, flat.layout, flat.name).wait()
        flat.grad_shard = flat.grad[flat.own]

    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, flat.grad[flat.layout.slice(comm.rank)], done=gather)


def local_step(flats: list[FlatBuffer], comm: Comm, optimizer_step: Callable[..., object]) -> object:
    """Every rank updates what it holds of every parameter, and tells nobody."""
    result = None
    for flat in flats:
        result = optimizer_step(flat)
        flat.publish_shard()
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


class DataParallel(BackwardWalk):
    """One model and its optimizer, trained by the ranks of `groups`. `sync` off: gradients only pile up locally."""

    number = 0
    shards_optimizer = False  # does a rank update only its slice?
    shards_gradients = False  # is the full gradient dropped after each backward?
    shards_parameters = False  # is the full parameter dropped after use?
    ops = StageOps(all_reduce, local_step)

    def __init__(self, model: nn.Module, units: list[Unit], groups: Groups, options: ZeroOptions = ZeroOptions(),
                 ops: StageOps | None = None):
        self.model, self.units, self.groups, self.options = model, units, groups, options
        self.comm, self.ops = groups.shard, ops or self.ops
        self.root = units[0]
        self.unit_of = {flat: unit for unit in units for flat in unit.flats}
        self.flats = list(self.unit_of)
        self.device = self.flats[0].full.device
        self.sync = True
        self.unreduced = False  # a backward under `no_sync` left gradients that only this rank knows
        self.recording = False  # is a forward with gradients under way?
        self.running: list[Unit] = []  # units whose forward is running, one inside the other
        self.current_pass = Pass()  # the last forward
        self.passes: list[Pass] = []  # those whose backward is under way, the present one last
        self.in_backward = False
        self.queue: list[Unit] = []  # units that are still to be reduced in this backward, the next one first
        self.entered: list[Unit] = []  # units whose backward has begun and is not known to be over
        self.reducing: list[tuple[Unit, FlatBuffer, Handle]] = []  # under way
        self.written = WrittenParameters(self)
        self.watchers = [ModelBuffers(model, groups), self.written]  # extend the agreement
        self.registered = Registered(model)
        self.held = 0  # bytes of the flat buffers' tensors
        self.recorder = self.comm.recorder
        alive = weakref.WeakMethod(self.bytes_held)  # the buffers know the recorder, and must not keep the model
        self.recorder.alive = lambda: alive()() if alive() else 0
        self._counted: dict[FlatBuffer, int] = {}
        self._began: dict[tuple[str, str], float] = {}
        for flat in self.flats:
            self.recount(flat)
        hooks.attach(self)

    # -- forward ------------------------------------------------------------------------------------------------------

    def pre_forward(self, unit: Unit) -> None:
        again = hooks.current_backward() != -1  # activation checkpointing computes the unit again
        if not again and unit is self.root and not (self.root.computes and hooks.is_running(self.root.module)):
            if self.root.computes or self.in_backward:
                self.recover()
            self.written.check_shards()
            self.current_pass, self.recording = Pass(), torch.is_grad_enabled()
        elif not (again or self.root.computes) and self.current_pass.had_backward:  # a unit that is called by itself
            self.current_pass = Pass()
        unit.computes += 1
        if unit is not self.root:
            self.running.append(unit)
        if again and unit is not self.root and unit not in self.pass_now.calls:  # it ran in no forward before
            self.begin_pass(self.pass_now)
            self.pass_now.calls.append(unit)
            self.pass_now.ahead.append(unit)
            self.queue.insert(0, unit)
        self.use(unit)
        if torch.is_grad_enabled():
            hooks.watch_gradients(self, unit)
        self._mark("forward", unit)

    def post_forward(self, unit: Unit, failed: bool = False) -> None:
        unit.computes = max(0, unit.computes - 1)
        if not unit.computes:
            self._mark("forward", unit, over=True)
        if unit in self.running:
            del self.running[self.running.index(unit):]  # what an exception left inside of it, too
        # Reentrant checkpointing computes a unit without gradients first; its place is where it ran, on every rank.
        records = torch.is_grad_enabled() or self.recording and self.root.computes
        if records and unit is not self.root and not failed and hooks.current_backward() == -1:
            self.current_pass.note(unit, within=[each for each in self.running if each is not unit])

    @property
    def pass_now(self) -> Pass:
        """The pass that computes: a backward's while it runs (it may compute units again), else the last forward's."""
        return self.passes[-1] if self.passes else self.current_pass

    def use(self, unit: Unit) -> None:
        """The unit is about to compute its forward: its parameters must be there (below stage 3 they are)."""

    # -- the optimizer ------------------------------------------------------------------------------------------------

    def step(self, optimizer_step: Callable[..., object], closure: Callable[[], object] | None = None) -> object:
        """One update of all parameters, on all ranks. `closure` runs the model first, as torch's optimizers allow."""
        if self.in_backward or self.root.computes:
            self.recover()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.registered.check()
        self.written.check_shards()
        if not self.shards_parameters:
            refuse_other_memory(self.flats)
        with self.recorder.span("step", "optimizer"), torch.no_grad():
            self.cast_gradients()
            refuse_assigned_gradients(self.flats)
            for watcher in self.watchers:
                watcher.before_step()
            updated = [flat for flat in self.flats if flat.has_grad]
            result = self.ops.step(updated, self.comm, optimizer_step) if updated else optimizer_step()
            for flat in updated:  # so that the backward of an older forward is told that its weights are gone
                increment_version(list(flat.params.values()))
        for flat in self.flats:
            if flat.steps_masters:  # their fp32 gradients
                for part in flat.shard_params.values():
                    part.grad = None
                self.recount(flat)
        for watcher in self.watchers:
            watcher.after_step()
        self.recorder.next_step()
        return loss if closure is not None else result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, on this rank; without `set_to_none` those that were there become zeros."""
        if self.in_backward and hooks.current_backward() == -1:  # that backward failed
            self.forget_backward()
        self.wait_for_reductions()
        self.unreduced = False
        for flat in self.flats:
            flat.clear_gradients(set_to_none)
            self.recount(flat)

    def flush(self) -> None:
        """Reduce what backwards under `no_sync` left; nothing when the last backward did it."""
        if self.unreduced:
            self.finish()

    def cast_gradients(self) -> None:
        """Every gradient is where the optimizer looks for it, in the precision of what it steps."""
        self.flush()
        for flat in self.flats:
            if flat.steps_masters:
                flat.publish_gradients()
                self.recount(flat)

    def grad_norm(self) -> torch.Tensor:
        """The 2-norm of the whole gradient, the same on every rank.

        Every element counts once: a rank adds up its slice and the ranks add up their sums (stage 0: all is local).
        """
        self.flush()
        shards = [flat.grad_shard for flat in self.flats if flat.grad_shard is not None and flat.grad_shard.numel()]
        shards = [torch.view_as_real(shard) if shard.is_complex() else shard for shard in shards]
        precise = torch.float64 if any(flat.dtype in (torch.float64, torch.complex128) for flat in self.flats) else torch.float32
        parts = [torch.linalg.vector_norm(shard, dtype=precise) for shard in shards]
        total = torch.stack(parts).square().sum() if parts else torch.zeros((), dtype=precise, device=self.device)
        return (self.comm.all_reduce(total) if self.shards_optimizer else total).sqrt()

    def scale_gradients(self, factor: float | torch.Tensor) -> None:
        """Multiply all gradients, in place."""
        self.flush()
        for flat in self.flats:
            if flat.grad_shard is not None:
                flat.grad_shard.mul_(factor)

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale the gradients so that their norm is at most `max_norm`; returns the norm before that."""
        norm = self.grad_norm()
        self.scale_gradients(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
        return norm

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards inside only add to the local gradients; the first one after it reduces the sum (stages 0 and 1)."""
        self.sync, before = False, self.sync
        try:
            yield
        finally:
            self.sync = before

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """A forward or backward ended in an exception: finish what is under way, and drop what it left half done."""
        if self.in_backward:
            self.zero_grad()
        self.forget_backward()
        self._began.clear()
        self.running = []
        for unit in self.units:
            unit.computes = 0

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """Every tensor this stage holds, by kind: parameters, gradients, optimizer (the fp32 master weights)."""
        kinds: dict[str, list[torch.Tensor]] = {"parameters": [], "gradients": [], "optimizer": []}
        for flat in self.flats:
            for kind, tensors in flat.tensors().items():
                kinds[kind] += tensors
        kinds["gradients"] += self.under_way()
        return kinds

    def under_way(self) -> list[torch.Tensor]:
        """Buckets that no buffer holds any more, and a collective still sends (from stage 2 on)."""
        buckets = (getattr(handle, "tensor", None) for _, _, handle in self.reducing) if self.shards_gradients else ()
        return [bucket for bucket in buckets if bucket is not None]

    def memory(self, optimizer: Optimizer | None = None) -> dict[str, int]:
        """Bytes of the storages this rank holds, by kind, with the optimizer's states (scalar step counters apart)."""
        held = Ledger(self.model, optimizer).now()
        kinds = {"parameters_bytes": held.parameters, "gradients_bytes": held.gradients, "optimizer_bytes": held.optimizer}
        return kinds | {"total_bytes": sum(kinds.values())}

    def recount(self, flat: FlatBuffer) -> None:
        """The buffer took or gave back memory."""
        held = flat.bytes_held
        self.held += held - self._counted.get(flat, 0)
        self._counted[flat] = held

    def bytes_held(self) -> int:
        """Bytes of the tensors in `tensors()`, each storage counted once; a running count, asked at every event."""
        return self.held + sum(bucket.nbytes for bucket in self.under_way())

    def _mark(self, verb: str, unit: Unit, over: bool = False) -> None:
        """Note the beginning of a unit's forward or backward; at its end, record it."""
        if not over:
            self._began.setdefault((verb, unit.name), time.perf_counter())
        elif (verb, unit.name) in self._began:
            self.recorder.record(verb, unit.name, self._began.pop((verb, unit.name)))
