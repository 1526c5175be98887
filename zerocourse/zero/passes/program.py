"""A backward is a program: one list of all that it will do, written when it begins, the same on every rank.

All ranks must issue the same collectives in the same order, whatever the model does on one of them. So the order never
follows the gradients that happen to arrive: it follows from the forward, which is the same on all ranks. Each action of
the list has one condition, and is done when it stands at the head of the list and its condition holds (see `backward`).

    Gather   all-gather the unit's parameters, at its position                 (stage 3)
    Reduce   reduce-scatter a bucket at its position; after the last Gather as soon as it is full
    Sum      the bucket's slice is reduced: add it up over the replicas        (hybrid sharding)
    Share    all-gather what was added up                                      (stage 0, and the second half of a Sum)
    Wait     the bucket's reduction must be over
    Free     free the unit's parameters, at its position                       (stage 3)
    Agree    read whether all ranks have the same list

The backward comes to the calls of the forward in reverse. A *position* counts them: at position p it has come to the p-th,
at p + 1/2 half of that unit's gradients have come, and when it is as large as the number of calls the last one is past.
The root, and units whose parameters are used outside of them, are there from the beginning and finished at `END`.

This file knows nothing of tensors. Whatever can be a key may stand for a unit, and for a bucket.
"""

from collections.abc import Hashable, Mapping, Sequence
from math import inf
from typing import NamedTuple

GATHER, REDUCE, SUM, SHARE, WAIT, FREE, AGREE = "Gather", "Reduce", "Sum", "Share", "Wait", "Free", "Agree"
START, END = -1.0, inf  # the positions before the backward has come to any unit, and at which autograd is done

Unit = Hashable
Bucket = Hashable


class Call(NamedTuple):
    """One forward of a unit, in a list of calls in the order in which they ended.

    began: how many calls had ended when this one began. Those from there on ran inside of it.
    """

    unit: Unit
    began: int


class BackwardAction(NamedTuple):
    """What to do, and with which unit, or which of its buckets.

    at: the position from which on it may be done.   full: the bucket that, when it is full, is enough, too; None: there is none.
    """

    kind: str
    unit: Unit = None
    bucket: Bucket = None
    at: float = START
    full: Bucket = None


def backward_program(calls: Sequence[Call], buckets: Mapping[Unit, Sequence[Bucket]], last: Sequence[Unit], *,
                     prefetch: int | None = None, in_flight: int = 1, parts: Sequence[str] = (REDUCE,), reshards: bool = True,
                     under_way: Sequence[tuple[Unit, Bucket]] = ()) -> list[BackwardAction]:
    """The list for the backward of a forward that made these calls. It ends when all reductions are over.

    buckets: of each unit the trainable ones, in the order of its parameters.   last: units that are finished at `END`.
    prefetch: gather so many units ahead of the one that computes; None: nothing is gathered (stages 0 to 2).
    in_flight: as in `ZeroOptions`.   parts: of each reduction, Reduce first; none: nothing is reduced.
    reshards: free what was gathered.   under_way: reductions that have begun, of another forward's list; the oldest first.
    """
    order, gathers = [call.unit for call in reversed(calls)], prefetch is not None
    visits = [unit for unit in dict.fromkeys(order) if unit not in last]
    finished: dict[int, list[Unit]] = {}
    for unit, position in finished_at(calls).items():  # of several, those inside come before those that contain them
        finished.setdefault(position, []).extend([unit] if unit not in last else [])
    writer = Writer(buckets, in_flight, parts, under_way, frees=gathers and reshards)
    if gathers:
        writer.gather([*last, *visits[:prefetch]], at=START)
    visited = 0
    for position, unit in enumerate([*order, None]):
        for each in finished.get(position, ()):
            writer.finish(each, position)
        if gathers and visits[visited : visited + 1] == [unit]:
            visited += 1
            writer.gather([unit], position)
            writer.gather_ahead(visits[visited : visited + prefetch], position)
    for unit in reversed(last):
        writer.finish(unit, END)
    writer.wait()
    return writer.written()


def finished_at(calls: Sequence[Call]) -> dict[Unit, int]:
    """The position at which a unit's gradients are complete: past its first call, and past those inside of it."""
    first: dict[Unit, int] = {}
    for call in calls:
        first[call.unit] = min(first.get(call.unit, call.began), call.began)
    return {unit: len(calls) - began for unit, began in first.items()}


class UnderWay:
    """A reduction that has begun.   left: the parts that are still to be started."""

    def __init__(self, unit: Unit, bucket: Bucket, left: Sequence[str] = ()):
        self.unit, self.bucket, self.left = unit, bucket, list(left)


class Writer:
    """Writes actions, and knows what they leave gathered and under way."""

    def __init__(self, buckets: Mapping[Unit, Sequence[Bucket]], in_flight: int, parts: Sequence[str],
                 under_way: Sequence[tuple[Unit, Bucket]], frees: bool):
        self.buckets, self.in_flight, self.parts, self.frees = buckets, in_flight, parts, frees
        self.under_way = [UnderWay(*each) for each in under_way]
        self.gathered: set[Unit] = set()
        self.actions: list[BackwardAction] = []

    def gather(self, units: Sequence[Unit], at: float) -> None:
        self.actions += [BackwardAction(GATHER, unit, at=at) for unit in units if unit not in self.gathered]
        self.gathered.update(units)

    def gather_ahead(self, units: Sequence[Unit], at: float) -> None:
        """With in_flight=1 the last reduction first gives its memory back, for which it has until half of the gradients have come."""
        if self.in_flight == 1 and not self.gathered.issuperset(units):
            for each in [each for each in self.under_way if len(each.left) == max(0, len(self.parts) - 1)]:
                self.advance(each)
                at = int(at) + 0.5
        self.gather(units, at)

    def finish(self, unit: Unit, at: float) -> None:
        """The unit's gradients are complete from here on: reduce its buckets, the last one first, and free the unit."""
        if self.parts and self.buckets[unit]:
            self.make_room()
            for bucket in reversed(self.buckets[unit]):
                self.actions.append(BackwardAction(REDUCE, unit, bucket, at))
                self.under_way.append(UnderWay(unit, bucket, self.parts[1:]))
                if self.in_flight == 0:
                    self.wait(at=START)
        if self.frees:
            self.actions.append(BackwardAction(FREE, unit, at=at))

    def make_room(self) -> None:
        """One more unit is to be reduced: with it, at most `in_flight` may be in the first part of their reductions. Those that
        were in a later part are one part further by then."""
        units = list(dict.fromkeys(each.unit for each in self.under_way))
        keep = units[len(units) - self.in_flight + 1 :] if self.in_flight > 1 else []
        for each in [each for each in self.under_way if each.unit not in keep]:
            self.advance(each)

    def advance(self, each: UnderWay, at: float | None = None) -> None:
        """Wait for the part that is under way, and start the next one.   at: None: when the next action may be done."""
        self.actions.append(BackwardAction(each.left.pop(0) if each.left else WAIT, each.unit, each.bucket, at))
        if self.actions[-1].kind == WAIT:
            self.under_way.remove(each)

    def wait(self, at: float | None = None) -> None:
        """Until all is over: of all buckets one part, and then the next."""
        while self.under_way:
            for each in list(self.under_way):
                self.advance(each, at)

    def written(self) -> list[BackwardAction]:
        """What was written, with all conditions. Behind the last Gather a full bucket is enough for a Reduce. (Before it, a rank on
        which a bucket is full could come to its reduction earlier than to a gather for which another rank does not wait.)"""
        written, at, full = [], END, None
        may_be_full = True
        for action in reversed(self.actions):
            may_be_full &= action.kind != GATHER
            if action.at is not None:
                at, full = action.at, action.bucket if may_be_full and action.kind == REDUCE else None
            written.append(action._replace(at=at, full=full))
        return written[::-1]


def merge(records: Sequence[Sequence[Call]]) -> list[Call]:
    """The calls of all ranks as one list, in which each rank's stand in their order; the same on every rank.

    It is as short as one that takes the first place that fits. A unit that has others inside of it is finished at the end.
    """
    units: list[Unit] = []
    containers = {call.unit for record in records for place, call in enumerate(record) if call.began < place}
    for record in records:
        at = 0
        for unit, _ in record:
            if unit not in units[at:]:
                units.insert(at, unit)
            at = units.index(unit, at) + 1
    return [Call(unit, 0 if unit in containers else place) for place, unit in enumerate(units)]


def text(program: Sequence[BackwardAction], calls: Sequence[Call]) -> str:
    """The list in words, a line an action: what, of which unit or bucket, and when."""
    order = [call.unit for call in reversed(calls)]
    what = [f"{kind:7}{unit if bucket is None else bucket}" for kind, unit, bucket, *_ in program]
    width = max(map(len, what), default=0)
    return "\n".join(f"{each:{width}}  {when(action, order)}" for each, action in zip(what, program, strict=True))


def when(action: BackwardAction, order: Sequence[Unit]) -> str:
    """An action's condition in words."""
    at = action.at
    if at == END:
        place = "at the end"
    elif at == START:
        place = "at the beginning" if action.kind == GATHER else "at once"
    elif at % 1:
        place = f"when half of the gradients of {order[int(at)]} have come"
    elif action.kind == GATHER:
        place = f"at {order[int(at)]}"
    else:
        place = f"past {order[int(at) - 1]}"
    return place if action.full is None else f"when {action.full} is full, or {place}"
