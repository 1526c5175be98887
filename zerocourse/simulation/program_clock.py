"""How long the program of a backward takes: it is a pipeline, whose ranks are the rank's processor and its links.

A unit goes through them as a micro-batch goes through a pipeline: the processor asks for its gather, the link gathers it, the
processor computes its backward and asks for the reduction, the link reduces, and so on. So the list becomes a schedule, of which
each rank is a lane here, and the clock of pipelines times it (`parallel.pipeline.schedules.makespan`), in exact units.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..measure.backward_lanes import COMPUTES, GATHERS, REDUCTIONS, SUMS, WAITS, BackwardLanes
from ..measure.intervals import Interval
from ..parallel.pipeline import Action, Costs, Schedule, Timing, simulate, with_transfers
from ..parallel.pipeline.schedules.makespan import Computed, Number
from ..zero.passes.program import AGREE, END, FREE, GATHER, REDUCE, SHARE, START, SUM, WAIT, BackwardAction, Bucket, Call, Unit, finished_at

PROCESSOR, LINK, BETWEEN = range(3)  # the lanes; the last one is the link between replicas
COMPUTE, ASKS, HAS = "compute", "asks", "has"  # what the processor does; only the first takes it time of its own
COSTS = {COMPUTE: 2, GATHER: 1, REDUCE: 1, SUM: 1, SHARE: 1}


@dataclass(frozen=True)
class ProgramTiming:
    """What came out.   timing: of the schedule.   stages: what each of its stages is: `COMPUTE`, `ASKS`, `HAS` or a kind of action.
    names: the unit, or the bucket, that each of its micro-batches is."""

    timing: Timing
    stages: Sequence[str]
    names: Sequence[Unit | Bucket]

    def spans(self, what: str) -> list[Computed]:
        """When this ran, in order. A backward is there in two halves."""
        return [span for span in self.timing.spans if self.stages[span.action.stage] == what and span.end > span.start]

    def name(self, span: Computed) -> Unit | Bucket:
        return self.names[span.action.micro_batch]

    @property
    def lanes(self) -> BackwardLanes:
        """The same as `recorded_lanes` has it, in units of time."""
        def boxes(*kinds: str) -> list[Interval]:
            spans = [Interval(float(span.start), float(span.end), str(self.name(span)), kind) for kind in kinds for span in self.spans(kind)]
            return sorted(spans)

        computes: list[Interval] = []
        for half in boxes(COMPUTE):
            if computes and (computes[-1].what, computes[-1].end) == (half.what, half.start):
                half = half._replace(start=computes.pop().start)
            computes.append(half)
        edges = [0.0, *(edge for each in computes for edge in (each.start, each.end)), float(self.takes)]
        waits = [Interval(start, end, "", WAITS) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]
        return BackwardLanes({COMPUTES: computes, WAITS: waits, GATHERS: boxes(GATHER), REDUCTIONS: boxes(REDUCE),
                              SUMS: boxes(SUM, SHARE)}, "units")

    @property
    def takes(self) -> Fraction:
        """Units of time, to the end of the last collective."""
        return self.timing.makespan

    @property
    def waited(self) -> Fraction:
        """Those in which the processor stood still."""
        return self.timing.idle(PROCESSOR)


def program_timing(program: Sequence[BackwardAction], calls: Sequence[Call], buckets: Mapping[Unit, Sequence[Bucket]],
                   last: Sequence[Unit] = (), costs: Mapping[str, Number] = COSTS) -> ProgramTiming:
    """Run the program of a backward on a clock.

    calls, buckets, last: as in `backward_program`. Units of `last` compute one half before all others, as a model's head does, and
        the other half after them, as its embeddings do.
    costs: units of time: of one call's backward (`COMPUTE`), and of a collective of each kind.
    Raises BadInput for a program with which a unit would wait for ever, because it is never gathered.
    """
    kinds = [action.kind for action in program]
    stages = [COMPUTE]
    if GATHER in kinds:
        stages = [ASKS, GATHER, HAS, *stages]
    stages += [ASKS, REDUCE, HAS] * (REDUCE in kinds) + [SUM, HAS] * (SUM in kinds) + [SHARE, HAS] * (SHARE in kinds)
    owner = [LINK if what in (GATHER, REDUCE) or what == SHARE and SUM not in kinds else BETWEEN if what in (SUM, SHARE) else PROCESSOR
             for what in stages]
    of_stage = [Fraction(costs.get(what, 0)) / (2 if what == COMPUTE else 1) for what in stages]
    names = list(dict.fromkeys([*last, *(call.unit for call in calls), *(each for unit in buckets for each in buckets[unit])]))
    lanes: list[list[Action]] = [[] for _ in range(max(owner) + 1)]
    arrived: set[Unit] = set()

    def do(stage: int, name: Unit | Bucket) -> None:
        """Write this stage of the unit into its lane's list."""
        lanes[owner[stage]].append(Action("F", stage, names.index(name)))

    for what, name in happenings(program, calls, buckets, last):
        if what == WAIT:
            do(len(stages) - 1, name)
        elif what != COMPUTE:
            do(stages.index(what) - 1, name)  # the processor waits for what was before, or has nothing to wait for
            do(stages.index(what), name)
        else:
            if GATHER in stages and name not in arrived:
                do(stages.index(GATHER) + 1, name)
                arrived.add(name)
            do(stages.index(COMPUTE), name)
    schedule = Schedule("a backward", [with_transfers(steps, owner) for steps in lanes], owner, len(names))
    return ProgramTiming(simulate(schedule, Costs(forward=of_stage)), stages, names)


def happenings(program: Sequence[BackwardAction], calls: Sequence[Call], buckets: Mapping[Unit, Sequence[Bucket]],
               last: Sequence[Unit]) -> Iterator[tuple[str, Unit | Bucket]]:
    """What the processor does, in order: the actions of the program that it takes time to wait for, and half backwards of units."""
    left, full = deque(program), set()

    def may_be_done(position: float) -> Iterator[tuple[str, Unit | Bucket]]:
        """The actions at the head of the list whose conditions hold."""
        while left and (position >= left[0].at or left[0].full in full):
            kind, unit, bucket, *_ = left.popleft()
            if kind not in (FREE, AGREE):
                yield kind, unit if bucket is None else bucket

    order, finished = [call.unit for call in reversed(calls)], finished_at(calls)
    yield from may_be_done(START)
    yield from ((COMPUTE, unit) for unit in last)
    for position, unit in enumerate(order):
        yield from may_be_done(position)
        yield COMPUTE, unit
        yield from may_be_done(position + 0.5)
        yield COMPUTE, unit
        full.update(bucket for each, at in finished.items() if at == position + 1 for bucket in buckets[each])
        yield from may_be_done(position + 0.5)
    yield from may_be_done(len(order))
    yield from ((COMPUTE, unit) for unit in last)
    full.update(bucket for unit in last for bucket in buckets[unit])
    yield from may_be_done(END)
