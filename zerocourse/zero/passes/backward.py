"""One backward while autograd runs: the list of all that it has yet to do (see `program`), and how far autograd is.

Autograd's hooks only tell what happened: it has come to a unit, it has brought a gradient, it is done. That may move the
position, and `run_ready` then does what stands at the head of the list, for as long as its condition holds. So the
collectives of all ranks begin in the order of the list, whatever a rank's own gradients do. The life of a bucket:

    empty       `grad` is None (or holds sums, which stages 0 and 1 keep)
    filling     `collect` moves gradients into it as autograd brings them
    full        each trainable parameter's gradient has come, and none will come once more (`is_full`)
    under way   Reduce has started its collective; Sum and Share start what follows
    reduced     Wait has seen the end of it: the sum is in `grad_shard` (from stage 2 on the bucket's memory went with the first part)

A gradient that comes while its bucket is under way is deferred: it stays at its parameter. When autograd is done, the ranks tell
each other in a second message who has such gradients, or others that came after their bucket was reduced, and reduce those
buckets once more (`Reductions.finish`).

A backward through several forwards, as that of a sum of losses, has a list for each. Where ranks ran different units in an earlier
one, a bucket may be complete on one rank and still awaited on another. Below stage 3, which refuses that, nothing is reduced then
before that second message.
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
    """What one backward knows. It is dropped at the end; after an exception it stays until the stage recovers."""

    def __init__(self, stage):
        self.stage, self.number = stage, current_backward()
        self.passes: list[Pass] = []  # the forwards through which it goes, the present one last
        self.program: deque[BackwardAction] = deque()
        self.order: list[Unit] = []  # the units to which it comes in the present pass, by position
        self.visited: list[Unit] = []  # those to which it has come on this rank
        self.position = START
        self.put_off: list[BackwardAction] = []  # reductions that are left for the end, because their gradients are still awaited
        self.started: set[FlatBuffer] = set()  # buckets whose reduction has begun
        self.same_list: SameList | None = None  # what the ranks have told each other last about the lists
        self.awaited = {flat: will_bring(flat) for flat in stage.flats}  # parameters whose gradient is still to come
        self.end_callback = lambda: None  # `hooks` puts a weak reference here: it is dead when autograd has dropped what it calls at the end
        self.arrived: dict[FlatBuffer, set[str]] = {flat: set() for flat in stage.flats}  # those whose gradient it has brought

    # -- what happens ---------------------------------------------------------------------------------------------------

    def come_to(self, of_pass: Pass, unit: Unit) -> bool:
        """The gradient of one of the unit's outputs is there. Returns False where the unit does not compute now: the gradient is of a
        pass that is over, or none of the unit's calls is ahead."""
        number = current_backward()
        if number not in (self.number, unit.inner_backward):  # a backward inside this one: reentrant checkpointing
            unit.inner_backward = number  # ask once: autograd answers for its whole graph, also of what has come already
            for flat in unit.flats:
                self.awaited[flat] |= will_bring(flat)
        if of_pass not in self.passes:
            self.begin_pass(of_pass)
        if of_pass is not self.passes[-1]:
            return False
        self.visited.append(unit)
        self.move_to(self.place_of(unit))
        self.note_half()
        return unit in self.order[self.place :]

    def gradient_came(self, flat: FlatBuffer, key: str, param: nn.Parameter) -> None:
        """Autograd has brought a parameter's gradient, complete."""
        unit = self.stage.unit_of[flat]
        if unit is self.stage.root and self.order and self.position >= len(self.order) - 1 and self.has_all(self.order[-1]):
            self.move_to(len(self.order))  # no unit follows that would tell that the last one is over: a gradient of the root's does
        self.awaited[flat].discard(key)
        self.arrived[flat].add(key)
        if raw_grad(param) is not None:  # else it was frozen after the forward, or an autograd function returned None
            if flat.reduction is not None and not flat.unreduced:
                flat.deferred.add(key)  # a wait here may start the next part, which ranks without this gradient would not
            else:
                opens = flat.grad is None
                flat.collect(key, param)
                if opens:
                    self.stage.meter.recount(flat)
        if not self.awaits(unit):
            self.stage.meter.end("backward", unit.name)
        self.note_half()

    def end(self) -> None:
        """Autograd is done: do all that is left in the list."""
        for keys in self.awaited.values():
            keys.clear()  # autograd had nothing to bring, after all
        self.leave_pass()
        self.program.extend(self.put_off)
        self.move_to(END)
        self.stage.reductions.wait()  # for all, also what the list does not wait for: no bucket takes memory in the next forward

    @property
    def brought_gradients(self) -> bool:
        """Has it brought any, on this rank?"""
        return any(self.arrived.values())

    def awaits(self, unit: Unit) -> bool:
        """Will a gradient of one of its parameters still come, on this rank?"""
        return any(self.awaited[flat] for flat in unit.flats)

    def has_all(self, unit: Unit) -> bool:
        """Has each of its parameters a gradient? Then nothing of it will compute; what is frozen may be needed until autograd has passed it."""
        return all(flat.trainable and self.is_full(flat) for flat in unit.flats)

    def note_half(self) -> None:
        """Move on if half of the present unit's gradients have come, or it has none; do what can be done."""
        half = self.place + 0.5
        if self.program and self.program[0].at == half:
            if sum(2 * len(self.awaited[flat]) - flat.trainable for flat in self.order[self.place].flats) <= 0:
                self.position = half
        self.run_ready()

    def is_full(self, flat: FlatBuffer) -> bool:
        return not self.awaited[flat] and len(self.arrived[flat]) >= flat.trainable

    @property
    def reduces_late(self) -> bool:
        """Is all left to the second message?"""
        return self.same_list is not None and not self.same_list.same_earlier

    # -- the list -----------------------------------------------------------------------------------------------------

    def begin_pass(self, of_pass: Pass) -> None:
        """The backward has come to one more forward. Autograd goes from the last one to the first, so the pass in which it was is over."""
        self.leave_pass()
        self.read_message()
        self.passes.append(of_pass)
        self.position, self.visited = START, []
        stage, was_told = self.stage, self.same_list is not None and of_pass in self.same_list.earlier
        if stage.options.agreement and stage.groups.size > 1 and (stage.reduces_now or stage.shards_parameters) and not was_told:
            self.same_list = SameList(stage, of_pass, self.awaited)
        self.write(of_pass.calls)
        self.run_ready()

    def write(self, calls: Sequence[Call]) -> None:
        """Write the list of a pass that made these calls. Reductions of the pass before that were not done come first, at once."""
        stage = self.stage
        buckets = {unit: [flat for flat in unit.flats if flat.trainable and flat not in self.started] for unit in stage.units}
        program = backward_program(
            calls, buckets, stage.last_units, prefetch=stage.options.prefetch if stage.shards_parameters else None,
            in_flight=stage.options.in_flight, parts=() if self.reduces_late else stage.reduction_parts, reshards=stage.next_backward.reshards,
            under_way=[(stage.unit_of[flat], flat) for flat in stage.reductions.under_way])
        joined = {action.bucket for action in program if action.kind == REDUCE}
        left = [action._replace(at=START) for action in (*self.put_off, *self.program)
                if action.kind == REDUCE and action.bucket not in joined]
        if self.same_list is not None and not self.same_list.was_read:
            # Read it before anything is waited for or reduced. Where the ranks have agreed on such a list before, the gathers at the
            # beginning need not wait for it. Below stage 3, which gathers nothing, it is due with the first action.
            early = sum(action.kind == GATHER and action.at == START for action in program) if self.same_list.is_known else 0
            first = program[0] if program and not stage.shards_parameters else BackwardAction(AGREE)
            program.insert(early, first._replace(kind=AGREE))
        self.order, self.put_off, self.program = [call.unit for call in reversed(calls)], [], deque([*left, *program])

    def leave_pass(self) -> None:
        """The present pass is over. Autograd does not go on to frozen units that no trainable one is behind: they need no gather."""
        if self.same_list is None or self.same_list.same_gradients:  # else a rank may have come further than this one
            trained = max((place for place, unit in enumerate(self.order) if any(flat.trainable for flat in unit.flats)), default=-1)
            self.program = deque(action for action in self.program if action.kind != GATHER or action.at <= trained + 0.5)
        self.move_to(len(self.order))

    @property
    def place(self) -> int:
        """The place in `order` of the unit to which the backward has come last; 0 where it has come to none."""
        return max(0, int(min(self.position, len(self.order))))

    def place_of(self, unit: Unit) -> float:
        """The position of the unit's next call; the present one where it has none ahead."""
        ahead = self.order[self.place :]
        return self.place + ahead.index(unit) if unit in ahead else self.position

    def move_to(self, position: float) -> None:
        self.position = max(self.position, position)
        self.run_ready()

    def run_ready(self) -> None:
        """Do what stands at the head of the list, for as long as its condition holds."""
        while self.program:
            action = self.program[0]
            if self.position < action.at and not (action.full is not None and self.is_full(action.full)):
                return
            if action.kind == REDUCE and self.awaited[action.bucket]:  # an earlier part of the forward used its parameters, too
                if not self.stage.shards_parameters:
                    return
                # Where all ranks bring the same gradients, all put it off. Else reduce what is here, and the rest at the end.
                if self.same_list is None or self.same_list.same_gradients:
                    self.put_off.append(self.program.popleft())
                    continue
            self.do(self.program.popleft())

    def do(self, action: BackwardAction) -> None:
        stage = self.stage
        if action.kind == GATHER:
            stage.start_unshard(action.unit)
        elif action.kind == FREE:
            stage.leave(action.unit)
        elif action.kind == AGREE:
            self.read_message()
        elif action.kind == REDUCE:
            self.started.add(action.bucket)
            stage.reductions.start(action.bucket)
        elif action.kind == WAIT:
            stage.reductions.wait_for(action.bucket)
        else:
            stage.reductions.next_part(action.bucket)

    def read_message(self) -> None:
        """Read, once, what the ranks have told each other about the list, also where nothing was reduced since: no rank's message
        stays unread. If their forwards ran different units, stage 3 raises, and below it all write the list of all calls."""
        if self.same_list is None or self.same_list.was_read:
            return
        records = self.same_list.read()
        if self.reduces_late:
            self.program.clear()
            self.put_off.clear()
        elif records is not None:
            is_over, position = self.position >= len(self.order), self.position
            self.write(merge(records))
            self.position = START
            for unit in self.visited:
                self.position = self.place_of(unit)
            if is_over:
                self.position = max(position, len(self.order))


def will_bring(flat: FlatBuffer) -> set[str]:
    """Parameters whose gradient the running backward will bring, on this rank: autograd knows to which nodes it will come."""
    return {key for key, node in flat.accumulators.items() if will_run(node)}
