"""What every stage does while autograd runs: it collects gradients in buckets, and reduces the full ones on the way.

Buckets are reduced strictly in one order, that of the forward reversed, also when a later one is full sooner: that, and
not the moment at which a gradient happens to arrive, is why all ranks reduce the same buckets in the same order, and why
no rank ever waits for one that waits for it. What the walk through a backward means for stage 3, `walk` says.
"""

from torch import nn

from ..measure.storages import raw_grad
from . import hooks
from .agreement import agree
from .buffer import FlatBuffer
from .schedule import Pass
from .unit import Unit


class Backward:
    """The backward of a stage. Its attributes are made by `DataParallel`, the stage that all others step on."""

    def begin_backward(self) -> None:
        self.in_backward, self.backward_number = True, hooks.current_backward()
        for flat in self.flats:
            flat.awaited = hooks.awaited(flat)

    def begin_pass(self, of_pass: Pass) -> None:
        """This backward goes through the pass, too: its buckets join the queue. Those of the root come last."""
        self.passes.append(of_pass)
        known = {*self.queue, *self.reduced, *self.root.flats}
        joining = [flat for unit in of_pass.order for flat in reversed(unit.flats) if flat.trainable and flat not in known]
        last = [flat for flat in reversed(self.root.flats) if flat.trainable and flat not in self.reduced]
        self.queue = [*(flat for flat in self.queue if flat not in last), *joining, *last]

    def pre_backward(self, of_pass: Pass, unit: Unit) -> None:
        if hooks.current_backward() != self.backward_number:  # a backward inside this one: reentrant checkpointing
            for flat in unit.flats:
                flat.awaited |= hooks.awaited(flat)
        if of_pass not in self.passes:
            self.begin_pass(of_pass)
        self.meter.begin("backward", unit.name)

    def on_gradient(self, flat: FlatBuffer, key: str, param: nn.Parameter) -> None:
        """Move the gradient into its bucket. If the bucket is under way, the gradient stays at its parameter until `finish`,
        and nobody waits here: other ranks may not come by this point, so they would wait for each other."""
        flat.awaited.discard(key)
        flat.ready.add(key)
        if flat in self.queue[self.reached :] and self.unit_of[flat] is not self.root:
            self.reached = self.queue.index(flat) + 1
        if raw_grad(param) is not None:  # else it was frozen after the forward, or an autograd function returned None
            if flat.grad is not None and not flat.unreduced and flat in self.reducing:
                flat.deferred.add(key)
            else:
                opens = flat.grad is None
                flat.collect(key, param)
                if opens:
                    self.meter.recount(flat)
        if not self.unit_of[flat].awaits_gradients:
            self.meter.end("backward", self.unit_of[flat].name)
        self.launch()

    def is_full(self, flat: FlatBuffer) -> bool:
        """Have all gradients of the bucket at the head of the queue come that will? Where some parameter has none, one is sure
        when the backward has gone past it: a reentrant checkpoint, until it is computed again, hides what it will bring."""
        return not flat.awaited and (len(flat.ready) >= flat.trainable or self.reached > 1)

    def launch(self) -> None:
        """Reduce the buckets at the head of the queue that are full."""
        while self.reduces_now and self.queue and self.is_full(self.queue[0]):
            self.reached = max(0, self.reached - 1)
            self.reduced.add(self.queue[0])
            self.reduce(self.queue.pop(0))

    @property
    def reduces_now(self) -> bool:
        return self.sync

    def reduce(self, flat: FlatBuffer) -> None:
        """Start one bucket's reduction, once there is room among those under way."""
        self.wait_for_reductions(keep=max(0, self.options.in_flight - 1), but=self.unit_of[flat])
        flat.complete_bucket()
        flat.reducing = self.ops.reduce(flat, self.comm)
        if flat.reducing is not None:
            self.reducing.append(flat)
        self.meter.recount(flat)
        if self.options.in_flight == 0:
            self.wait_for_reductions()

    def wait_for_reductions(self, keep: int = 0, but: Unit | None = None) -> None:
        """Wait, the oldest first, until at most `keep` units other than `but` have reductions under way."""
        while len({self.unit_of[flat] for flat in self.reducing} - {but}) > keep:
            flat = self.reducing.pop(0)
            try:
                flat.reducing.wait()
            finally:
                flat.reducing = None
                self.meter.recount(flat)

    def end_backward(self) -> None:
        for unit in self.units:
            self.meter.end("backward", unit.name)
            for flat in unit.flats:
                flat.awaited.clear()  # autograd had nothing to bring, after all
        self.reached = len(self.queue) + 1
        self.launch()
        self.unreduced = True
        if self.reduces_now and self.is_last:
            self.finish()
        self.forget_backward()

    def finish(self) -> None:
        """Reduce what is left (of earlier backwards, or deferred), and hand the gradients to the optimizer."""
        self.wait_for_reductions()  # a bucket must be back before its next round begins
        for flat in self.flats:
            flat.collect_deferred()
        for flat in agree(self):
            self.reduce(flat)
        self.wait_for_reductions()
        self.unreduced = False
        for flat in self.flats:
            if not flat.steps_masters:
                flat.publish_gradients()
            self.meter.recount(flat)

    def forget_backward(self) -> None:
        """Nothing of a backward is left over."""
        self.in_backward, self.reached = False, 0
        for each in self.passes:
            each.had_backward = True
        self.passes, self.queue = [], []
        self.reduced.clear()
        for flat in self.flats:
            flat.awaited.clear()
            flat.ready.clear()
