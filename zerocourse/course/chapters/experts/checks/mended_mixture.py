"""The check of 21.2: find the bugs in a mixture of experts on one rank."""

import torch

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a

CASES = {"one expert a token": (7, 1, 3, ()), "two experts a token": (6, 2, 4, ()), "the last expert has none": (6, 2, 4, (3,)),
         "only the first has tokens": (3, 1, 3, (1, 2))}


def mixed_rows(answer, name):
    """Each expert is another linear function, so that a row tells which one it went through."""
    tokens, k, experts, idle = CASES[name]
    draw = torch.Generator().manual_seed(tokens * k)
    x = torch.randn(tokens, 3, generator=draw)
    logits = torch.randn(tokens, experts, generator=draw)
    logits[:, list(idle)] = -1e9
    weights, chosen = logits.softmax(-1).topk(k, -1)
    functions = [lambda rows, number=number: rows * (number + 1) + 10 * number for number in range(experts)]
    returned = answer(x.clone(), chosen, weights, functions)
    if not torch.is_tensor(returned):
        raise Wrong(f"it returned {a(returned)}: return a tensor", MISUSED)
    return {"out": returned}


@exercise(
    "21.2", "Find the bugs: whose row is it?", minutes=25, difficulty=2, answer="mixed", replaces=("zerocourse.parallel.experts.routing:*",),
    trials=[Trial([(name,) for name in CASES], mixed_rows, close=1e-5)],
    mistakes={
        "sorted again": {"home": lambda made, order: made[order]},
        "still sorted": {"home": lambda made, order: made},
        "weights of others": {"weigh": lambda weights, order, chosen: weights.flatten()[order].view_as(weights)},
        "weights by number": {"weigh": lambda weights, order, chosen: weights.gather(1, chosen.argsort(1).argsort(1))},
        "not weighed": {"weigh": lambda weights, order, chosen: torch.full_like(weights, 1 / weights.shape[1])},
        "the first choice alone": {"weigh": lambda weights, order, chosen: weights * (torch.arange(weights.shape[1]) == 0)},
        "weighed before": {"before": True},
        "written over": {"over": True},
        "rows of others": {"row": lambda order, tokens, k: order % tokens},
    })
def mixture_of_rows(x, chosen, weights, experts, *, row=lambda order, tokens, k: order // k,
                    home=lambda made, order: torch.empty_like(made).index_copy(0, order, made), weigh=lambda weights, order, chosen: weights,
                    before=False, over=False):
    """(N, C)."""
    k, flat = chosen.shape[1], chosen.flatten()
    order = flat.argsort(stable=True)
    rows = x[row(order, len(x), k)] * (weights.flatten()[order][:, None] if before else 1)
    parts = rows.split(torch.bincount(flat, minlength=len(experts)).tolist())
    made = torch.cat([expert(rows) for expert, rows in zip(experts, parts, strict=True)])
    if over:
        out = torch.zeros_like(x)
        out[order // k] += made * weights.flatten()[order][:, None]
        return out
    shares = torch.ones_like(weights) if before else weigh(weights, order, chosen)
    return (home(made, order).view(len(x), k, -1) * shares[..., None]).sum(1)
