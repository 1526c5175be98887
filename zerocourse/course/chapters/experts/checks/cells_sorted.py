"""The check of 21.w2, which chapter 21 asks for itself: pairs of a token and an expert, in the order of the experts."""

import torch

from ....checks import Trial, exercise
from .two_tensors import two_tensors


def sort_pairs(chosen, experts):
    """Pairs of a token and one of its experts, in the order of the experts.

    chosen: (N, k), int64. Pair number i of `chosen.flatten()` is of token i // k.
    experts: how many there are; some may have no pair at all.
    Returns order (N·k,), int64, the numbers of the pairs: those of expert 0 first, and the
    pairs of one expert in the order of their numbers; and counts (experts,), int64, how
    many pairs each expert has.
    """
    flat = chosen.flatten()
    return flat.argsort(stable=True), torch.bincount(flat, minlength=experts)


CASES = {"a few": ([[2, 0], [0, 1], [2, 1]], 3), "one expert a token": ([[1], [0], [1], [1], [0]], 2), "no pair for some": ([[3, 1], [1, 3]], 6),
         "all to one": ([[1], [1], [1]], 2)}
LONG = torch.randint(4, (60, 2), generator=torch.Generator().manual_seed(0)).tolist()  # an unstable sort shows in many pairs only
CASES["many"] = (LONG, 4)


def in_order(answer, name):
    chosen, experts = CASES[name]
    order, counts = two_tensors(answer(torch.tensor(chosen), experts), "order and counts")
    return {"order": order, "counts": counts}


@exercise(
    "21.w2", "In the order of experts", minutes=8, difficulty=1, answer="sort_pairs", own=sort_pairs,
    replaces=("zerocourse.parallel.experts.routing:*",), trials=[Trial([(name,) for name in CASES], in_order)],
    mistakes={
        "back to front": {"sort": lambda flat: len(flat) - 1 - flat.flip(0).argsort(stable=True)},
        "largest first": {"sort": lambda flat: flat.argsort(stable=True, descending=True)},
        "where each goes": {"sort": lambda flat: flat.argsort(stable=True).argsort()},
        "tokens": {"number": lambda order, k: order // k},
        "experts without pairs": {"count": lambda flat, experts: torch.bincount(flat)},
        "the sorted experts": {"sort": lambda flat: flat.sort()[0]},
    })
def sorted_pairs(chosen, experts, *, sort=lambda flat: flat.argsort(stable=True), number=lambda order, k: order,
                 count=lambda flat, experts: torch.bincount(flat, minlength=experts)):
    """(order, counts)."""
    flat = chosen.flatten()
    return number(sort(flat), chosen.shape[1]), count(flat, experts)
