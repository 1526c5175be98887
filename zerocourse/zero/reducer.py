"""What every stage does while autograd runs: it collects gradients in buckets, and reduces full buckets on the way.

All ranks reduce their buckets in one order, that of the forward reversed, also when a later bucket is full sooner. So the
collectives of the ranks match, and no rank can wait for one that waits for it. The life of a bucket:

    empty      `grad` is None (or holds sums, which stages 0 and 1 keep)
    filling    `collect` moves gradients into it as autograd brings them
    full       every gradient that autograd will bring has come (`ready_to_reduce`)
    in flight  `reduce_full_buckets` has found it at the head of the queue, full, and `reduce` has started its collective
    reduced    `wait_for_reductions` has seen the end of it: the sum is in `grad_shard`

A gradient that comes while its bucket is in flight is deferred: it stays at its parameter until that is over.
"""

from collections import Counter

from torch import nn

from ..measure.storages import raw_grad
from . import hooks
from .agreement import agree
from .buffer import FlatBuffer
from .schedule import Pass
from .unit import Unit


class Reducer:
    """The backward of a stage. Its attributes are made by `DataParallel`, the base class of all stages."""

    # -- called by the hooks ------------------------------------------------------------------------------------------

    def begin_backward(self) -> None:
        self.in_backward, self.backward_number = True, hooks.current_backward()
        for extra in self.extras:
            extra.before_backward()
        for flat in self.flats:
            flat.apply_factor()
            flat.awaited = hooks.awaited(flat)

    def pre_backward(self, of_pass: Pass, unit: Unit) -> None:
        number = hooks.current_backward()
        if number not in (self.backward_number, unit.inner_backward):  # a backward inside this one: reentrant checkpointing
            unit.inner_backward = number  # once: later, autograd would also name the gradients that have come already
            for flat in unit.flats:
                flat.awaited |= hooks.awaited(flat)
        if of_pass not in self.passes:
            self.begin_pass(of_pass)
        self.meter.begin("backward", unit.name)

    def begin_pass(self, of_pass: Pass) -> None:
        """The backward has come to one more forward: its buckets join the queue, before those that always come last."""
        self.passes.append(of_pass)
        last = {flat for unit in self.last_units for flat in unit.flats}
        joining = [flat for unit in [*of_pass.order, *self.last_units[::-1]] for flat in reversed(unit.flats) if flat.trainable]
        waiting = [flat for flat in dict.fromkeys([*self.queue, *joining]) if self.turn.get(flat, self.n_started) >= self.n_started]
        self.queue[self.n_started :] = sorted(waiting, key=lambda flat: flat in last)  # sorted() keeps the order of equals
        self.turn = {flat: turn for turn, flat in enumerate(self.queue)}

    def finishes_last(self, unit: Unit) -> bool:
        """Are its gradients finished only at the end of the backward?"""
        return unit.stays_with_root or unit is self.root

    @property
    def last_units(self) -> list[Unit]:
        return [unit for unit in self.units if self.finishes_last(unit)]

    def on_gradient(self, flat: FlatBuffer, key: str, param: nn.Parameter) -> None:
        flat.awaited.discard(key)
        flat.ready.add(key)
        unit = self.unit_of[flat]
        turn = self.turn.get(flat, -1)
        is_container = any(unit in each.containers for each in self.passes)  # the backward may still come to units inside of it
        if turn >= self.n_reached and not is_container and not self.finishes_last(unit):
            self.n_reached = turn + 1
        if raw_grad(param) is not None:  # else it was frozen after the forward, or an autograd function returned None
            if flat.reduction is not None and not flat.unreduced:
                flat.deferred.add(key)  # do not wait here: a rank that has no such gradient would never join
            else:
                opens = flat.grad is None
                flat.collect(key, param)
                if opens:
                    self.meter.recount(flat)
        if not unit.awaits_gradients:
            self.meter.end("backward", unit.name)
        self.reduce_full_buckets()

    def end_backward(self) -> None:
        for extra in self.extras:
            extra.after_backward()
        for unit in self.units:
            self.meter.end("backward", unit.name)
            for flat in unit.flats:
                flat.awaited.clear()  # autograd had nothing to bring, after all
        self.n_reached = len(self.queue) + 1
        self.reduce_full_buckets()
        self.needs_finish = True
        self.has_unused_gradients = True
        if self.reduces_now and self.is_last is not False:
            self.finish(self.sums_replicas)
        self.forget_backward()

    @property
    def backward_failed(self) -> bool:
        """Has the last backward ended in an exception, so that `end_backward` was not called?"""
        return self.in_backward and hooks.current_backward() == -1

    # -- reductions ---------------------------------------------------------------------------------------------------

    @property
    def reduces_now(self) -> bool:
        return self.reduces

    @property
    def sums_replicas(self) -> bool:
        """Does this backward sum over the replicas, too? That link is the slow one, so it is used once in an optimizer step."""
        return self.reduces if self.is_last is None else self.is_last

    def ready_to_reduce(self, flat: FlatBuffer) -> bool:
        """Is the bucket at the head of the queue full? Yes, if all its parameters have got a gradient; or if autograd will
        bring no more and is past this unit already. (Before that a reentrant checkpoint may still bring some: autograd
        does not know of its gradients until it has computed the unit again.)"""
        return not flat.awaited and (len(flat.ready) >= flat.trainable or self.n_reached > self.n_started + 1)

    def reduce_full_buckets(self) -> None:
        """Reduce the buckets at the head of the queue that are full."""
        while self.reduces_now and self.n_started < len(self.queue) and self.ready_to_reduce(self.queue[self.n_started]):
            self.n_started += 1
            self.reduce(self.queue[self.n_started - 1])

    def reduce(self, flat: FlatBuffer) -> None:
        """Start one bucket's reduction, once there is room among those in flight, and its own last one is over."""
        self.wait_for_reductions(keep=max(0, self.options.in_flight - 1), but=self.unit_of[flat])
        while flat.reduction is not None:
            self.wait_for_oldest()
        flat.collect_deferred()
        flat.complete_bucket()
        flat.postpones_replicas = self.groups.replicate is not None and not self.sums_replicas
        flat.reduction = self.ops.reduce(flat, self.comm)
        if flat.reduction is not None:
            self.in_flight.append(flat)
            self.reducing[self.unit_of[flat]] += 1
        self.meter.recount(flat)
        if self.options.in_flight == 0:
            self.wait_for_reductions()

    def wait_for_reductions(self, keep: int = 0, but: Unit | None = None) -> None:
        """Wait, the oldest first, until at most `keep` units other than `but` have reductions in flight."""
        while len(self.reducing.keys() - {but}) > keep:
            self.wait_for_oldest()

    def wait_for_oldest(self) -> None:
        flat = self.in_flight.pop(0)
        self.reducing -= Counter([self.unit_of[flat]])  # `-=` drops units of which none is left
        try:
            flat.reduction.wait()
        finally:
            flat.reduction = None
            self.meter.recount(flat)

    def finish(self, sums_replicas: bool = True) -> None:
        """Reduce what is left (of earlier backwards, or deferred), and hand the gradients to the optimizer."""
        self.wait_for_reductions()
        for flat in self.flats:
            flat.collect_deferred()
        for flat in agree(self):
            self.reduce(flat)
        self.wait_for_reductions()
        for flat in self.flats if sums_replicas else ():
            flat.add_replicas()
        self.needs_finish = any(flat.lacks_replicas for flat in self.flats)
        for flat in self.flats:
            if not flat.steps_masters:
                flat.publish_gradients()
            self.meter.recount(flat)

    def forget_backward(self) -> None:
        """Nothing of a backward is left over."""
        for each in self.passes:
            each.had_backward = True
        self.in_backward = False
        self.passes: list[Pass] = []  # those that the present backward goes through
        self.queue: list[FlatBuffer] = []  # the buckets that it reduces, in this order
        self.turn: dict[FlatBuffer, int] = {}  # where in the queue a bucket stands
        self.n_started = 0  # so many at the head of the queue have been started
        self.n_reached = 0  # so many at the head of the queue belong to units that the backward has come to, or is past
        for flat in self.flats:
            flat.awaited.clear()
            flat.ready.clear()
