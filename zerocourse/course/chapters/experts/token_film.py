"""The trip of tokens to their experts and back, recorded on real ranks by the functions that move them in a training."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ....comm import Comm
from ....parallel.experts.routing import by_expert
from ....parallel.experts.token_exchange import announce, back_home, to_experts
from ...show.film import Film, Frame
from ...show.palette import FAINT
from ...show.pictures import svg

TOKENS, PER_RANK = 6, 2  # tokens of a rank, and its experts
FILLS = ("#56b4e9", "#f0e442", "#cc79a7", "#009e73")  # of the rank that a token comes from
WIDE, HIGH, LEFT, LANE = 74.0, 38.0, 84.0, 92.0  # units: of a token, where the lanes begin, and how high one is
MOMENTS = {"At home": "Each token has chosen an expert.",
           "Sorted": "Each rank sorts its tokens by their experts, so that those for one rank lie side by side.",
           "At the experts": "The all-to-all has brought every token to the rank that has its expert.",
           "Back": "The same way back, and in the old order."}


class Marked(NamedTuple):
    """A token: the rank that it comes from, its number there, and its expert."""

    rank: int
    token: int
    expert: int


def recorded_trip(comm: Comm | None = None) -> list[list[Marked]]:
    """The tokens that this rank has at each of `MOMENTS`. Collective."""
    comm = comm or Comm()
    experts = PER_RANK * comm.world_size
    chosen = torch.randint(experts, (TOKENS, 1), generator=torch.Generator().manual_seed(comm.rank))
    marks = ((comm.rank * TOKENS + torch.arange(TOKENS)) * experts + chosen[:, 0]).float()[:, None]
    pairs = by_expert(chosen, experts)
    ordered = marks[pairs.tokens(1)]
    trip = announce(pairs.counts_E, comm, "marks", chosen.numel()).trip
    there = to_experts(ordered, trip, comm, "marks")
    home = back_home(there, trip, comm, "marks")
    back = torch.empty_like(home).index_copy(0, pairs.order_P, home)
    return [[Marked(*divmod(int(mark) // experts, TOKENS), int(mark) % experts) for mark in each[:, 0]] for each in (marks, ordered, there, back)]


def token_film(ranks: Sequence[Sequence[Sequence[Marked]]]) -> Film:
    """ranks: of each, what `recorded_trip` returned."""
    frames = []
    for moment, (name, words) in enumerate(MOMENTS.items()):
        away = sum(each.rank != rank for rank, of_rank in enumerate(ranks) for each in of_rank[moment])
        more = f" {away} of {TOKENS * len(ranks)} tokens are on another rank than their own." if away else ""
        frames.append(Frame(lanes(ranks, moment), f"{words}{more}", name))
    return Film("Tokens travel to their experts", frames, " ".join(frame.words for frame in frames))


def lanes(ranks: Sequence[Sequence[Sequence[Marked]]], moment: int) -> svg.Drawing:
    most = max(len(each) for of_rank in ranks for each in of_rank)
    drawing = svg.Drawing(LEFT + most * WIDE + 10, 16 + LANE * len(ranks))
    for rank, of_rank in enumerate(ranks):
        top = 16 + rank * LANE
        drawing.text(LEFT - 12, top + 24, f"rank {rank}", anchor="end", size=14)
        drawing.text(LEFT, top + HIGH + 20, f"has experts {PER_RANK * rank} and {PER_RANK * rank + 1}", size=12, color=FAINT)
        for place, (home, token, expert) in enumerate(of_rank[moment]):
            drawing.rect(LEFT + place * WIDE, top, WIDE - 4, HIGH, fill=FILLS[home], label=f"{token} → e{expert}", size=13,
                         data={"rank": rank, "home": home, "token": token, "expert": expert})
    return drawing
