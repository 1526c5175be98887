"""The check of 18.5: two partial results of one attention, joined by the sums of their exponentials."""

import torch
from torch import Tensor

from ....checks import MISUSED, Trial, When, Wrong, exercise
from ....checks.words import a

D = 4


def part_of(scores_TK: Tensor, values_KD: Tensor) -> tuple[Tensor, Tensor]:
    """Attention to some keys: outputs (T, D) and log-sum-exps (T,); 0 and -inf where all keys are masked."""
    sums_T = scores_TK.logsumexp(-1)
    weights_TK = (scores_TK - sums_T.where(sums_T.isfinite(), 0)[:, None]).exp()
    return weights_TK @ values_KD, sums_T


def joined(answer, kind):
    """Its result beside that of all keys at once, in fp64.

    case: {0}
    dtype: it returned the output in {got}: halves that are joined P times must stay in fp32.
    NaN: the output or the log-sum-exp has NaN.
    infinite: the log-sum-exp of query {got} is {_sums}, and {_right} is right.
    output: the output is wrong.
    sums: the output is right, but the log-sum-exp is wrong, on which the next block is joined.
    changed: the result is right, but it changed its arguments.
    """
    generator = torch.Generator().manual_seed(3)
    scores_TK = torch.randn(6, 10, generator=generator, dtype=torch.float64)
    values_KD = torch.randn(10, D, generator=generator, dtype=torch.float64)
    if kind == "large scores":
        scores_TK = scores_TK + torch.linspace(-900, 900, 6, dtype=torch.float64)[:, None]
    if kind == "unequal blocks":
        scores_TK[:, :5] += 6
    if kind == "masked blocks":
        scores_TK[0, 5:] = scores_TK[1, :5] = scores_TK[2] = -torch.inf
    parts = [part_of(scores_TK[:, some], values_KD[some]) for some in (slice(0, 5), slice(5, 10))]
    output_TD, sums_T = part_of(scores_TK, values_KD)
    half = kind == "outputs in bf16"
    given = [[out.bfloat16() if half else out.float(), sums.float()] for out, sums in parts]
    if half:
        output_TD = sum(out.double() * (sums - sums_T).exp()[:, None] for (out, _), (_, sums) in zip(given, parts))
    before = [value.clone() for pair in given for value in pair]
    returned = answer(*given[0], *given[1])
    if not (isinstance(returned, tuple) and len(returned) == 2 and all(map(torch.is_tensor, returned))):
        raise Wrong(f"it returned {a(returned)}: return two tensors, the output and the log-sum-exp", MISUSED)
    out, sums = returned
    if out.shape != (6, D) or sums.shape != (6,):
        raise Wrong(f"it returned shapes {list(out.shape)} and {list(sums.shape)}: {[6, D]} and [6] are right", MISUSED)
    seen = {"dtype": str(out.dtype)} if half else {}
    seen["NaN"] = kind if out.isnan().any() or sums.isnan().any() else None
    unlike = (sums.isinf() != sums_T.isinf()).nonzero().flatten().tolist()
    seen["infinite"] = unlike[0] if unlike else None
    if unlike:
        seen |= {"_sums": f"{sums[unlike[0]].item():g}", "_right": f"{sums_T[unlike[0]].item():.4g}"}
    if not seen["NaN"] and not unlike:
        seen |= {"output": (out.double() - output_TD).detach(), "sums": (sums.double() - sums_T).nan_to_num(0, 0, 0)}
    return seen | {"changed": any(not torch.equal(old, new) for old, new in zip(before, [v for pair in given for v in pair]))}


def stable(sums_T, more_T):
    return torch.logaddexp(sums_T, more_T)


def safe(sums_T, total_T):
    """The share of the whole sum; 0 of nothing."""
    return (sums_T - total_T).exp().where(total_T > -torch.inf, 0)


def clearly_infinite(query, _):
    """Not a query that sees no key, where -inf is right."""
    return query is not None and query != 2


@exercise(
    "18.5", "Join two softmaxes", minutes=30, difficulty=2,
    replaces=("zerocourse.parallel.context.score_block:*",),
    trials=[Trial([("two blocks",), ("unequal blocks",), ("large scores",), ("masked blocks",), ("outputs in bf16",)], joined,
                  close=1e-4)],
    mistakes={
        "mean": {"share": lambda sums, total: torch.full_like(sums, 0.5)},
        "sum": {"share": lambda sums, total: torch.ones_like(sums)},
        "by log-sum-exps": {"share": lambda sums, total: sums / (2 * total)},
        "overflow": ({"add": lambda sums, more: (sums.exp() + more.exp()).log()}, When("infinite", clearly_infinite),
                     When("NaN", lambda got, want: got == "large scores")),
        "no infinity": {"told": lambda sums, more, total: total.clamp(min=-1e9)},
        "nothing": {"share": lambda sums, total: (sums - total).exp()},
        "exchanged": {"swap": True},
        "sums of logarithms": {"told": lambda sums, more, total: sums + more},
        "largest": {"told": lambda sums, more, total: torch.maximum(sums, more)},
        "in bf16": {"wide": lambda value: value},
        "in place": {"in_place": True},
    })
def join(out, sums, more_out, more_sums, *, add=stable, share=safe, swap=False, told=lambda sums, more, total: total,
         wide=lambda value: value.float(), in_place=False):
    """Each output weighs what its block has of the sum of all exponentials.

    mean: You took the mean of the outputs: a block whose keys fit better must weigh more.
    sum: You added up the outputs, and each of them is an average already: its weight is the block's share of the sum.
    by log-sum-exps: You weighed by the log-sum-exps themselves: they are logarithms, so the weights are their exponentials.
    overflow: The exponential of a large log-sum-exp overflows, and that of a very small one is 0: subtract the larger one first
        (`torch.logaddexp` does).
    no infinity: A query that sees no key of either block has the log-sum-exp -inf, the logarithm of 0. With a large negative
        number in its place the next block is joined to keys that are not there.
    nothing: Where a query may see no key of either block both log-sum-exps are -inf, and -inf - (-inf) is NaN. Its output is
        0, and it may get keys from a later block.
    exchanged: You gave each block the weight of the other one.
    sums of logarithms: You added the log-sum-exps: what is added up are the exponentials.
    largest: The log-sum-exp that you return is the larger of the two: it lacks the exponentials of the other block.
    in bf16: You compute in the dtype of the outputs: in a ring each block rounds again, so join in fp32.
    in place: The blocks still belong to whoever sent them: make new tensors.
    right: the order of the blocks does not matter now, so they may come round a ring one by one.
    """
    total = add(sums, more_sums)
    weight, more_weight = share(sums, total)[:, None], share(more_sums, total)[:, None]
    if swap:
        weight, more_weight = more_weight, weight
    result = wide(out) * weight.to(wide(out).dtype) + wide(more_out) * more_weight.to(wide(out).dtype)
    if in_place:
        out.copy_(result)
    return result, told(sums, more_sums, total)
