"""The ring turning: which sums each rank has after each turn, and that an all-reduce is a reduce-scatter and an all-gather.

    turns = launch(ring_turns, nproc=4)     # on each rank: run a ring, by default that of `classics.ring`, and look at every turn
    ring(turns)                             # a film of the turns
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from ....classics.ring import ring_all_reduce, turn_the_ring
from ....errors import BadInput
from ...show.film import Film, Frame
from ...show.palette import FAINT, INK, MEANINGS
from ...show.pictures import svg
from ...show.pictures.placing import GRADIENTS

SECONDS = 2.0  # per frame
PART, BAR, TOP = 30, 0.62, 34  # units: height of a part; of a column's width, what its parts take; of the first part
MOST_RANKS = 6  # more columns than that are too narrow to be read
LETTERS = "abcdef"  # by rank: whose values they are


class Turn(NamedTuple):
    """What one rank has after a turn: for each part the ranks whose values are in it. sent: the part that it has just
    sent, None before the first turn.   adds: did the receiver add it (reduce-scatter) or copy it (all-gather)?"""

    parts: list[frozenset[int]]
    sent: int | None
    adds: bool


def ring_turns(turns: Callable[..., None] = turn_the_ring, elements_per_part: int = 4) -> list[Turn]:
    """On every rank: all-reduce a buffer by these turns (see `classics.ring`), and tell what it holds after each. Collective.

    Rank r puts 2^r into each element, so the bits of a sum say whose values are in it.
    """
    seen: list[Turn] = []

    def watched(parts: Sequence[torch.Tensor], rank: int, pass_on: Callable[..., None]) -> None:
        def turn(leaving: int, arriving: int, add: bool) -> None:
            pass_on(leaving, arriving, add)
            seen.append(Turn(list(map(contributions, parts)), leaving % len(parts), add))

        seen.append(Turn(list(map(contributions, parts)), None, True))
        turns(parts, rank, turn)

    ring_all_reduce(torch.full((elements_per_part * dist.get_world_size(),), 1 << dist.get_rank()), watched)
    return seen


def contributions(part: torch.Tensor) -> frozenset[int]:
    """The ranks whose values are in each element of the part."""
    (value,) = set(part.tolist())
    return frozenset(rank for rank in range(value.bit_length()) if value >> rank & 1)


def ring(turns: Sequence[Sequence[Turn]]) -> Film:
    """What `ring_turns` returned on each rank, turn by turn. Raises BadInput for one rank, or for more than six."""
    if not 2 <= len(turns) <= MOST_RANKS:
        raise BadInput(f"turns are of {len(turns)} ranks: a ring that one can see has 2 to {MOST_RANKS}")
    world_size, count = len(turns), len(turns[0])
    title = f"A ring of {world_size} ranks adds up a buffer"
    half = count // 2
    turns_each = f"{half} turns" if half > 1 else "turn"
    words = (f"{title}. In the reduce-scatter, the first {turns_each}, each rank adds the part that comes from its left neighbour "
             f"to its own, so that in the end each rank has the whole sum of one part. In the all-gather, the last {turns_each}, "
             f"the sums travel on. In each turn each rank sends 1/{world_size} of the buffer, {count - 1}/{world_size} in all.")
    return Film(title, [Frame(frame(turns, number), explanation(turns, number), heading(turns, number)) for number in range(count)],
                words, SECONDS)


def frame(turns: Sequence[Sequence[Turn]], number: int) -> svg.Drawing:
    """All ranks after one turn, and what has just been sent."""
    world_size = len(turns)
    column = svg.WIDTH / world_size
    drawing = svg.Drawing(svg.WIDTH, TOP + PART * world_size + 44)
    for rank, own in enumerate(turns):
        left, turn = rank * column, own[number]
        drawing.text(left + column * BAR / 2, TOP - 12, f"rank {rank}", size=14, anchor="middle")
        for part, ranks in enumerate(turn.parts):
            y, wide = TOP + part * PART, column * BAR / world_size
            for other in range(world_size):
                there = other in ranks
                drawing.rect(left + other * wide, y, wide, PART - 6, fill=MEANINGS[GRADIENTS].color if there else "none",
                             stroke="#b4b4b4", label=LETTERS[other] if there else "", size=13,
                             data={"rank": rank, "part": part, "of": other} if there else None)
            if len(ranks) == world_size:
                drawing.tag("rect", x=left, y=y, width=column * BAR, height=PART - 6, fill="none", stroke=INK, stroke_width=3)
        if turn.sent is not None:
            y = TOP + turn.sent * PART + (PART - 6) / 2
            if rank + 1 < world_size:
                drawing.arrow(left + column * BAR + 4, y, left + column - 4, y, data={"from": rank, "part": turn.sent})
            else:  # the ring closes: out at the right edge, and in at the left one
                drawing.arrow(left + column * BAR + 4, y, svg.WIDTH - 2, y, data={"from": rank, "part": turn.sent})
                drawing.text(svg.WIDTH - 2, y - 8, "to rank 0", size=12, anchor="end", color=FAINT)
    y = TOP + PART * world_size + 22
    drawing.text(0, y, "a: what rank 0 had before, b: rank 1, and so on. Thick frame: the sum of all.", size=13, color=FAINT)
    drawing.text(0, y + 18, "" if number == 0 else f"Arrows: what was just sent. Each rank has now sent {number}/{world_size} of the "
                 "buffer.", size=13, color=FAINT)
    return drawing


def heading(turns: Sequence[Sequence[Turn]], number: int) -> str:
    half = len(turns[0]) // 2
    if number == 0:
        return "Before: each rank has values of its own"
    if turns[0][number].adds:
        return f"Reduce-scatter, turn {number} of {half}"
    return f"All-gather, turn {number - half} of {half}"


def explanation(turns: Sequence[Sequence[Turn]], number: int) -> str:
    half = len(turns[0]) // 2
    if number == 0:
        return f"The buffer is cut into {len(turns)} parts, one below the other."
    if number == half:
        return "Now each rank has the whole sum of one part: this is a reduce-scatter."
    if number == 2 * half:
        return "Now every rank has every sum: the two halves together are an all-reduce."
    if turns[0][number].adds:
        return "Each rank sends one part to the right; who receives it adds it to its own."
    return "Each rank passes a finished sum to the right; who receives it keeps it."
