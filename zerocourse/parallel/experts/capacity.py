"""A capacity: an expert takes so many pairs, and the others are dropped, so that every expert has equally many rows to compute.

What it breaks: which pairs are dropped depends on the other tokens of the batch, so the result depends on how many ranks there are,
and, where the most probable pairs stay, a token depends on those that come after it.
Sources: Lepikhin et al. 2020, arXiv 2006.16668 (where second choices come after all first ones, which has the same trouble);
DeepSpeed's `drop_policy`, "position" and "probs".
"""

import math

import torch

from .routing import Routing, by_expert


def capacity_of(tokens: int, k: int, experts: int, factor: float) -> int:
    """Pairs that an expert takes: `factor` times its mean share, rounded up."""
    return math.ceil(factor * tokens * k / experts)


def with_capacity(routing: Routing, capacity: int, by_probability: bool = False) -> Routing:
    """The same routing, with weights of 0 where an expert has no place left.

    by_probability: of an expert's pairs the most probable stay; else the first ones, in the order of tokens.
    """
    flat = routing.experts_Nk.flatten()
    chances_P = routing.probabilities_NE.gather(1, routing.experts_Nk).flatten()
    first_P = chances_P.argsort(descending=True, stable=True) if by_probability else torch.arange(len(flat), device=flat.device)
    pairs = by_expert(flat[first_P], routing.probabilities_NE.shape[1])
    begins_E = pairs.counts_E.cumsum(0) - pairs.counts_E
    place_P = torch.arange(len(flat), device=flat.device) - begins_E.repeat_interleave(pairs.counts_E)
    dropped = first_P[pairs.order_P[place_P >= capacity]]
    weights_P = routing.weights_Nk.flatten().index_fill(0, dropped, 0.0)
    return routing._replace(weights_Nk=weights_P.view_as(routing.weights_Nk))
