"""A backward is a program: one list of all that it will do, written when it begins, the same on every rank.

All ranks must issue the same collectives in the same order, whatever the model does on one of them. So the order never
follows the gradients that happen to arrive: it follows from the calls that the forward made. Each action of the list has one
condition, and is done when it stands at the head of the list and its condition holds (see `backward`). For three blocks under
stage 3, with prefetch=1 and in_flight=1, the list is

    Gather root     at the beginning
    Gather block 2  at the beginning
    Gather block 1  at block 2
    Reduce block 2  past block 2
    Free   block 2  past block 2
    Wait   block 2  when half of the gradients of block 1 have come
    Gather block 0  when half of the gradients of block 1 have come
    Reduce block 1  when block 1 is full, or past block 1
    Free   block 1  past block 1
    Wait   block 1  when block 0 is full, or past block 0
    Reduce block 0  when block 0 is full, or past block 0
    Free   block 0  past block 0
    Wait   block 0  when root is full, or at the end
    Reduce root     when root is full, or at the end
    Free   root     at the end
    Wait   root     at the end

    Agree    (put in by `Backward.write`) read whether all ranks have the same list: where not, stage 3 raises, and the others merge theirs
    Gather   start to all-gather the unit's parameters (stage 3); who computes with them waits (`Stage3.pre_backward`)
    Reduce   start to reduce-scatter a bucket: past its unit; after the last Gather also as soon as the bucket is full (see `written`)
    Sum      wait for that, and start to reduce-scatter the slice over the replicas (hybrid sharding)
    Share    wait for that, and start to all-gather what was summed (stage 0, and after a Sum)
    Wait     wait for the last of these
    Free     free the unit's parameters (stage 3)

The backward comes to the calls of the forward in reverse. At position p it has come to call number p of that order, at
p + 1/2 half of that unit's gradients have come, and at the number of calls the last one is over. The root is no call: it and
units whose parameters are used outside of them stay gathered throughout, and are finished at `END`. A unit that did not run in
the forward is not in the list. This file knows nothing of tensors: units and buckets are whatever can be a key.
"""

from collections.abc import Hashable, Mapping, Sequence
from math import inf
from typing import NamedTuple

GATHER, REDUCE, SUM, SHARE, WAIT, FREE, AGREE = "Gather", "Reduce", "Sum", "Share", "Wait", "Free", "Agree"
START, END = -1.0, inf  # positions: before the backward has come to any unit, and when autograd is done

Unit = Hashable
Bucket = Hashable


class Call(NamedTuple):
    """One forward of a unit, in a list of calls in the order in which they ended.

    began: how many calls had ended when this one began. Those from there on, up to this one, ran inside of it.
    """

    unit: Unit
    began: int


class BackwardAction(NamedTuple):
    """What to do, and with which unit, or which of its buckets.

    at: the position from which on it may be done.   full: it may also be done as soon as this bucket is full; None: at `at` alone.
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
    in_flight: as in `ZeroOptions`.   parts: of each reduction, such as (Reduce, Sum, Share); none: nothing is reduced.
    reshards: free what was gathered.   under_way: reductions that an earlier list has begun, the oldest first.
    """
    order, gathers = [call.unit for call in reversed(calls)], prefetch is not None
    ahead = [unit for unit in dict.fromkeys(order) if unit not in last]
    finished: dict[int, list[Unit]] = {}
    for unit, position in finished_at(calls).items():  # of several at one position, those inside come before those around them
        if unit not in last:
            finished.setdefault(position, []).append(unit)
    writer = Writer(buckets, in_flight, parts, under_way, frees=gathers and reshards)
    if gathers:
        writer.gather([*last, *ahead[:prefetch]], at=START)
    for position, unit in enumerate([*order, None]):
        for each in finished.get(position, ()):
            writer.finish(each, position)
        if gathers and ahead[:1] == [unit]:
            writer.gather([ahead.pop(0)], position)
            writer.gather_ahead(ahead[:prefetch], position)
    for unit in reversed(last):
        writer.finish(unit, END)
    writer.wait()
    return writer.written()


def finished_at(calls: Sequence[Call]) -> dict[Unit, int]:
    """The position at which a unit's gradients are complete: past its first call in the forward, the last one in the backward."""
    finished: dict[Unit, int] = {}
    for unit, began in calls:
        finished[unit] = max(finished.get(unit, 0), len(calls) - began)
    return finished


class UnderWay:
    """A reduction that has begun.   to_come: the parts that are still to be started."""

    def __init__(self, unit: Unit, bucket: Bucket, to_come: Sequence[str] = ()):
        self.unit, self.bucket, self.to_come = unit, bucket, list(to_come)


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
        """Gather units ahead. With in_flight=1 wait first for the reduction in flight, so that its bucket is freed, and do both when
        half of the present unit's gradients have come: the reduction overlaps with the first half, the gather with the second."""
        if self.in_flight == 1 and not self.gathered.issuperset(units):
            for each in [each for each in self.under_way if each.to_come == list(self.parts[1:])]:  # in their first part
                self.next_part(each)
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
        """One more unit is to be reduced. With it, at most `in_flight` units may hold full buckets, in the first part of their
        reductions: the older ones go on to their next part, and so do those that were in a later one."""
        units = list(dict.fromkeys(each.unit for each in self.under_way))
        keep = units[1 - self.in_flight :] if self.in_flight > 1 else []
        for each in [each for each in self.under_way if each.unit not in keep]:
            self.next_part(each)

    def next_part(self, each: UnderWay, at: float | None = None) -> None:
        """Wait for the part that is under way, and start the next one.   at: None: together with the next action."""
        self.actions.append(BackwardAction(each.to_come.pop(0) if each.to_come else WAIT, each.unit, each.bucket, at))
        if self.actions[-1].kind == WAIT:
            self.under_way.remove(each)

    def wait(self, at: float | None = None) -> None:
        """Until all is over: of all buckets one part, and then the next."""
        while self.under_way:
            for each in list(self.under_way):
                self.next_part(each, at)

    def written(self) -> list[BackwardAction]:
        """What was written, with all conditions. Behind the last Gather a full bucket is enough for a Reduce. (Before it a block that
        reentrant checkpointing computes again may be gathered outside of the list, and a bucket may be full on one rank alone: the
        two would begin in different orders.)"""
        written, at, full = [], END, None
        may_be_full = True
        for action in reversed(self.actions):
            may_be_full &= action.kind != GATHER
            if action.at is not None:
                at, full = action.at, action.bucket if may_be_full and action.kind == REDUCE else None
            written.append(action._replace(at=at, full=full))
        return written[::-1]


def merge(records: Sequence[Sequence[Call]]) -> list[Call]:
    """The calls of all ranks as one list, which keeps the order of each rank's own; the same on every rank (stages 0 to 2).

    Each call takes the first place that fits. A unit that has others inside of it is finished at the end.
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
