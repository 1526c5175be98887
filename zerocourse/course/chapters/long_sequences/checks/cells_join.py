"""The check of 19.w1, which chapter 19 asks for itself: attention to two blocks of keys, joined by their log-sum-exps."""

import torch

from ....checks import MISUSED, Trial, When, Wrong, exercise
from ....checks.words import a

D = 4


def join(out, sums, more_out, more_sums):
    """Attention to the keys of two blocks, from attention to each of them.

    out, more_out: (T, D), the two outputs. Each is an average of its block's values.
    sums, more_sums: (T,), the log-sum-exps: log Σ exp(score) over the keys of a block.
    Returns the output (T, D) and the log-sum-exp (T,) over the keys of both. Scores may be
    large, and exp(900) is no number of fp32.
    """
    total = torch.logaddexp(sums, more_sums)
    weight, more_weight = (sums - total).exp(), (more_sums - total).exp()
    return weight[:, None] * out + more_weight[:, None] * more_out, total


def part_of(scores_TK, values_KD):
    """Attention to some keys: outputs (T, D) and log-sum-exps (T,)."""
    return scores_TK.softmax(-1) @ values_KD, scores_TK.logsumexp(-1)


def joined(answer, kind):
    """Its result beside that of all keys at once, in fp64."""
    draw = torch.Generator().manual_seed(3)
    scores_TK = torch.randn(6, 10, generator=draw, dtype=torch.float64)
    values_KD = torch.randn(10, D, generator=draw, dtype=torch.float64)
    if kind == "large scores":
        scores_TK = scores_TK + torch.linspace(-900, 900, 6, dtype=torch.float64)[:, None]
    if kind == "unequal blocks":
        scores_TK[:, :5] += 6
    parts = [part_of(scores_TK[:, some], values_KD[some]) for some in (slice(0, 5), slice(5, 10))]
    output_TD, sums_T = part_of(scores_TK, values_KD)
    given = [each.float() for pair in parts for each in pair]
    before = [each.clone() for each in given]
    returned = answer(*given)
    if not (isinstance(returned, tuple) and len(returned) == 2 and all(map(torch.is_tensor, returned))):
        raise Wrong(f"it returned {a(returned)}: return two tensors, the output and the log-sum-exp", MISUSED)
    out, sums = returned
    if out.shape != (6, D) or sums.shape != (6,):
        raise Wrong(f"it returned shapes {list(out.shape)} and {list(sums.shape)}: {[6, D]} and [6] are right", MISUSED)
    seen = {"finite": bool(out.isfinite().all() and sums.isfinite().all())}
    if seen["finite"]:
        seen |= {"output": out.double() - output_TD, "sums": sums.double() - sums_T}
    return seen | {"changed": not all(map(torch.equal, before, given))}


def shares(sums, total):
    return (sums - total).exp()


@exercise(
    "19.w1", "Join two softmaxes", minutes=12, difficulty=2, answer="join", own=join,
    replaces=("zerocourse.parallel.context.score_block:*",),
    trials=[Trial([("two blocks",), ("unequal blocks",), ("large scores",)], joined, close=1e-4)],
    mistakes={
        "mean": {"share": lambda sums, total: torch.full_like(sums, 0.5)},
        "sum": {"share": lambda sums, total: torch.ones_like(sums)},
        "by log-sum-exps": {"share": lambda sums, total: sums / (2 * total)},
        "overflow": ({"add": lambda sums, more: (sums.exp() + more.exp()).log()}, When("finite", lambda got, want: not got)),
        "exchanged": {"swap": True},
        "sums of logarithms": {"told": lambda sums, more, total: sums + more},
        "largest": {"told": lambda sums, more, total: torch.maximum(sums, more)},
    })
def join_blocks(out, sums, more_out, more_sums, *, add=torch.logaddexp, share=shares, swap=False, told=lambda sums, more, total: total):
    """Each output weighs what its block has of the sum of all exponentials."""
    total = add(sums, more_sums)
    weight, more_weight = share(sums, total)[:, None], share(more_sums, total)[:, None]
    if swap:
        weight, more_weight = more_weight, weight
    return weight * out + more_weight * more_out, told(sums, more_sums, total)
