"""Stage 0, data parallel: all-reduces the gradients, frees nothing. The ground that stages 1 to 3 step on.

Every rank holds all parameters, gradients and optimizer states: 16 bytes a parameter (Rajbhandari et al. 2020,
arXiv 1910.02054, section 3.1). Gradients are collected in one bucket a flat and reduced while the backward goes on.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer

from ..comm.group import Comm, Handle
from ..measure.ledger import Ledger
from . import hooks
from .agreement import Buffers, agree
from .buffer import FlatBuffer
from .unit import Unit


def all_reduce(flat: FlatBuffer, comm: Comm) -> Handle:
    """Sum the bucket over the ranks, on every rank: a reduce-scatter, then an all-gather. 2Ψ(N-1)/N elements."""

    def gather(_):
        comm.all_gather(flat.grad, flat.layout, flat.name).wait()
        flat.grad_shard = flat.grad[flat.own]

    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, flat.grad[flat.layout.slice(comm.rank)], done=gather)


def local_step(flats: list[FlatBuffer], comm: Comm, optimizer_step: Callable[[], object]) -> object:
    """Every rank updates every parameter."""
    result = optimizer_step()
    for flat in flats:
        flat.publish_shard()
    return result


@dataclass(frozen=True)
class StageOps:
    """The functions that make a stage what it is. Any of them can be given from outside.

    reduce(flat, comm): the bucket `flat.grad` is complete, zeros where there was no gradient; bring this rank's part of
        the sum to `flat.grad_shard`. May return a Handle.
    step(flats, comm, optimizer_step): `flat.grad_shard` is there; update, and make every rank's parameters new.
    unshard(flat, comm): bring all slices to `flat.full` (stage 3). May return a Handle.
    reshard(flat): free `flat.full` (stage 3).
    """

    reduce: Callable[[FlatBuffer, Comm], Handle | None]
    step: Callable[[list[FlatBuffer], Comm, Callable[[], object]], object]
    unshard: Callable[[FlatBuffer, Comm], Handle | None] = lambda flat, comm: None
    reshard: Callable[[FlatBuffer], None] = lambda flat: None


class DataParallel:
    """One model and its optimizer, trained by the ranks of `comm`. `sync` off: gradients only pile up locally."""

    number = 0
    shards_optimizer = False  # does a rank update only its slice?
    shards_gradients = False  # is the full gradient dropped after each backward?
    shards_parameters = False  # is the full parameter dropped after use?
    ops = StageOps(all_reduce, local_step)

    def __init__(self, model: nn.Module, units: list[Unit], comm: Comm, ops: StageOps | None = None, in_flight: int = 1):
        self.model, self.units, self.comm = model, units, comm
        self.ops = ops or self.ops
        self.in_flight = in_flight  # units whose reduction may be under way at once; 0: the backward waits for each
        self.root = units[0]
        self.flats = [flat for unit in units for flat in unit.flats]
        self.device = self.flats[0].full.device
        self.in_forward = self.in_backward = self.recording = False  # recording: a forward with gradients
        self.sync = True
        self.unreduced = False  # a backward under `no_sync` left gradients that only this rank knows
        self.order: list[Unit] = []  # units that record gradients, as they ran since the last backward
        self.order_is_old = False  # that backward is over
        self.queue: list[Unit] = []  # those of them that are still to be reduced in this backward, the next one last
        self.reducing: list[tuple[Unit, FlatBuffer, Handle]] = []  # under way
        self.buffers = Buffers(model)
        self.recorder = comm.recorder
        self.recorder.alive = self.bytes_held
        self._began: dict[tuple[str, str], float] = {}
        hooks.attach(self)

    def use(self, unit: Unit, kind: str) -> None:
        """The unit is about to compute, "forward" or "backward": its parameters must be there (below stage 3 they are)."""

    # -- forward ------------------------------------------------------------------------------------------------------

    def pre_forward(self, unit: Unit) -> None:
        if unit is self.root and not hooks.backward_is_running():
            if self.in_forward or self.in_backward:
                self.recover()
            self.in_forward, self.recording = True, torch.is_grad_enabled()
            if self.order_is_old and torch.is_grad_enabled():
                self.order, self.order_is_old = [], False
        # Reentrant checkpointing computes a unit without gradients first; its place is where it ran, on every rank.
        if (torch.is_grad_enabled() or self.in_forward and self.recording) and unit not in self.order:
            self.order.append(unit)
            if self.in_backward:
                self.queue.append(unit)
        self.use(unit, "forward")
        unit.computes = True
        self._mark("forward", unit)

    def post_forward(self, unit: Unit) -> None:
        unit.computes = False
        self._mark("forward", unit, over=True)
        if unit is self.root:
            self.in_forward = False

    # -- backward -----------------------------------------------------------------------------------------------------

    def begin_backward(self) -> None:
        self.in_backward, self.queue = True, list(self.order)

    def pre_backward(self, unit: Unit) -> None:
        self.use(unit, "backward")
        self._mark("backward", unit)

    def on_gradient(self, flat: FlatBuffer, key: str, param: nn.Parameter) -> None:
        """Move the gradient into its bucket. If that is on its way, the gradient stays where it is until `finish`: to
        wait here, where only this rank may come by, would be to wait for ranks that wait for this one."""
        if param.grad is None:  # it was frozen after the forward, or an autograd function returned None
            return
        if flat.grad is not None and not flat.fresh and any(flat is other for _, other, _ in self.reducing):
            flat.late.add(key)
        else:
            flat.collect(key, param)
            if len(flat.arrived) >= flat.expected:
                self.launch()

    def post_backward(self, unit: Unit) -> None:
        self._mark("backward", unit, over=True)
        unit.over = True
        self.launch()

    @property
    def reduces_now(self) -> bool:
        return self.sync

    def launch(self) -> None:
        """Reduce the buckets that are full, and those of units whose backward is over: no more gradients will come.

        In the reverse order of the forward, also when a later bucket is full sooner: so all ranks do it in the same
        order, and no rank ever waits for one that waits for it.
        """
        while self.reduces_now and self.queue:
            unit = self.queue[-1]
            for flat in unit.to_reduce:
                if not (unit.over or self.is_full(unit, flat)):
                    return
                unit.launched += 1
                self.reduce(unit, flat)
            self.queue.pop()

    def is_full(self, unit: Unit, flat: FlatBuffer) -> bool:
        return len(flat.arrived) >= flat.expected

    def reduce(self, unit: Unit, flat: FlatBuffer) -> None:
        """Start one bucket's reduction, once there is room among those under way."""
        self.wait_for_reductions(keep=max(0, self.in_flight - 1), but=unit)
        flat.complete_bucket()
        handle = self.ops.reduce(flat, self.comm)
        if handle is not None:
            self.reducing.append((unit, flat, handle))
        if self.in_flight == 0:
            self.wait_for_reductions()

    def wait_for_reductions(self, keep: int = 0, but: Unit | None = None) -> None:
        """Wait, the oldest first, until at most `keep` units other than `but` have reductions under way."""
        while len({unit for unit, _, _ in self.reducing if unit is not but}) > keep:
            try:
                self.reducing[0][-1].wait()
            finally:
                self.reducing.pop(0)

    def end_backward(self) -> None:
        for unit in self.units:
            unit.over = True
            self._mark("backward", unit, over=True)
        self.launch()
        if self.reduces_now:
            self.finish()
        else:
            self.unreduced = True
        self.new_pass(within_forward=self.in_forward)

    def finish(self) -> None:
        """Reduce what is left (of earlier backwards, or later than its unit), and hand the gradients to the optimizer."""
        self.wait_for_reductions()  # a bucket must be back before its next round begins
        for flat in self.flats:
            flat.collect_late()
        for unit, flat in agree(self):
            self.reduce(unit, flat)
        self.wait_for_reductions()
        self.unreduced = False
        for flat in self.flats:
            if not flat.steps_copies:
                flat.publish_gradients()

    def new_pass(self, within_forward: bool = False) -> None:
        """Nothing of a forward or a backward is left over; of a backward only, when the forward took a gradient itself."""
        self.in_forward, self.in_backward = within_forward, False
        self.order_is_old, self.queue = True, []
        self._began.clear()
        for unit in self.units:
            unit.launched, unit.open, unit.over = 0, 0, False
            unit.computes = unit.computes and within_forward
            for flat in unit.flats:
                flat.arrived.clear()

    # -- the optimizer ------------------------------------------------------------------------------------------------

    def step(self, optimizer_step: Callable, closure: Callable[[], object] | None = None) -> object:
        """One update of all parameters, on all ranks. `closure` runs the model first, as torch's optimizers allow."""
        if self.in_forward or self.in_backward:
            self.recover()

        def with_gradients():
            loss = closure()
            self.cast_gradients()
            return loss

        for flat in self.flats:
            flat.take_writes()
        with self.recorder.span("step", "optimizer"), torch.no_grad():
            self.cast_gradients()
            result = self.ops.step(self.flats, self.comm, partial(optimizer_step, with_gradients) if closure else optimizer_step)
        for flat in self.flats:
            if flat.steps_copies:  # their fp32 gradients
                for piece in flat.shard_params.values():
                    piece.grad = None
        self.buffers.equalise(self.comm)
        self.recorder.next_step()
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, on this rank."""
        self.wait_for_reductions()
        self.unreduced = False
        for flat in self.flats:
            flat.clear_gradients()

    def flush(self) -> None:
        """Reduce what backwards under `no_sync` left; nothing when the last backward did it."""
        if self.unreduced:
            self.finish()

    def cast_gradients(self) -> None:
        """Every gradient is where the optimizer looks for it, in the precision of what it steps."""
        self.flush()
        for flat in self.flats:
            if flat.steps_copies:
                flat.publish_gradients()

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
        self.new_pass()

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """Every tensor this stage holds, by kind: parameters, gradients, optimizer (the fp32 master weights)."""
        kinds: dict[str, list[torch.Tensor]] = {"parameters": [], "gradients": [], "optimizer": []}
        for flat in self.flats:
            for kind, tensors in flat.tensors().items():
                kinds[kind] += tensors
        kinds["gradients"] += self.under_way()
        return kinds

    def under_way(self) -> list[torch.Tensor]:
        """Buckets that no flat holds any more, and a collective still sends (from stage 2 on)."""
        rows = (getattr(handle, "tensor", None) for _, _, handle in self.reducing) if self.shards_gradients else ()
        return [row for row in rows if row is not None]

    def memory(self, optimizer: Optimizer | None = None) -> dict[str, int]:
        """Bytes of the storages this rank holds, by kind, with the optimizer's states (scalar step counters apart)."""
        held = Ledger(self.model, optimizer).now()
        kinds = {"parameters_bytes": held.parameters, "gradients_bytes": held.gradients, "optimizer_bytes": held.optimizer}
        return kinds | {"total_bytes": sum(kinds.values())}

    def bytes_held(self) -> int:
        """Bytes of the tensors in `tensors()`, each storage counted once."""
        return sum(flat.bytes_held for flat in self.flats) + sum(row.nbytes for row in self.under_way())

    def _mark(self, verb: str, unit: Unit, over: bool = False) -> None:
        """Note the beginning of a unit's forward or backward; at its end, record it."""
        if not over:
            self._began.setdefault((verb, unit.name), time.perf_counter())
        elif (verb, unit.name) in self._began:
            self.recorder.record(verb, unit.name, self._began.pop((verb, unit.name)))
