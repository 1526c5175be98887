"""Ring attention on the causal triangle, recorded on real ranks: whose keys a rank has, what it computes, what it has seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ....comm import Comm
from ....parallel.context.ring_attention import RingAttention, apart, together
from ....parallel.context.score_block import block_forward, merge
from ....parallel.context.token_cut import positions_of
from ...show.film import Film, Frame
from ...show.palette import FAINT
from ...show.pictures import svg

RANKS = ("#56b4e9", "#f0e442", "#cc79a7", "#009e73")  # what a rank computes now
BEFORE = ("#cfe6f5", "#fbf5b5", "#f5d9e8", "#d5efe0")  # and what it has computed in earlier steps
GRID, TOP, BAR = 264.0, 44.0, 22.0  # units: of a triangle's side; where it begins; from a rank's row to the next


@dataclass(frozen=True)
class RingStep:
    """What a rank does while it has the keys of rank `owner`.

    blocks: (part of the queries, part of the keys) of each that it computes, counted in the whole sequence.
    work: so many pairs of a query and a key, of all T² pairs of the sequence; on the diagonal a block is masked, and computed whole.
    seen: how much of its softmax weights the rank's last query has by now, from 0 to 1.
    """

    owner: int
    blocks: list[tuple[int, int]]
    work: float
    seen: float


def recorded_ring(order: str, tokens: int = 64, width: int = 8) -> list[RingStep]:
    """The forward of this rank in a ring of all ranks, step by step. Collective."""
    ring = RingAttention(Comm(), order=order)
    rank, parts = ring.comm.rank, len(ring.parts[0]) * ring.comm.world_size
    draw = torch.Generator().manual_seed(0)
    whole = [torch.randn(1, 1, tokens, width, generator=draw) for _ in range(3)]
    q, k, v = (each[:, :, positions_of(rank, ring.comm.world_size, tokens, order)] for each in whole)
    merged, steps = {}, []
    for owner, kv in ring.travelling(together(k, v)):
        keys, values = (ring.split(each) for each in apart(kv, k, v))
        blocks = []
        for mine, theirs, diagonal in ring.visible(owner):
            block = block_forward(ring.split(q)[mine], keys[theirs], values[theirs], width**-0.5, diagonal)
            merged[mine] = merge(*merged[mine], *block) if mine in merged else block
            blocks.append((ring.parts[rank][mine], ring.parts[owner][theirs]))
        last = merged.get(len(ring.parts[rank]) - 1)
        steps.append((owner, blocks, None if last is None else last[1][0, 0, -1].item()))
    total = steps[-1][2]
    return [RingStep(owner, blocks, len(blocks) / parts**2, 0.0 if lse is None else float(torch.tensor(lse - total).exp()))
            for owner, blocks, lse in steps]


def ring_film(orders: Mapping[str, Sequence[Sequence[RingStep]]]) -> Film:
    """orders: by its name, of each rank, what `recorded_ring` returned."""
    count = len(next(iter(orders.values())))
    frames = []
    for step in range(count):
        said = []
        for order, ranks in orders.items():
            work = [of_rank[step].work for of_rank in ranks]
            busy = sum(each > 0 for each in work)
            said.append(f"{order}: {busy} of {count} ranks compute, and the busiest does {max(work):.1%} of all pairs")
        whose = "its own keys" if step == 0 else f"keys that have come {step} {'hop' if step == 1 else 'hops'}"
        frames.append(Frame(ring_frame(orders, step), f"Each rank has {whose}. {'; '.join(said).capitalize()}.", f"Step {step + 1} of {count}"))
    return Film("A ring of keys and values under a causal mask", frames)


def ring_frame(orders: Mapping[str, Sequence[Sequence[RingStep]]], step: int) -> svg.Drawing:
    count = len(next(iter(orders.values())))
    wide = svg.WIDTH / len(orders)
    drawing = svg.Drawing(svg.WIDTH, TOP + GRID + 40 + 1.5 * BAR * count)
    for number, (order, ranks) in enumerate(orders.items()):
        left = number * wide + 20
        drawing.text(left, 16, order, bold=True)
        drawing.text(left, 36, "keys to the right, queries down", size=12, color=FAINT)
        triangle(drawing, ranks, step, left)
        y = TOP + GRID + 26
        drawing.text(left, y, "the step's work", size=12, color=FAINT)
        drawing.text(left + 196, y, "weights seen", size=12, color=FAINT)
        most = max(of_rank[at].work for at in range(count) for of_rank in ranks)
        longest = max(of_rank[step].work for of_rank in ranks)
        for rank, of_rank in enumerate(ranks):
            y, now = TOP + GRID + 34 + 1.5 * BAR * rank, of_rank[step]
            drawing.text(left, y + 15, f"rank {rank}, keys of {now.owner}", size=12)
            begin, full = left + 108, 76
            drawing.rect(begin, y + 3, full * longest / most, BAR - 6, stroke=FAINT, dashed=True)  # until all go on
            drawing.rect(begin, y + 3, full * now.work / most, BAR - 6, fill=RANKS[rank % 4], data={"rank": rank, "work": f"{now.work:.6g}"})
            drawing.rect(left + 196, y + 3, 68, BAR - 6, stroke=FAINT)
            drawing.rect(left + 196, y + 3, 68 * now.seen, BAR - 6, fill=RANKS[rank % 4])
    return drawing


def triangle(drawing: svg.Drawing, ranks: Sequence[Sequence[RingStep]], step: int, left: float) -> None:
    """Every block of the sequence's pairs: computed now, computed before, not yet, or never, because its keys come later."""
    parts = 1 + max(query for of_rank in ranks for each in of_rank for query, _ in each.blocks)
    side = GRID / parts
    for query in range(parts):
        for key in range(query + 1):
            drawing.rect(left + key * side, TOP + query * side, side, side, stroke="#c8c8c8")
    for rank, of_rank in enumerate(ranks):
        for at, each in enumerate(of_rank[:step + 1]):
            for query, key in each.blocks:
                fill = (RANKS if at == step else BEFORE)[rank % 4]
                drawing.rect(left + key * side, TOP + query * side, side, side, fill=fill, label=str(rank), size=min(14, side * 0.5),
                             data={"rank": rank, "query": query, "key": key, "step": at})
