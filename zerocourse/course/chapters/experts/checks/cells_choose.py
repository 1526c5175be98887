"""The check of 21.w1, which chapter 21 asks for itself: which experts a token takes, and with which weights."""

import torch

from ....checks import Trial, exercise
from .two_tensors import two_tensors


def choose_experts(logits, k):
    """The k most probable experts of each token, and what each counts for.

    logits: (N, E), of N tokens for E experts.
    Returns experts (N, k), int64, the most probable first, and weights (N, k): their
    probabilities, made so that the k of a token add up to 1.
    """
    weights, experts = logits.softmax(-1).topk(k, -1)
    return experts, weights / weights.sum(-1, keepdim=True)


CASES = [(5, 8, 2), (4, 4, 1), (6, 5, 3)]


def chosen_experts(answer, tokens, experts, k):
    logits = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(tokens)) * 2
    chosen, weights = two_tensors(answer(logits, k), "experts and weights")
    return {"experts": chosen, "weights": weights}


@exercise(
    "21.w1", "Which experts?", minutes=8, difficulty=1, answer="choose_experts", own=choose_experts,
    replaces=("zerocourse.parallel.experts.routing:*",), trials=[Trial(CASES, chosen_experts, close=1e-5)],
    mistakes={
        "shares of all": {"again": lambda weights: weights},
        "all alike": {"again": lambda weights: torch.full_like(weights, 1 / weights.shape[1])},
        "softmax twice": {"again": lambda weights: weights.softmax(-1)},
        "the worst": {"largest": False},
        "over the tokens": {"shares": lambda logits: logits.softmax(0)},
        "logits": {"shares": lambda logits: logits},
    })
def chosen_of_all(logits, k, *, shares=lambda logits: logits.softmax(-1), largest=True,
                  again=lambda weights: weights / weights.sum(-1, keepdim=True)):
    """(experts, weights)."""
    weights, experts = shares(logits).topk(k, -1, largest=largest)
    return experts, again(weights)
