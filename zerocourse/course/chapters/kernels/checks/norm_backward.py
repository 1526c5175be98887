"""The check of 22.7: the backward of RMSNorm, by programs that take rows in turn and keep sums of their own."""

from unittest.mock import patch

import torch

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a

EPS = 0.01  # large enough to be seen


def by_autograd(*args, **options):
    raise Wrong("it called autograd: write the formula of dx", MISUSED)


def went_back(answer, rows, columns, programs):
    """Gradients, and what was changed on the way."""
    source = torch.Generator().manual_seed(rows)
    dy, x = torch.randn(2, rows, columns, generator=source)
    weight = torch.rand(columns, generator=source) + 0.5
    before = [each.clone() for each in (dy, x, weight)]
    with patch("torch.autograd.grad", by_autograd), patch("torch.autograd.backward", by_autograd):
        made = answer(dy, x, weight, EPS, programs)
    if not (isinstance(made, tuple) and len(made) == 2 and all(map(torch.is_tensor, made))):
        raise Wrong(f"it returned {a(made)}: return two tensors, dx and dweights", MISUSED)
    dx, dweights = made
    return {"shapes": [tuple(dx.shape), tuple(dweights.shape)], "dx": dx, "dweight": dweights.sum(0), "dweights": dweights,
            "changed": not all(map(torch.equal, before, (dy, x, weight)))}


@exercise(
    "22.7", "The way back through a norm", minutes=30, difficulty=3,
    trials=[Trial([(6, 8, 2), (7, 8, 3), (2, 16, 4), (5, 4, 1)], went_back, close=1e-4)],
    mistakes={
        "no projection": {"project": lambda normed, weighted: 0},
        "a sum": {"project": lambda normed, weighted: normed * (normed * weighted).sum(1, keepdim=True)},
        "over the rows": {"project": lambda normed, weighted: normed * (normed * weighted).mean(0, keepdim=True)},
        "a mean is left out": {
            "project": lambda normed, weighted: normed * (normed * weighted).mean(1, keepdim=True) + weighted.mean(1, keepdim=True)},
        "weight forgotten": {"weigh": lambda dy, weight: dy},
        "not divided": {"divide": False},
        "eps outside": {"rstd_of": lambda x: 1 / (x.square().mean(1, keepdim=True).sqrt() + EPS)},
        "no eps": {"rstd_of": lambda x: x.square().mean(1, keepdim=True).rsqrt()},
        "rows side by side": {"rows_of": lambda rows, programs, each: [row for row in range(rows) if row // -(-rows // programs) == each]},
        "x as it is": {"of_weight": lambda dy, normed, x: dy * x},
        "added up": {"add": True},
    })
def norm_backward(dy, x, weight, eps, programs, *, project=lambda normed, weighted: normed * (normed * weighted).mean(1, keepdim=True),
                  weigh=lambda dy, weight: dy * weight, divide=True, rstd_of=lambda x: (x.square().mean(1, keepdim=True) + EPS).rsqrt(),
                  rows_of=lambda rows, programs, each: range(each, rows, programs), of_weight=lambda dy, normed, x: dy * normed, add=False):
    """(dx (R, C), dweights (programs, C))."""
    rstd = rstd_of(x)
    normed, weighted = x * rstd, weigh(dy, weight)
    dx = (weighted - project(normed, weighted)) * (rstd if divide else 1)
    dweights = torch.stack([of_weight(dy, normed, x)[list(rows_of(len(x), programs, each))].sum(0) for each in range(programs)])
    if add:
        dweights = torch.cat([dweights.sum(0, keepdim=True), torch.zeros(programs - 1, x.shape[1])])
    return dx, dweights
