"""Which transfers share a communicator on NCCL, and a proof that the plan then runs to its end.

NCCL carries out what a rank gives to a communicator one after the other, on a stream of its own, and a send ends only with
its receive. (A send of less than about a megabyte may end early, so that what stands still with a real model runs with a
small one.) With one communicator 1F1B stands still: a rank that sends an activation and the next rank, which sends a gradient,
each stand at their send, and have the receive behind it.

So each *link*, from a rank to another for activations ("F") or for gradients ("B"), has a communicator that neither of its two
ranks uses for another link. Links that have no rank in common share one. What a link carries is received in the order in which it
is sent, so nothing can stand in its way there.
Source: NVIDIA's documentation of NCCL, "Point-to-point communication"; `batch_isend_irecv` in torch's.
"""

from collections.abc import Mapping

from .schedules.actions import Action, Schedule

Link = tuple[str, int, int]  # "F" or "B", the rank that sends, the rank that receives


def link_of(plan: Schedule, transfer: Action) -> Link:
    """Raises BadInput where the transfer has no other end."""
    verb, what = transfer.kind.split()
    own, peer = plan.owner[transfer.stage], plan.peer(transfer)
    return (what, own, peer) if verb == "SEND" else (what, peer, own)


def links(plan: Schedule) -> list[Link]:
    """All links of a plan, in one order on every rank."""
    return sorted({link_of(plan, action) for actions in plan.actions for action in actions if action.is_transfer})


def communicators(plan: Schedule) -> dict[Link, int]:
    """The number of each link's communicator, from 0: the first one that neither of its ranks uses for another link."""
    number: dict[Link, int] = {}
    for link in links(plan):
        taken = {number[other] for other in number if {*other[1:]} & {*link[1:]}}
        number[link] = next(each for each in range(len(taken) + 1) if each not in taken)
    return number


def standstill(plan: Schedule, number: Mapping[Link, int]) -> str | None:
    """None where every transfer ends on NCCL; else a sentence that names the ring of waits. number: of each link's communicator.

    A rank gives its transfers to their communicators in the order of its list. One begins when those before it in the same
    communicator have ended, and when what the rank computed until then has. It ends when the transfer at its other end has
    begun, too. Computation waits for every receive, and before a send for the one before on that link, as `StageMessages` does.
    """
    issued: list[dict[int, list[Action]]] = []  # of each rank and communicator, in order
    waits: list[list[Action]] = []  # what the computation of each rank waits for, in order
    after: dict[Action, int] = {}  # how many of these are over before a transfer begins
    rank_of: dict[Action, int] = {}
    for rank, actions in enumerate(plan.actions):
        issued.append({})
        waits.append([])
        last: dict[Link, Action] = {}  # the send before
        for action in filter(lambda action: action.is_transfer, actions):
            link, sends = link_of(plan, action), action.kind.startswith("SEND")
            if sends and link in last:
                waits[rank].append(last[link])
            last[link], rank_of[action], after[action] = action, rank, len(waits[rank])
            issued[rank].setdefault(number[link], []).append(action)
            if not sends:
                waits[rank].append(action)
    place, over, ended = [dict.fromkeys(each, 0) for each in issued], [0] * plan.ranks, set()

    def first(rank: int, communicator: int) -> Action | None:
        """What is to end there next."""
        queue, at = issued[rank][communicator], place[rank][communicator]
        return queue[at] if at < len(queue) else None

    moved, begun = True, {}
    while moved:
        for rank in range(plan.ranks):
            while over[rank] < len(waits[rank]) and waits[rank][over[rank]] in ended:
                over[rank] += 1
        heads = {first(rank, communicator): (rank, communicator) for rank in range(plan.ranks) for communicator in issued[rank]}
        begun = {action: at for action, at in heads.items() if action is not None and after[action] <= over[at[0]]}
        met = [action for action in begun if action.partner in begun]
        for action in met:
            rank, communicator = begun[action]
            place[rank][communicator] += 1
        ended.update(met)
        moved = bool(met)
    if not begun:
        return None

    def stands(action: Action) -> str:
        return f"rank {rank_of[action]} stands in {action} until rank {plan.peer(action)} does {action.partner}"

    path, action = [], next(iter(begun))  # from each transfer to what it waits for, until one comes a second time
    while action not in path:
        path.append(action)
        if action in begun:
            if action.partner not in rank_of:
                return f"{stands(action)}, but rank {plan.peer(action)}'s list has ended without it"
            action = action.partner
        else:
            rank = rank_of[action]
            ahead = first(rank, number[link_of(plan, action)])
            action = ahead if ahead != action else waits[rank][over[rank]]
    return f"a ring of waits on NCCL: {'; '.join(stands(each) for each in path[path.index(action):] if each in begun)}"
