"""What a stage does while autograd runs: collects gradients, visits the units in order, reduces full buckets, tidies up.

A backward is a walk over the units, in the reverse order of the forward (see `schedule`). The verbs come from `hooks`;
`enter` and `post_backward` say that the walk has come to a unit and has left it, and stage 3 gathers and frees there.
Buckets are reduced strictly in the order of the walk: that, and not the moment at which a gradient happens to arrive,
is why all ranks reduce the same buckets in the same order.
"""

from torch import nn

from ..measure.storages import raw_grad
from . import hooks
from .agreement import agree
from .buffer import FlatBuffer
from .schedule import Pass
from .unit import Unit


class BackwardWalk:
    """The backward of a stage. Its attributes are made by `DataParallel`, the stage that all others step on."""

    def begin_backward(self) -> None:
        self.in_backward, self.backward_number = True, hooks.current_backward()
        for flat in self.flats:
            flat.awaited = hooks.awaited(flat)

    def finish_walk(self, of_pass: Pass) -> None:
        """Visit the units of the pass that this rank has passed over, but for frozen ones at its end: nobody visits them."""
        while any(flat.trainable for unit in of_pass.ahead for flat in unit.flats):
            unit = of_pass.ahead.pop(0)
            self.leave_all()
            self.enter(unit)

    def begin_pass(self, of_pass: Pass) -> None:
        """This backward also goes through the pass: its units are reduced in the order in which they are visited, then those
        that ran several times or contain other units, then the root."""
        if not of_pass.under_way:
            if self.passes:  # autograd goes from the last forward to the first: the one before is over
                self.finish_walk(self.passes[-1])
            of_pass.begin_backward()
            self.passes.append(of_pass)
            done = [unit for unit in self.units if unit.reduced and not unit.to_reduce]
            late = {unit for each in self.passes for unit in each.again | each.around}
            order = [unit for unit in dict.fromkeys([*self.queue, *of_pass.ahead]) if unit is not self.root and unit not in done]
            self.queue = [*(unit for unit in order if unit not in late), *(unit for unit in order if unit in late), self.root]

    def pre_backward(self, of_pass: Pass, unit: Unit) -> None:
        if hooks.current_backward() != self.backward_number:  # a backward inside this one: reentrant checkpointing
            for flat in unit.flats:
                flat.awaited |= hooks.awaited(flat)
        self.begin_pass(of_pass)
        self._mark("backward", unit)
        for each in of_pass.visit(unit):
            self.leave_all(but=each)
            self.enter(each)

    def enter(self, unit: Unit) -> None:
        """The backward has come to the unit, or passes over it. It may have left it before, in a later forward's pass."""
        unit.backward_done = False
        self.entered.append(unit)

    def leave_all(self, but: Unit | None = None) -> None:
        """Mark every entered unit as left, except `but` and, while there is one, units that contain others. Those that ran more
        than once are finished at the end only."""
        for unit in [unit for unit in self.entered if unit is not but]:
            if but is None or not any(unit in each.around for each in self.passes):
                self.entered.remove(unit)
                unit.backward_done = not any(unit in each.again for each in self.passes)
                self.post_backward(unit)

    def post_backward(self, unit: Unit) -> None:
        self._mark("backward", unit, over=True)
        self.launch()

    def on_gradient(self, flat: FlatBuffer, key: str, param: nn.Parameter) -> None:
        """Move the gradient into its bucket. If the bucket is under way, the gradient stays at its parameter until `finish`,
        and nobody waits here: other ranks may not come by this point, so they would wait for each other."""
        flat.awaited.discard(key)
        if raw_grad(param) is None:  # it was frozen after the forward, or an autograd function returned None
            return
        if flat.grad is not None and not flat.unreduced and any(flat is other for _, other, _ in self.reducing):
            flat.deferred.add(key)
            return
        flat.collect(key, param)
        self.recount(flat)
        unit = self.unit_of[flat]
        if not unit.awaits_gradients:
            self._mark("backward", unit, over=True)
        if self.is_full(flat) or unit.backward_done:
            self.launch()

    @property
    def reduces_now(self) -> bool:
        return self.sync

    def launch(self) -> None:
        """Reduce the buckets that are full, and those of units whose backward is over: no more gradients will come.

        Strictly in the order of the queue, also when a later bucket is full sooner: so all ranks do it in the same
        order, and no rank ever waits for one that waits for it.
        """
        while self.reduces_now and self.queue:
            unit = self.queue[0]
            for flat in unit.to_reduce:
                if not (unit.backward_done and not flat.awaited or self.is_full(flat)):
                    return
                unit.reduced += 1
                self.reduce(unit, flat)
            self.queue.pop(0)

    def is_full(self, flat: FlatBuffer) -> bool:
        """Have all gradients come? An unused parameter is only known to be unused once the backward has left the unit."""
        return len(flat.ready) >= flat.trainable

    def reduce(self, unit: Unit, flat: FlatBuffer) -> None:
        """Start one bucket's reduction, once there is room among those under way."""
        self.wait_for_reductions(keep=max(0, self.options.in_flight - 1), but=unit)
        flat.complete_bucket()
        handle = self.ops.reduce(flat, self.comm)
        if handle is not None:
            self.reducing.append((unit, flat, handle))
        self.recount(flat)
        if self.options.in_flight == 0:
            self.wait_for_reductions()

    def wait_for_reductions(self, keep: int = 0, but: Unit | None = None) -> None:
        """Wait, the oldest first, until at most `keep` units other than `but` have reductions under way."""
        while len({unit for unit, _, _ in self.reducing if unit is not but}) > keep:
            try:
                self.reducing[0][-1].wait()
            finally:
                self.recount(self.reducing.pop(0)[1])

    def end_backward(self) -> None:
        for each in self.passes:
            self.finish_walk(each)
        self.leave_all()
        for unit in self.units:
            unit.backward_done = True
            self._mark("backward", unit, over=True)
            for flat in unit.flats:
                flat.awaited.clear()  # autograd had nothing to bring, after all
        self.launch()
        if self.reduces_now:
            self.finish()
        else:
            self.unreduced = True
        self.forget_backward()

    def finish(self) -> None:
        """Reduce what is left (of earlier backwards, or deferred), and hand the gradients to the optimizer."""
        self.wait_for_reductions()  # a bucket must be back before its next round begins
        for flat in self.flats:
            flat.collect_deferred()
        for unit, flat in agree(self):
            self.reduce(unit, flat)
        self.wait_for_reductions()
        self.unreduced = False
        for flat in self.flats:
            if not flat.steps_masters:
                flat.publish_gradients()
            self.recount(flat)

    def forget_backward(self) -> None:
        """Nothing of a backward is left over."""
        self.in_backward = False
        for each in self.passes:
            each.under_way, each.had_backward = False, True
        self.passes, self.queue, self.entered = [], [], []
        for unit in self.units:
            unit.reduced, unit.backward_done = 0, False
            for flat in unit.flats:
                flat.ready.clear()
                flat.awaited.clear()
