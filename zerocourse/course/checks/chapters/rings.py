"""Exercises 4.5 and 4.6 on their ranks: what travelled round the ring, and what arrived."""

import torch
import torch.distributed as dist

from ..lab import Lab
from ..verdict import Wrong
from ..words import value_text
from .wire import Wire

LENGTHS = (12, 7, 2)


def bounds(sizes):
    """(start, stop) of parts of these sizes, one behind the other."""
    ends = [sum(sizes[:i + 1]) for i in range(len(sizes))]
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def even_sizes(n, ranks):
    return [n // ranks + (r < n % ranks) for r in range(ranks)]


def in_ring(answer, n: int, gathers: bool):
    """The row of n elements after the answer, what it returned, and what was sent."""
    row = first_row(dist.get_rank(), dist.get_world_size(), n, gathers)
    with Wire(timeout=5) as wire:
        returned = answer(row)
    calls = [entry for entry in wire.log if entry["verb"] in ("send", "recv")]
    return {"row": row, "returned": returned, "calls": calls, "verbs": wire.verbs}


def judge_all(lab: Lab, gathers: bool, judge_row) -> None:
    """Every length, an easy one first, on two and on three ranks."""
    for n in LENGTHS:
        for world in (2, 3):
            for rank, found in enumerate(lab.run(in_ring, n, gathers, world=world)):
                judge_ring(lab, world, rank, n, found, gathers, judge_row)


def first_row(rank: int, world_size: int, n: int, gathers: bool) -> torch.Tensor:
    """What a rank begins with: its own numbers, or only its own part right and the rest of no meaning."""
    row = torch.arange(n, dtype=torch.float32) + 100 * (rank + 1)
    if gathers:
        right = torch.arange(n, dtype=torch.float32) + 0.5
        part = part_of(n, world_size, rank)
        row[part] = right[part]
    return row


def part_of(n: int, world_size: int, rank: int) -> slice:
    return slice(*bounds(even_sizes(n, world_size))[rank % world_size])


def judge_ring(lab: Lab, world: int, rank: int, n: int, found, gathers: bool, judge_row):
    """What both halves of the ring have in common: how it was sent, what came out, what was returned."""
    case = f"a row of {n} elements, rank {rank} of {world}"
    right, rounds = (rank + 1) % world, world - 1
    strange = [verb for verb in found["verbs"] if verb not in ("send", "recv")]
    if strange:
        lab.wrong(f"{case}: it called {strange[0]}. Use nothing but send and receive: that is what the collective "
                  "is made of.")
    sends = [call for call in found["calls"] if call["verb"] == "send"]
    receives = [call for call in found["calls"] if call["verb"] == "recv"]
    turn = -1 if gathers else -2  # round t sends part rank - t of the gather, rank - 1 - t of the reduce-scatter
    parts = [part_of(n, world, rank + turn + 1 - t) for t in range(rounds)]
    needed = sum(part.stop - part.start for part in parts)
    sent = sum(call["elements"] for call in sends)
    peers = {call["peer"] for call in sends}
    if peers and peers == {(rank - 1) % world} - {right}:
        lab.wrong(f"{case}: it sent to rank {peers.pop()}, its left neighbour: the right one is {right}.")
    if not peers <= {right}:
        lab.wrong(f"{case}: it sent to rank {', '.join(str(call['peer']) for call in sends)}. In a ring a rank "
                  f"sends to its right neighbour only, here to rank {right}.")
    if sent > needed and sends and all(call["elements"] == n for call in sends):
        lab.wrong(f"{case}: it sent the whole row in each round, {sent} elements together where {needed} are "
                  "enough: send one part a round.")
    if len(sends) > rounds and sent > needed:
        lab.wrong(f"{case}: it made {len(sends)} rounds where {rounds} are enough, and sent {sent} elements where "
                  f"{needed} are needed.")
    cut = ("A row that divides evenly came out right: cut this one as in 4.1, with parts of "
           f"{', '.join(map(str, even_sizes(n, world)))} elements.")
    try:
        judge_row(lab, world, rank, n, found, case)
    except Wrong as wrong:
        if n % world == 0:
            raise
        lab.wrong(f"{wrong} {cut}")
    if sent != needed and n % world and len(sends) <= rounds:
        sizes = [", ".join(map(str, each)) for each in ([call["elements"] for call in sends],
                                                       [part.stop - part.start for part in parts])]
        lab.wrong(f"{case}: this rank's part is right, but it sent {sizes[0] or 'no'} elements, and {sizes[1]} are "
                  f"right. {cut}")
    if sent != needed:
        lab.wrong(f"{case}: the row is right, but {sent} elements were sent where {needed} are right: a rank "
                  f"sends N - 1 = {rounds} parts, one a round.")
    lab.expect(found["returned"], needed, f"{case}, what was sent", [
        ("You returned what arrived as well: only what this rank sent counts.",
         sent + sum(call["elements"] for call in receives)),
        ("You returned bytes: elements are wanted.", 4 * sent),
        ("You returned the number of rounds: elements are wanted.", rounds),
        ("You returned (N - 1) n / N, which is right only when all parts are equally long.", rounds * n / world),
        ("You returned (N - 1) times n // N, which is right only when all parts are equally long.",
         rounds * (n // world)),
    ], verb="it returned")


def judge_scattered(lab: Lab, world: int, rank: int, n: int, found, case: str):
    rows = [first_row(peer, world, n, False) for peer in range(world)]
    total, part = sum(rows), part_of(n, world, rank)
    if not found["calls"] and part.stop > part.start:
        lab.wrong(f"{case}: nothing was sent, and nothing arrived.")
    for shift, name in ((1, "rank + 1"), (-1, "rank - 1")):
        other = part_of(n, world, rank + shift)
        if torch.equal(found["row"][other], total[other]) and not torch.equal(found["row"][part], total[part]):
            lab.wrong(f"{case}: it has the sum of part {(rank + shift) % world}, and it should have that of part "
                      f"{rank}. The ring turns rightly, but it began one part too far: rank r ends with part {name}.")
    arrived = rows[(rank - 1) % world][part]
    want = total[part]
    lab.expect(found["row"][part], want, f"{case}, its own part [{part.start}:{part.stop}]", [
        ("What came from the left replaced what was there: add it.", rows[(rank + 1) % world][part]),
        ("What came from the left replaced what was there: add it.", arrived),
        ("What this rank had itself was added twice: there is a round too many.", want + rows[rank][part]),
        ("Nothing was added to it: these are this rank's own numbers.", rows[rank][part]),
        ("You divided by the number of ranks: a reduce-scatter adds up, and whoever wants the average divides.",
         want / world),
        ("A rank passed on its own numbers without those that came before: send in each round the part to which you "
         "added in the round before.", rows[rank][part] + arrived),
    ])


def judge_gathered(lab: Lab, world: int, rank: int, n: int, found, case: str):
    right, begun = torch.arange(n, dtype=torch.float32) + 0.5, first_row(rank, world, n, True)
    row = found["row"]
    if not found["calls"]:
        lab.wrong(f"{case}: nothing was sent, and nothing arrived.")
    own = part_of(n, world, rank)
    if not torch.equal(row[own], right[own]):
        lab.wrong(f"{case}: its own part, [{own.start}:{own.stop}], was right and is not any more. You began with the "
                  "wrong part: first a rank sends its own, and what arrives is the part of the rank on its left.")
    for peer in range(world):
        part = part_of(n, world, peer)
        if torch.equal(row[part], right[part]) or part.start == part.stop:
            continue
        where = f"{case}: part {peer}, [{part.start}:{part.stop}],"
        if torch.equal(row[part], begun[part]):
            if peer == (rank - 1) % world:
                lab.wrong(f"{where} has not arrived, and nothing was written there.")
            lab.wrong(f"{where} has not arrived, only the left neighbour's own part did. In each round pass on what "
                      "came in the round before.")
        if torch.equal(row[part], begun[part] + right[part]):
            lab.wrong(f"{where} was added to what was there: an all-gather copies.")
        lab.wrong(f"{where} is {value_text(row[part].tolist())} where {value_text(right[part].tolist())} is right: a "
                  "part must be written at its own place, and must be right before it is passed on.")
