"""Which tokens of a sequence each rank of a context group has. It communicates nothing: every rank cuts the same batch.

A token's label is the token after it, and the label of a rank's last token lies on another rank, so labels are shifted
before the cut. A token's position in the sequence goes with it, because a rank that counted from 0 would take its tokens
for the beginning.

    contiguous   rank r has part r of N: what Ulysses needs, whose all-to-all puts the parts together in the order of ranks
    zigzag       rank r has parts r and 2N-1-r of 2N: what ring attention needs, so that under a causal mask every rank
                 computes equally much (an early part attends to few tokens, and its late partner to many)

Shapes: B batch, T tokens of the whole sequence, N ranks.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import BadInput

ORDERS = ("contiguous", "zigzag")
NO_LABEL = -100  # a target that does not count in the loss


class TokenCut(NamedTuple):
    """What a rank has of a batch: T/N tokens of each sequence, in ascending order of their positions."""

    tokens_BT: Tensor
    targets_BT: Tensor  # the label of each token: the one after it; NO_LABEL where there is none
    positions_T: Tensor  # (T/N,) int64


def parts_of(rank: int, world_size: int, order: str) -> list[int]:
    """The parts of the sequence that a rank has, of N (contiguous) or 2N (zigzag) in all. Raises BadInput."""
    if order not in ORDERS:
        raise BadInput(f"order is {order!r}: it must be {' or '.join(map(repr, ORDERS))}")
    return [rank] if order == "contiguous" else [rank, 2 * world_size - 1 - rank]


def positions_of(rank: int, world_size: int, tokens: int, order: str) -> Tensor:
    """The positions (T/N,) int64 of a rank's tokens in a sequence of `tokens`. Raises BadInput where it cannot be cut."""
    parts = len(parts_of(rank, world_size, order)) * world_size
    if tokens % parts:
        raise BadInput(f"a sequence of {tokens} tokens cannot be cut into {parts} equal parts, which the {order} order on "
                       f"{world_size} ranks needs: pad it with targets of {NO_LABEL} to "
                       f"{-(-tokens // parts) * parts} tokens")
    size = tokens // parts
    return torch.cat([torch.arange(part * size, (part + 1) * size) for part in parts_of(rank, world_size, order)])


def shifted(labels_BT: Tensor) -> Tensor:
    """Targets (B, T) of labels (B, T) that stand at their own token: each moves to the token before it."""
    return torch.cat([labels_BT[:, 1:], torch.full_like(labels_BT[:, :1], NO_LABEL)], dim=1)


def cut_tokens(tokens_BT: Tensor, rank: int, world_size: int, order: str = "zigzag", labels_BT: Tensor | None = None,
               targets_BT: Tensor | None = None) -> TokenCut:
    """A rank's part of a batch, which every rank of its context group must have whole.

    labels_BT: as Hugging Face takes them, each at its own token; None: the tokens themselves.
    targets_BT: labels that are shifted already, in place of `labels_BT`.   Both int64, -100 where none counts.
    Raises BadInput for a length that cannot be cut, and for shapes that differ.
    """
    if targets_BT is None:
        targets_BT = shifted(tokens_BT if labels_BT is None else labels_BT)
    if targets_BT.shape != tokens_BT.shape:
        raise BadInput(f"tokens are {tuple(tokens_BT.shape)} and labels {tuple(targets_BT.shape)}: they must have one shape")
    positions_T = positions_of(rank, world_size, tokens_BT.shape[1], order).to(tokens_BT.device)
    return TokenCut(tokens_BT[:, positions_T], targets_BT[:, positions_T], positions_T)


def rejoin(cuts: Sequence[Tensor], order: str = "zigzag", dim: int = 1) -> Tensor:
    """The whole sequence from the parts of ranks 0 to N-1, whose tokens lie along `dim`: the opposite of the cut."""
    tokens = sum(cut.shape[dim] for cut in cuts)
    positions = torch.cat([positions_of(rank, len(cuts), tokens, order) for rank in range(len(cuts))])
    return torch.cat(list(cuts), dim).index_select(dim, positions.argsort().to(cuts[0].device))
