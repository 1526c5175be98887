"""The checks of 4.5 and 4.6, the two halves of a ring: who sent what to whom, what arrived, and what was returned."""

import torch
import torch.distributed as dist

from .....classics import ring
from ....checks import Trial, When, exercise
from ....checks.observers.wire import Wire


def in_ring(answer, n, gathers, _=""):
    """What the answer sends, makes of a row of n elements, and returns. gathers: is it the second half, 4.6?"""
    rank, world = dist.get_rank(), dist.get_world_size()
    row, right = torch.arange(n) + 100.0 * (rank + 1), (rank + 1) % world
    parts, places = row.tensor_split(world), torch.arange(n).tensor_split(world)
    if gathers:
        parts[rank].copy_(places[rank] + 0.5)
    needed = [len(parts[(rank - turn - (not gathers)) % world]) for turn in range(world - 1)]
    with Wire() as wire:
        returned = answer(row)
    sizes, peers = wire.sent("send"), [entry["peer"] for entry in wire.log if entry["verb"] == "send"]
    more = sum(sizes) > sum(needed)
    seen = {"strange": ", ".join(verb for verb in wire.verbs if verb not in ("send", "recv")), "silent": not sizes,
            "to": "right" if {right} >= set(peers) else "left" if set(peers) == {(rank - 1) % world} else "others",
            "whole": more and set(sizes) == {n}, "rounds": max(len(sizes), world - 1) if more else world - 1}
    words = {"_sent": sum(sizes), "_needed": sum(needed), "_sizes": sizes, "_parts": needed, "_right": right,
             "_peers": ", ".join(map(str, sorted(set(peers)))), "_cut": ", ".join(str(len(part)) for part in parts)}
    if list(seen.values()) != ["", False, "right", False, world - 1]:
        return seen | words  # what comes after has no meaning
    if gathers:
        seen |= {"own part": parts[rank], **{f"part {peer}": part for peer, part in enumerate(parts) if peer != rank}}
    else:
        total = [world * place + 50.0 * world * (world + 1) for place in places]
        has = [number for number in range(world) if torch.equal(parts[number], total[number])]
        seen |= {"sum of part": has[0] if has and rank not in has else rank, "part": parts[rank]}
    return {**seen, "elements": sum(sizes), "returned": returned, **words}


def pass_on(row, first, arrive, *, parts=torch.Tensor.tensor_split, step=lambda turn: 1, more=0, place=lambda turn: 1,
            leave=lambda held, begun, number: held[number], count=lambda sent, came, held: sent):
    """Pass parts on, first part number rank + first; what comes belongs `place(turn)` parts before the one that leaves.
    step: to whom, in ranks to the right.   more: rounds.   leave: what is sent, of the parts as they are and were.
    arrive(part, received) puts what comes into its place.   count: what is returned."""
    rank, ranks, sent, came = dist.get_rank(), dist.get_world_size(), 0, 0
    held = parts(row, ranks)
    begun = [part.clone() for part in held]
    for turn in range(ranks - 1 + more):
        far, number = step(turn), rank + first - turn
        leaving, received = leave(held, begun, number % ranks).clone(), torch.empty_like(held[(number - 1) % ranks])
        work = dist.isend(leaving, (rank + far) % ranks)
        dist.recv(received, (rank - far) % ranks)
        work.wait()
        arrive(held[(number - place(turn)) % ranks], received)
        sent, came = sent + len(leaving), came + len(received)
    return count(sent, came, held)


def forget(part, received):
    """What arrives is not used."""


def own_part(held, begun, number):
    return held[dist.get_rank()]


def own_twice(row):
    row.tensor_split(dist.get_world_size())[dist.get_rank()].mul_(2)
    return pass_on(row, -1, torch.Tensor.add_)


def counts(count):
    return {"count": count}


def is_to(whom):
    return When("to", lambda got, want: got == whom)


HOW = {"replaces": ("zerocourse.classics.ring:*",), "timeout": 15, "shared": pass_on}
CUT = (lambda row, ranks: (*row.chunk(ranks), *[row[:0]] * ranks)[:ranks],
       lambda row, ranks: row[:len(row) // ranks * ranks].tensor_split(ranks),
       lambda row, ranks: row.tensor_split([len(row) // ranks * r for r in range(1, ranks)]),
       lambda row, ranks: row.tensor_split([len(row) * r // ranks for r in range(1, ranks)]))
SENDING = {
    "a collective": (dist.all_reduce, When("strange")),
    "silent": (lambda row: 0, When("silent")),
    "to the left": ({"step": lambda turn: -1}, is_to("left")),
    "straight": ({"step": lambda turn: turn + 1}, is_to("others")),
    "whole rows": ({"parts": lambda row, ranks: [row] * ranks}, ring.star_all_reduce, When("whole")),
    "another round": ({"more": 1}, When("rounds")),
}
RETURNING = {
    "chunk": {"parts": torch.Tensor.chunk},
    "cut": tuple({"parts": parts} for parts in CUT),
    "arrived too": counts(lambda sent, came, held: sent + came),
    "whole row": counts(lambda sent, came, held: sum(map(len, held))),
    "both halves": counts(lambda sent, came, held: 2 * sum(map(len, held)) * (len(held) - 1) // len(held)),
    "bytes": counts(lambda sent, came, held: 4 * sent),
    "rounds": counts(lambda sent, came, held: len(held) - 1),
    "one part": (counts(lambda sent, came, held: len(held[dist.get_rank()])),
                 counts(lambda sent, came, held: sum(map(len, held)) // len(held))),
    "as if even": counts(lambda sent, came, held: (len(held) - 1) * sum(map(len, held)) / len(held)),
    "as if even, rounded": (counts(lambda sent, came, held: (len(held) - 1) * (sum(map(len, held)) // len(held))),
                            counts(lambda sent, came, held: (len(held) - 1) * sum(map(len, held)) // len(held))),
    "own part's length": counts(lambda sent, came, held: (len(held) - 1) * len(held[dist.get_rank()])),
}


def trials(gathers):
    """A row that divides evenly first."""
    return [Trial([(12, gathers, "")], in_ring, worlds=(2, 3)),
            Trial([(7, gathers, ", cut as in 4.1"), (2, gathers, ", cut as in 4.1")], in_ring, worlds=(2, 3))]


@exercise(
    "4.5", "Half a ring: reduce-scatter", minutes=30, difficulty=2,
    own=ring.ring_reduce_scatter, trials=trials(False), **HOW,
    mistakes={
        **SENDING,
        "ends with part r + 1": {"first": 0},
        "ends with part r - 1": {"first": -2},
        "replaced": {"arrive": torch.Tensor.copy_},
        "own numbers alone": {"arrive": forget},
        "same part": {"leave": lambda held, begun, number: held[dist.get_rank() - 1], "place": lambda turn: 1 - turn},
        "own numbers passed on": {"leave": lambda held, begun, number: begun[number]},
        "added twice": own_twice,
        "average": {"arrive": lambda part, received: part.add_(received).div_(dist.get_world_size())},
        **RETURNING,
        "arrived": counts(lambda sent, came, held: came),
    })
def ring_reduce_scatter(row, *, first=-1, arrive=torch.Tensor.add_, **knobs):
    """Part r is summed on rank r."""
    return pass_on(row, first, arrive, **knobs)


@exercise(
    "4.6", "The other half: all-gather", minutes=20, difficulty=2,
    own=ring.ring_all_gather, trials=trials(True), **HOW,
    mistakes={
        **SENDING,
        "other half again": {"first": -1, "arrive": torch.Tensor.add_},
        "wrong start": ({"first": -1}, {"first": 1}),
        "wrong place": ({"place": lambda turn: 0}, {"place": lambda turn: 2}),
        "not written": {"arrive": forget},
        "own each time": ({"leave": own_part}, {"leave": own_part, "place": lambda turn: 1 - turn}),
        "added": {"arrive": torch.Tensor.add_},
        **RETURNING,
        "less its own": counts(lambda sent, came, held: came),
    })
def ring_all_gather(row, *, first=0, arrive=torch.Tensor.copy_, **knobs):
    """Every rank has every part."""
    return pass_on(row, first, arrive, **knobs)
