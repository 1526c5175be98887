"""How long a schedule takes, where it stands still, and how much it holds: exact fractions, from the lists alone.

A rank does its actions one after the other. A send takes the rank no time: its tensor arrives `transfer` later, one
after the other on each link between two ranks and in each direction. A receive waits until the tensor has arrived.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from ....errors import BadInput
from .actions import Action, Schedule
from .deadlock import deadlock

Number = int | Fraction
OF_KIND = {"F": "forward", "B": "backward", "I": "input", "W": "weight", "STEP": "step"}


@dataclass(frozen=True)
class Costs:
    """Time units that each action of a stage takes: one number, or one for each stage. Raises BadInput for a float,
    which would not be exact.

    forward (F); backward (B), of which input (I) and weight (W) are the parts; step (STEP); transfer: of a SEND, until
    the tensor has arrived. With recomputation a backward takes a forward more.
    """

    forward: Number | Sequence[Number] = 1
    backward: Number | Sequence[Number] = 2
    input: Number | Sequence[Number] = 1
    weight: Number | Sequence[Number] = 1
    step: Number | Sequence[Number] = 0
    transfer: Number | Sequence[Number] = 0

    def of(self, name: str, stage: int) -> Fraction:
        cost = getattr(self, name)
        cost = cost[stage] if isinstance(cost, Sequence) else cost
        if not isinstance(cost, int | Fraction) or cost < 0:
            raise BadInput(f"{name} costs {cost!r}: give a whole number or a Fraction that is not negative")
        return Fraction(cost)


@dataclass(frozen=True)
class Computed:
    """An action, where and when it ran, in time units."""

    rank: int
    action: Action
    start: Fraction
    end: Fraction


@dataclass
class Timing:
    """What came out. spans: the computing actions of all ranks, in the order in which each rank did them."""

    plan: Schedule
    spans: list[Computed] = field(default_factory=list)

    @cached_property
    def makespan(self) -> Fraction:
        """From the first action's begin to the last one's end."""
        return max((span.end for span in self.spans), default=Fraction(0))

    def of_rank(self, rank: int) -> list[Computed]:
        return [span for span in self.spans if span.rank == rank]

    def busy(self, rank: int) -> Fraction:
        """Time in which the rank computes."""
        return sum((span.end - span.start for span in self.of_rank(rank)), Fraction(0))

    def idle(self, rank: int) -> Fraction:
        """The rank's bubble: time in which it does not compute, from the first begin to the last end of *any* rank."""
        return self.makespan - self.busy(rank)

    def idle_inside(self, rank: int) -> Fraction:
        """The same from the rank's own first begin to its own last end, which is what "zero bubble" counts."""
        spans = self.of_rank(rank)
        return spans[-1].end - spans[0].start - self.busy(rank)

    @property
    def bubble(self) -> Fraction:
        """The part of all ranks' time in which they stand still: (p - 1)/(m + p - 1) for GPipe and 1F1B."""
        whole = self.makespan * self.plan.ranks
        return sum((self.idle(rank) for rank in range(self.plan.ranks)), Fraction(0)) / whole if whole else Fraction(0)

    def in_flight(self, rank: int) -> int:
        """The most micro-batches of which a rank holds activations at once, counted per stage: from the begin of F to
        the end of B, or of W where the backward comes in two parts."""
        return in_flight(self.plan.actions[rank])

    def activation_bytes(self, rank: int, of_stage: Sequence[int]) -> int:
        """The most bytes of activations that a rank holds at once, if a micro-batch has of_stage[s] bytes in stage
        s."""
        return in_flight(self.plan.actions[rank], of_stage)


def in_flight(actions: Sequence[Action], of_stage: Sequence[int] | None = None) -> int:
    """The highest sum over a rank's list of what is held; each micro-batch counts one in each stage, or of_stage[s]."""
    held = most = 0
    for action in actions:
        each = 1 if of_stage is None else of_stage[action.stage]
        if action.kind == "F":
            held += each
            most = max(most, held)
        elif action.kind in ("B", "W"):
            held -= each
    return most


def simulate(plan: Schedule, costs: Costs = Costs()) -> Timing:
    """Run the lists on a clock. Raises BadInput with the ring of waits where a schedule deadlocks."""
    if (ring := deadlock(plan)) is not None:
        raise BadInput(f"{plan.name} deadlocks: {ring}")
    clock = [Fraction(0)] * plan.ranks
    at = [0] * plan.ranks
    arrival: dict[Action, Fraction] = {}  # of each RECV
    link_free: dict[tuple[int, int], Fraction] = {}
    timing = Timing(plan)
    while any(at[rank] < len(plan.actions[rank]) for rank in range(plan.ranks)):
        for rank, actions in enumerate(plan.actions):
            while at[rank] < len(actions):
                action = actions[at[rank]]
                if action.kind.startswith("RECV"):
                    if action not in arrival:
                        break
                    clock[rank] = max(clock[rank], arrival[action])
                elif action.is_transfer:
                    link = rank, plan.peer(action)
                    begin = max(clock[rank], link_free.get(link, Fraction(0)))
                    arrival[action.partner] = link_free[link] = begin + costs.of("transfer", action.stage)
                else:
                    begin = clock[rank]
                    clock[rank] += costs.of(OF_KIND[action.kind], action.stage)
                    timing.spans.append(Computed(rank, action, begin, clock[rank]))
                at[rank] += 1
    return timing
