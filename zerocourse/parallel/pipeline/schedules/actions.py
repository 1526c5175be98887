"""The actions of a pipeline. A schedule is a list of them for each rank; everything else here reads such lists.

The model is cut into stages, numbered from 0 at the input, and a batch into micro-batches, numbered from 0.

    F     forward of a micro-batch through a stage
    B     its whole backward, or, in two parts:  I  the gradient of the stage's input,  W  the gradients of its weights
    STEP  update the stage's weights (in schedules that do not wait for the end of the batch)
    SEND, RECV   of what a stage's F made (the activation, which goes to the next stage), or of what its B or I made
                 (the gradient of its input, which goes to the stage before)

Names of this kind are used by torch.distributed.pipelining too. Split backward: Qi et al. 2024, arXiv 2401.10241.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import signature
from itertools import pairwise
from typing import NamedTuple

from ....errors import BadInput

COMPUTES = ("F", "B", "I", "W", "STEP")
TRANSFERS = ("SEND F", "RECV F", "SEND B", "RECV B")


class Action(NamedTuple):
    """One thing that a rank does.

    kind: one of COMPUTES or TRANSFERS.   stage: the stage that computes, or that sends or receives: RECV F is the
    stage's input arriving from the stage before, RECV B the gradient of its output, from the stage after.
    micro_batch: for STEP the last one that the update contains.
    """

    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{' ' if self.kind == 'STEP' else ''}{self.micro_batch} of stage {self.stage}"

    @property
    def is_transfer(self) -> bool:
        return self.kind in TRANSFERS

    @property
    def other_stage(self) -> int:
        """Of a transfer: the stage at its other end."""
        return self.stage + (1 if self.kind in ("SEND F", "RECV B") else -1)

    @property
    def partner(self) -> "Action":
        """Of a transfer: the action at its other end."""
        verb, what = self.kind.split()
        return Action(f"{'RECV' if verb == 'SEND' else 'SEND'} {what}", self.other_stage, self.micro_batch)


Actions = list[Action]
Compute = Callable[..., Actions]  # (ranks, micro_batches, rank) -> the computing actions of a rank, in order


class Schedule(NamedTuple):
    """A schedule for all ranks: what each does, and which stages it has.

    actions[rank]: its actions in order, transfers included.   owner[stage]: the rank that has the stage.
    """

    name: str
    actions: list[Actions]
    owner: list[int]
    micro_batches: int

    @property
    def ranks(self) -> int:
        return len(self.actions)

    @property
    def stages(self) -> int:
        return len(self.owner)

    def stages_of(self, rank: int) -> list[int]:
        return [stage for stage, owner in enumerate(self.owner) if owner == rank]

    def peer(self, transfer: Action) -> int:
        """The rank at a transfer's other end. Raises BadInput where there is none."""
        if not 0 <= transfer.other_stage < self.stages:
            raise BadInput(f"{transfer} has no other end: there are {self.stages} stages, numbered from 0")
        return self.owner[transfer.other_stage]


def with_transfers(computes: Iterable[Action], owner: Sequence[int]) -> Actions:
    """A rank's computing actions with a RECV before each that needs something of another rank, and a SEND behind each
    that makes something for one. Neighbouring stages on one rank hand over without either."""
    stages, actions = len(owner), []

    def crosses(one: int, other: int) -> bool:
        return 0 <= other < stages and owner[one] != owner[other]

    for action in computes:
        kind, stage, micro_batch = action
        before, after = crosses(stage, stage - 1), crosses(stage, stage + 1)
        if kind == "F":
            actions += [Action("RECV F", stage, micro_batch)] * before
            actions.append(action)
            actions += [Action("SEND F", stage, micro_batch)] * after
        elif kind in ("B", "I"):
            actions += [Action("RECV B", stage, micro_batch)] * after
            actions.append(action)
            actions += [Action("SEND B", stage, micro_batch)] * before
        else:
            actions.append(action)
    return actions


def plan(name: str, compute: Compute, ranks: int, micro_batches: int, chunks: int = 1, **options) -> Schedule:
    """A schedule for all ranks, with its transfers.

    chunks: stages per rank, laid round and round, so that stage s is on rank s % ranks.
    compute(ranks, micro_batches, rank, [chunks]): such as `one_f_one_b`. Raises BadInput for numbers below one, and for several
    chunks of a schedule that has one stage per rank.
    """
    for what, number in (("ranks", ranks), ("micro_batches", micro_batches), ("chunks", chunks)):
        if not isinstance(number, int) or number < 1:
            raise BadInput(f"{what} is {number!r}: a pipeline needs a whole number of them, at least 1")
    if chunks > 1 and "chunks" not in signature(compute).parameters:
        raise BadInput(f"{name} has one stage per rank, and chunks is {chunks}: leave it at 1, or use interleaved")
    owner = [stage % ranks for stage in range(ranks * chunks)]
    extra = options | ({"chunks": chunks} if chunks > 1 else {})
    lists = [with_transfers(compute(ranks, micro_batches, rank, **extra), owner) for rank in range(ranks)]
    return Schedule(name, lists, owner, micro_batches)


def problems(plan: Schedule) -> Iterator[str]:
    """What is wrong with the order of a schedule, a sentence each; nothing where each micro-batch passes once through
    each stage, forward before backward, I before W, and each transfer stands where its tensor is there, or still is
    needed."""
    for rank, actions in enumerate(plan.actions):
        place = {action: at for at, action in enumerate(actions)}
        if len(place) < len(actions):
            twice = next(action for at, action in enumerate(actions) if place[action] != at)
            yield f"rank {rank} does {twice} twice"
        for action in actions:
            if action.kind not in COMPUTES + TRANSFERS:
                yield f"rank {rank} has {action}, and {action.kind!r} is none of {', '.join(COMPUTES + TRANSFERS)}"
            elif not 0 <= action.stage < plan.stages or plan.owner[action.stage] != rank:
                yield f"rank {rank} has {action}, and does not have stage {action.stage}"
            elif not 0 <= action.micro_batch < plan.micro_batches:
                yield f"rank {rank} has {action}, and there are {plan.micro_batches} micro-batches, numbered from 0"
            elif action.is_transfer and not (0 <= action.other_stage < plan.stages and plan.owner[action.other_stage] != rank):
                yield f"rank {rank} has {action}, and there is no other rank at its other end"
        for stage in plan.stages_of(rank):
            for micro_batch in range(plan.micro_batches):
                yield from problems_of(plan, place, rank, stage, micro_batch)


def problems_of(plan: Schedule, place: dict[Action, int], rank: int, stage: int, micro_batch: int) -> Iterator[str]:
    """The same for one micro-batch in one stage. place: where each of the rank's actions stands in its list."""
    def at(kind: str) -> int | None:
        return place.get(Action(kind, stage, micro_batch))

    backwards = [kind for kind in "BIW" if at(kind) is not None]
    name = f"micro-batch {micro_batch} in stage {stage} on rank {rank}"
    if at("F") is None:
        yield f"{name} has no F"
        return
    if backwards not in (["B"], ["I", "W"]):
        yield f"{name} must have either one B, or an I and a W"
        return
    backward = backwards[0]
    order = [("F", backward), *pairwise(backwards), *[(backwards[-1], "STEP")] * (at("STEP") is not None)]
    if stage and plan.owner[stage - 1] != rank:
        order += [("RECV F", "F"), (backward, "SEND B")]
    if stage + 1 < plan.stages and plan.owner[stage + 1] != rank:
        order += [("F", "SEND F"), ("RECV B", backward)]
    if stage and plan.owner[stage - 1] == rank:  # hands over without a transfer
        for kind in "FBI":
            other = place.get(Action(kind, stage - 1, micro_batch))
            if kind == "F" and other is not None and other > at("F"):
                yield f"{name}: F stands before F of stage {stage - 1}, which makes its input"
            if kind != "F" and other is not None and other < at(backward):
                yield f"{name}: {backward} stands behind {kind} of stage {stage - 1}, which needs its gradient"
    for first, then in order:
        if at(first) is None or at(then) is None:
            yield f"{name} has no {first if at(first) is None else then}"
        elif at(first) > at(then):
            yield f"{name}: {then} stands before {first}"
