"""Proves from the lists alone that a schedule cannot deadlock, or names the ranks that would wait for each other.

Whichever rank moves first, the others can do no less afterwards than before. So one run of the lists without any
computation, each rank moving while it can, decides it: either all lists end, or the ranks that stand still wait in a
ring, or for one whose list has ended.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ....errors import BadInput
from ..links import communicators, links, standstill
from .actions import Action, Schedule

SENDS = ("buffered", "bounded", "paired", "blocking", "one communicator", "nccl")


def deadlock(plan: Schedule, sends: str = "buffered") -> str | None:
    """None where every list ends; else a sentence that names the ring of waits.

    sends: "buffered": a send never waits.   "bounded": a send waits until the one before it, of its kind and to the
    same rank, is received, so that one at most is under way (as `Pipeline` does it).   "blocking": a send waits until
    the other rank has come to its receive, and a rank does one transfer after the other.   "paired": the same, but
    transfers that stand next to each other in a list are started together, as by `torch.distributed.batch_isend_irecv`.
    "one communicator": NCCL carries out a rank's transfers in the order of its list, beside its computation.   "nccl": the
    same with the communicators of `links`, as `Pipeline` does it on NCCL.
    Raises BadInput for another kind of sends, and for a transfer that has no other end.
    """
    if sends not in SENDS:
        raise BadInput(f"sends is {sends!r}: it must be one of {', '.join(SENDS)}")
    if sends in ("one communicator", "nccl"):
        return standstill(plan, communicators(plan) if sends == "nccl" else dict.fromkeys(links(plan), 0))
    waits = ring_of_waits(plan, sends)
    if not waits:
        return None
    said = "; ".join(f"rank {each.rank} stands in {each.action} until rank {each.peer} does {each.awaited}" for each in waits)
    if waits[-1].peer == waits[0].rank:
        return f"a ring of waits, with {sends} sends: {said}"
    return f"{said}, but rank {waits[-1].peer}'s list has ended without it"


class Blocked(NamedTuple):
    """A rank stands in an action until another one does what it awaits."""

    rank: int
    action: Action
    peer: int
    awaited: Action


def ring_of_waits(plan: Schedule, sends: str) -> list[Blocked]:
    """From each rank that stands still to the one that it waits for, until the first comes again, or one whose list has
    ended; nothing where every list ends. sends: as for `deadlock`, but not those of NCCL."""
    groups = [grouped(actions, together=sends == "paired") for actions in plan.actions]
    before = {action: earlier for actions in plan.actions for action, earlier in sends_before(plan, actions)}
    at = [0] * plan.ranks

    def awaited(action: Action) -> Action | None:
        """What must have begun on the other rank before this action can end; None: nothing."""
        if not action.is_transfer or (sends == "buffered" and action.kind.startswith("SEND")):
            return None
        if sends == "bounded" and action.kind.startswith("SEND"):
            return before[action].partner if action in before else None
        return action.partner

    def waiting(rank: int) -> list[Action]:
        """The transfers of the group at which a rank stands that cannot end yet."""
        return [action for action in now(groups, at, rank)
                if (needed := awaited(action)) is not None and needed not in begun]

    def begin(rank: int) -> None:
        """What the rank has come to is under way; but a bounded send is so only when the one before it is received."""
        held = waiting(rank) if sends == "bounded" else ()
        begun.update(action for action in now(groups, at, rank) if not (action in held and action.kind.startswith("SEND")))

    begun: set[Action] = set()
    for rank in range(plan.ranks):
        begin(rank)
    moved = True
    while moved:
        moved = False
        for rank in range(plan.ranks):
            while at[rank] < len(groups[rank]) and not waiting(rank):
                begun.update(now(groups, at, rank))
                at[rank] += 1
                begin(rank)
                moved = True
    stuck = [rank for rank in range(plan.ranks) if at[rank] < len(groups[rank])]
    rank, waits = (stuck or [0])[0], []
    while rank in stuck and rank not in [wait.rank for wait in waits]:
        action = waiting(rank)[0]
        waits.append(Blocked(rank, action, plan.peer(action), awaited(action)))
        rank = waits[-1].peer
    return waits[next((place for place, wait in enumerate(waits) if wait.rank == rank), 0):]


def grouped(actions: list[Action], together: bool) -> list[list[Action]]:
    """The list as groups that begin at once: neighbouring transfers if `together`, else each action by itself."""
    groups: list[list[Action]] = []
    for action in actions:
        if together and groups and action.is_transfer and groups[-1][-1].is_transfer:
            groups[-1].append(action)
        else:
            groups.append([action])
    return groups


def now(groups: list[list[list[Action]]], at: list[int], rank: int) -> list[Action]:
    """The group at which a rank stands; nothing at the end of its list."""
    return groups[rank][at[rank]] if at[rank] < len(groups[rank]) else []


def sends_before(plan: Schedule, actions: list[Action]) -> Iterator[tuple[Action, Action]]:
    """Each send of a rank, with the one before it of the same kind and to the same rank."""
    last: dict[tuple[str, int], Action] = {}
    for action in actions:
        if action.kind.startswith("SEND"):
            link = action.kind, plan.peer(action)
            if link in last:
                yield action, last[link]
            last[link] = action
