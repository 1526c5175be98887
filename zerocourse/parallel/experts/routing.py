"""Which experts a token takes, and with which weights. It communicates nothing.

Shapes: N tokens, E experts, k experts a token, P = N·k pairs of a token and one of its experts.
Sources: Shazeer et al. 2017, arXiv 1701.06538; Fedus et al. 2021, arXiv 2101.03961.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ...comm.torch_private import FakeTensor


class Routing(NamedTuple):
    """experts_Nk: int64, of each token.   weights_Nk: what each counts for in the sum, which is 1 together where they were renormalised.
    probabilities_NE: of all experts, in fp32."""

    experts_Nk: Tensor
    weights_Nk: Tensor
    probabilities_NE: Tensor


class Sorted(NamedTuple):
    """Pairs in the order of their experts.   order_P: int64, where each pair stands in the flattened experts_Nk.   counts_E: int64,
    pairs of each expert."""

    order_P: Tensor
    counts_E: Tensor

    def tokens(self, k: int) -> Tensor:
        """(P,) int64: the token of each pair."""
        return self.order_P // k


def route(logits_NE: Tensor, k: int, renormalise: bool = True) -> Routing:
    """The k most probable experts of each token. No token is dropped, whatever the others take.

    renormalise: the k weights are divided by their sum (Mixtral); False: they stay shares of all E (Switch).
    """
    probabilities_NE = logits_NE.float().softmax(-1)
    weights_Nk, experts_Nk = probabilities_NE.topk(k, -1)
    if renormalise:
        weights_Nk = weights_Nk / weights_Nk.sum(-1, keepdim=True)
    return Routing(experts_Nk, weights_Nk, probabilities_NE)


def by_expert(experts_Nk: Tensor, experts: int) -> Sorted:
    """The order is stable, so that tokens of one expert keep theirs, on one rank and on many."""
    flat = experts_Nk.flatten()
    return Sorted(flat.argsort(stable=True), flat.new_zeros(experts).index_add(0, flat, torch.ones_like(flat)))


def numbers_of(counts: Tensor, total: int) -> list[int]:
    """The numbers in a tensor, whose sum is `total`. Nobody knows what is in a fake one (see `simulation`): there all are equally busy."""
    if type(counts) is not FakeTensor:
        return counts.tolist()
    even, more = divmod(total, len(counts))
    return [even + (number < more) for number in range(len(counts))]


def weighted_sum(rows_PC: Tensor, pairs: Sorted, weights_Nk: Tensor) -> Tensor:
    """What the experts made of the pairs, in the order of experts, as one row (N, C) a token: the sum over its k experts."""
    at_home_PC = torch.empty_like(rows_PC).index_copy(0, pairs.order_P, rows_PC)
    return (at_home_PC.view(*weights_Nk.shape, rows_PC.shape[1]) * weights_Nk[..., None].to(rows_PC.dtype)).sum(1)
