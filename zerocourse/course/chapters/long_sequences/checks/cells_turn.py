"""The check of 19.w2, which chapter 19 asks for itself: from some tokens of all heads to all tokens of some heads."""

import torch

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.observers.stage_runs import WatchedComm
from ....checks.words import a


def to_heads(x, comm):
    """This rank's tokens of all heads become all tokens of this rank's heads.

    x: (t, H, D). Rank r has the tokens from r·t on; afterwards it has the heads from
        r·H/P on, for P = `comm.world_size` ranks.
    comm: `comm.all_to_all(rows, received, "a name").wait()` sends row i of `rows`
        to rank i, and row i of `received` comes from rank i. Both are (P, ...), contiguous.
    Returns (P·t, H/P, D), the tokens in their order.
    """
    rows = x.unflatten(1, (comm.world_size, -1)).movedim(1, 0).contiguous()
    received = torch.empty_like(rows)
    comm.all_to_all(rows, received, "tokens to heads").wait()
    return received.flatten(0, 1)


def turned(answer, own, heads):
    """A tensor that tells of each entry where it came from, turned on real ranks."""
    comm = WatchedComm()
    whole = torch.arange(comm.world_size * own * heads * 2.0).view(-1, heads, 2)
    mine, cut = whole[own * comm.rank : own * (comm.rank + 1)].clone(), heads // comm.world_size
    returned = answer(mine, comm)
    if not torch.is_tensor(returned):
        raise Wrong(f"it returned {a(returned)}: return a tensor", MISUSED)
    wanted = whole[:, cut * comm.rank : cut * (comm.rank + 1)]
    return {"shape": tuple(returned.shape), "entries": returned if returned.shape == wanted.shape else None,
            "sent": sum(comm.elements.values())}


def blocks_of_heads(x, ranks):
    return x.unflatten(1, (ranks, -1)).movedim(1, 0).contiguous()


def exchanged(rows, comm):
    received = torch.empty_like(rows)
    comm.all_to_all(rows, received, "rows").wait()
    return received


def gathered(rows, comm):
    """Everything goes to everybody."""
    everything = [exchanged(row.expand(comm.world_size, *row.shape).contiguous(), comm) for row in rows]
    return everything[comm.rank]


@exercise(
    "19.w2", "Turn the table", minutes=12, difficulty=2, timeout=15, answer="to_heads", own=to_heads,
    replaces=("zerocourse.parallel.context.ulysses:*",),
    trials=[Trial([(3, 6), (2, 12)], turned, worlds=(2, 3))],
    mistakes={
        "every Nth head": {"rows": lambda x, ranks: x.unflatten(1, (-1, ranks)).movedim(2, 0).contiguous()},
        "tokens mixed": {"put": lambda received: received.movedim(0, 1).flatten(0, 1)},
        "not exchanged": {"send": lambda rows, comm: rows},
        "back to front": {"rows": lambda x, ranks: blocks_of_heads(x, ranks).flip(0)},
        "everything": {"send": gathered},
    })
def turn(x, comm, *, rows=blocks_of_heads, send=exchanged, put=lambda received: received.flatten(0, 1)):
    """The heads of each rank in a row, and what has come in the order of the ranks."""
    return put(send(rows(x, comm.world_size), comm))
