"""One backward while autograd runs: the list of all that it has yet to do (see `program`), and how far autograd is.

Autograd's hooks only bring the facts: it has come to a unit, it has brought a gradient, it is done. A fact may move the
position, and `advance` then does what stands at the head of the list, for as long as its condition holds. So the
collectives of all ranks begin in the order of the list, whatever a rank's own gradients do. The life of a bucket:

    empty       `grad` is None (or holds sums, which stages 0 and 1 keep)
    filling     `collect` moves gradients into it as autograd brings them
    full        every gradient that autograd will bring has come (`is_full`)
    under way   Reduce has started its collective; Sum and Share start what follows
    reduced     Wait has seen the end of it: the sum is in `grad_shard`

A gradient that comes while its bucket is under way is deferred: it stays at its parameter until that is over. What comes
after its bucket was reduced is reduced once more at the end, if any rank has such a gradient (see `agreement`).
"""

from collections import deque
from collections.abc import Sequence

from torch import nn

from ...autograd.graph import current_backward, will_run
from ...measure.storages import raw_grad
from ..buffers.buffer import FlatBuffer
from ..buffers.unit import Unit
from .agreement import SameList
from .program import AGREE, END, FREE, GATHER, REDUCE, START, WAIT, BackwardAction, Call, backward_program, merge
from .schedule import Pass


class Backward:
    """What one backward knows. It ends with autograd; an exception in between leaves it as it is, to be forgotten."""

    def __init__(self, stage):
        self.stage, self.number = stage, current_backward()
        self.passes: list[Pass] = []  # those that it goes through, the present one last
        self.program: deque[BackwardAction] = deque()
        self.order: list[Unit] = []  # the units to which it comes in the present pass, by position
        self.visited: list[Unit] = []  # those to which it has come on this rank
        self.position = START
        self.overtaken: list[BackwardAction] = []  # reductions that others have passed, because their gradients come later
        self.reduced: set[FlatBuffer] = set()
        self.same_list: SameList | None = None  # what the ranks tell each other about the present list
        self.awaited = {flat: awaited(flat) for flat in stage.flats}  # parameters whose gradient autograd will still bring
        self.end_callback = lambda: None  # a weak reference to what autograd calls at the end
        self.arrived: dict[FlatBuffer, set[str]] = {flat: set() for flat in stage.flats}  # those whose gradient it has brought

    # -- facts --------------------------------------------------------------------------------------------------------

    def come_to(self, of_pass: Pass, unit: Unit) -> bool:
        """The gradient of one of the unit's outputs is there. Returns whether the unit's backward computes now."""
        number = current_backward()
        if number not in (self.number, unit.inner_backward):  # a backward inside this one: reentrant checkpointing
            unit.inner_backward = number  # once: later, autograd would also name the gradients that have come already
            for flat in unit.flats:
                self.awaited[flat] |= awaited(flat)
        if of_pass not in self.passes:
            self.begin_pass(of_pass)
        if of_pass is not self.passes[-1]:
            return False
        self.visited.append(unit)
        self.move(self.place_of(unit))
        return unit in self.order[self.here :]

    def gradient_came(self, flat: FlatBuffer, key: str, param: nn.Parameter) -> None:
        """Autograd has brought a parameter's gradient, complete."""
        unit = self.stage.unit_of[flat]
        if unit is self.stage.root and self.here == len(self.order) - 1 and not self.awaits(self.order[-1]):
            self.move(len(self.order))  # nothing follows the last unit, so a gradient of the root's tells that it is over
        self.awaited[flat].discard(key)
        self.arrived[flat].add(key)
        if raw_grad(param) is not None:  # else it was frozen after the forward, or an autograd function returned None
            if flat.reduction is not None and not flat.unreduced:
                flat.deferred.add(key)  # do not wait here: a rank that has no such gradient would never join
            else:
                opens = flat.grad is None
                flat.collect(key, param)
                if opens:
                    self.stage.meter.recount(flat)
        if not self.awaits(unit):
            self.stage.meter.end("backward", unit.name)
        if self.program and self.program[0].at == self.here + 0.5 and self.half_came(self.order[self.here]):
            self.move(self.here + 0.5)
        self.advance()

    def end(self) -> None:
        """Autograd is done, so everything that is left in the list is done, too."""
        for awaited in self.awaited.values():
            awaited.clear()  # autograd had nothing to bring, after all
        self.leave_pass()
        self.move(END)
        self.program.extend(self.overtaken)
        self.advance()
        self.stage.reductions.wait()  # for those that were overtaken, too: no bucket takes memory in the next forward

    @property
    def brought_gradients(self) -> bool:
        """Has it brought any, on this rank?"""
        return any(self.arrived.values())

    def awaits(self, unit: Unit) -> bool:
        """Will a gradient of one of its parameters still come, on this rank?"""
        return any(self.awaited[flat] for flat in unit.flats)

    def half_came(self, unit: Unit) -> bool:
        return sum(2 * len(self.awaited[flat]) - flat.trainable for flat in unit.flats) <= 0

    def is_full(self, flat: FlatBuffer) -> bool:
        return not self.awaited[flat] and len(self.arrived[flat]) >= flat.trainable

    # -- the list -----------------------------------------------------------------------------------------------------

    def begin_pass(self, of_pass: Pass) -> None:
        """The backward has come to one more forward. Autograd goes from the last one to the first, so the one before is over."""
        self.leave_pass()
        self.read_message()
        self.passes.append(of_pass)
        self.position, self.visited, self.same_list = START, [], None
        if self.stage.options.agreement and self.stage.groups.size > 1 and (self.stage.reduces_now or self.stage.shards_parameters):
            self.same_list = SameList(self.stage, of_pass.calls, self.awaited)
        self.write(of_pass.calls)
        self.advance()

    def write(self, calls: Sequence[Call]) -> None:
        """Write the list of a pass that made these calls, behind the reductions for which the one before has waited in vain."""
        stage = self.stage
        buckets = {unit: [flat for flat in unit.flats if flat.trainable and flat not in self.reduced] for unit in stage.units}
        program = backward_program(
            calls, buckets, stage.last_units, prefetch=stage.options.prefetch if stage.shards_parameters else None,
            in_flight=stage.options.in_flight, parts=stage.reduction_parts, reshards=stage.next_backward.reshards,
            under_way=[(stage.unit_of[flat], flat) for flat in stage.reductions.under_way])
        joined = {action.bucket for action in program if action.kind == REDUCE}
        left = [action._replace(at=START) for action in (*self.overtaken, *self.program)
                if action.kind == REDUCE and action.bucket not in joined]
        if self.same_list is not None and not self.same_list.was_read:
            # Before anything is waited for or reduced. A list on which the ranks have agreed before begins its first gathers already.
            early = sum(action.kind == GATHER and action.at == START for action in program) if self.same_list.is_known else 0
            first = program[0] if program and not stage.shards_parameters else BackwardAction(AGREE)
            program.insert(early, first._replace(kind=AGREE))
        self.order, self.overtaken, self.program = [call.unit for call in reversed(calls)], [], deque([*left, *program])

    def leave_pass(self) -> None:
        """The present pass is over. Autograd never comes to the units after the last trainable one, so they need no gather."""
        trained = max((place for place, unit in enumerate(self.order) if any(flat.trainable for flat in unit.flats)), default=-1)
        self.program = deque(action for action in self.program if action.kind != GATHER or action.at <= trained + 0.5)
        if self.passes:
            self.move(len(self.order))

    @property
    def here(self) -> int:
        """The place in `order` of the unit to which the backward has come last."""
        return max(0, int(min(self.position, len(self.order))))

    def place_of(self, unit: Unit) -> float:
        """The position of the unit's next call; the present one where it has none ahead."""
        ahead = self.order[self.here :]
        return self.here + ahead.index(unit) if unit in ahead else self.position

    def move(self, position: float) -> None:
        self.position = max(self.position, position)
        self.advance()

    def advance(self) -> None:
        """Do what stands at the head of the list, for as long as its condition holds."""
        while self.program:
            action = self.program[0]
            if self.position < action.at and not (action.full is not None and self.is_full(action.full)):
                return
            if action.kind == REDUCE and self.awaited[action.bucket]:  # its parameters are used before the unit, too
                if not self.stage.shards_parameters:
                    return
                if self.same_list is None or self.same_list.same_gradients:
                    self.overtaken.append(self.program.popleft())
                    continue
            self.do(self.program.popleft())

    def do(self, action: BackwardAction) -> None:
        stage = self.stage
        if action.kind == GATHER:
            stage.start_unshard(action.unit)
        elif action.kind == FREE:
            stage.leave(action.unit)
        elif action.kind == AGREE:
            self.agree()
        elif action.kind == REDUCE:
            self.reduced.add(action.bucket)
            stage.reductions.start(action.bucket)
        elif action.kind == WAIT:
            stage.reductions.wait_for(action.bucket)
        else:
            stage.reductions.next_part(action.bucket)

    def read_message(self) -> None:
        """Nobody waits for a message in vain: what was sent is read, also where nothing was reduced since."""
        if self.same_list is not None and not self.same_list.was_read:
            self.agree()

    def agree(self) -> None:
        """Read what the ranks have told each other. If their forwards ran different units, all write the list of all calls."""
        records = self.same_list.read()
        if records is not None:
            is_over, position = self.position >= len(self.order), self.position
            self.write(merge(records))
            self.position = START
            for unit in self.visited:
                self.position = self.place_of(unit)
            if is_over:
                self.position = max(position, len(self.order))


def awaited(flat: FlatBuffer) -> set[str]:
    """Parameters whose gradient the running backward will bring, on this rank: autograd knows to which nodes it will come."""
    return {key for key, node in flat.accumulators.items() if will_run(node)}
