"""Ulysses' exchange as a table of tokens and heads that is turned: recorded on real ranks, which tell where each entry came from."""

from collections.abc import Sequence

import torch

from ....comm import Comm
from ....parallel.context.ulysses import heads_to_tokens, tokens_to_heads
from ...show.film import Film, Frame
from ...show.palette import FAINT
from ...show.pictures import svg
from .ring_film import RANKS

TOKENS, HEADS = 8, 4
WIDE, HIGH, LEFT, TOP = 58.0, 30.0, 150.0, 28.0  # units: of an entry, and where the table begins
MOMENTS = {"Before": "A rank has some of the tokens, and all heads of them.",
           "After the all-to-all": "A rank has all tokens, and some of the heads.",
           "After the all-to-all back": "It has its own tokens again, and all heads of them."}


def recorded_turn(comm: Comm | None = None) -> list[list[tuple[int, int]]]:
    """The entries (token, head) that this rank has before, after, and after it is turned back. Collective."""
    comm = comm or Comm()
    own = TOKENS // comm.world_size
    marks = torch.arange(TOKENS * HEADS, dtype=torch.float32).view(TOKENS, HEADS)[own * comm.rank : own * (comm.rank + 1)]
    before = marks.T.reshape(1, HEADS, own, 1)
    turned = tokens_to_heads(before, comm, "marks")
    back = heads_to_tokens(turned, comm, "marks")
    return [[divmod(int(mark), HEADS) for mark in each.flatten()] for each in (before, turned, back)]


def turned_table(ranks: Sequence[Sequence[Sequence[tuple[int, int]]]]) -> Film:
    """ranks: of each, what `recorded_turn` returned."""
    frames = []
    for moment, (name, words) in enumerate(MOMENTS.items()):
        kept = [set(of_rank[moment]) & set(of_rank[moment - 1]) if moment else set(of_rank[moment]) for of_rank in ranks]
        moved = sum(len(of_rank[moment]) - len(each) for of_rank, each in zip(ranks, kept, strict=True))
        more = f" {moved} of {TOKENS * HEADS} entries have gone to another rank." if moment else ""
        frames.append(Frame(table(ranks, moment, kept), f"{words}{more}", name))
    words = " ".join(each.words for each in frames)
    return Film("A table that is turned", frames, f"{TOKENS} tokens of {HEADS} heads on {len(ranks)} ranks. {words}")


def table(ranks: Sequence[Sequence[Sequence[tuple[int, int]]]], moment: int, kept: Sequence[set[tuple[int, int]]]) -> svg.Drawing:
    drawing = svg.Drawing(LEFT + HEADS * WIDE + 190, TOP + TOKENS * HIGH + 10)
    for head in range(HEADS):
        drawing.text(LEFT + (head + 0.5) * WIDE, TOP - 10, f"head {head}", anchor="middle", size=13)
    for token in range(TOKENS):
        drawing.text(LEFT - 8, TOP + token * HIGH + 20, f"token {token}", anchor="end", size=13)
    for rank, of_rank in enumerate(ranks):
        for token, head in of_rank[moment]:
            drawing.rect(LEFT + head * WIDE, TOP + token * HIGH, WIDE, HIGH, fill=RANKS[rank], label=f"rank {rank}", size=13,
                         data={"rank": rank, "token": token, "head": head})
            if moment and (token, head) in kept[rank]:
                drawing.line(LEFT + head * WIDE + 8, TOP + token * HIGH + 25, LEFT + (head + 1) * WIDE - 8, TOP + token * HIGH + 25, width=2)
    if moment:
        drawing.paragraph(LEFT + HEADS * WIDE + 14, TOP + 16, "underlined: it stayed where it was", size=13, color=FAINT)
    return drawing
