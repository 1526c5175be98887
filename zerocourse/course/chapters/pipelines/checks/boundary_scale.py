"""The check of 17.4: a gradient that is scaled once at each boundary."""

import torch
import torch.nn.functional as F
from torch import nn

from ....checks import Trial, exercise


def stepped(answer, depth, rows, old=0.0):
    """The gradients of a model of some stages, after a step over micro-batches of so many rows."""
    torch.manual_seed(1)
    stages = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(depth))
    inputs, targets = torch.randn(sum(rows), 3), torch.randn(sum(rows), 3)
    F.mse_loss(nn.Sequential(*stages)(inputs), targets).backward()
    wanted = [torch.cat([param.grad.flatten() for param in stage.parameters()]) for stage in stages]
    loss = F.mse_loss(nn.Sequential(*stages)(inputs), targets).item()
    for param in stages.parameters():
        param.grad = torch.full_like(param, old) if old else None
    returned = answer(list(stages), list(inputs.split(rows)), list(targets.split(rows)), F.mse_loss)
    came = [torch.cat([torch.zeros(param.numel()) if param.grad is None else param.grad.flatten() - old
                       for param in stage.parameters()]) for stage in stages]
    factors = [round((got.norm() / want.norm()).item(), 3) for got, want in zip(came, wanted)]
    seen = {"last": factors[-1], "factors": factors} if len(set(rows)) == 1 else {}
    return seen | {"added" if old else "gradients": all(torch.allclose(got, want, atol=1e-5) for got, want in zip(came, wanted)),
                   "loss": round(float(torch.as_tensor(returned).detach()), 4), "_loss": loss}


@exercise(
    "17.4", "Find the bug: a slow first stage", minutes=25, difficulty=2,
    trials=[Trial([(3, [2, 2, 2, 2]), (1, [1, 1]), (2, [3]), (2, [2, 2, 1]), (3, [1, 4])], stepped, close=2e-3),
            Trial([(2, [1, 3], 1.0)], stepped, close=2e-3)],
    mistakes={
        "the bug": {"everywhere": True},
        "sums": {"weigh": lambda x, inputs: 1.0},
        "means of means": {"weigh": lambda x, inputs: 1 / len(inputs)},
        "rows of the first": {"weigh": lambda x, inputs: len(x) / (len(inputs) * len(inputs[0]))},
        "first stage alone": ({"at_first": "always"}, {"at_first": "passed on"}),
        "last micro-batch alone": {"forgets": True},
        "old gradients": {"clears": True},
        "loss of the last": ({"total": lambda losses: losses[-1]}, {"total": lambda losses: losses[-1], "raw": True}),
        "sum of losses": {"raw": True},
    })
def pipeline_step(stages, inputs, targets, loss, *, weigh=lambda x, inputs: len(x) / sum(map(len, inputs)),
                  everywhere=False, at_first="", forgets=False, total=sum, raw=False, clears=False):
    """The loss is scaled once, where it is computed."""
    losses = []
    for stage in stages if clears else ():
        stage.zero_grad()
    for x, target in zip(inputs, targets, strict=True):
        weight, values = weigh(x, inputs), []
        for stage in stages:
            x = x.detach().requires_grad_()
            values.append((stage, x, out := stage(x)))
            x = out
        error = loss(out, target)
        losses.append((error if raw else error * weight).detach())
        if forgets:
            for stage in stages:
                stage.zero_grad()
        gradient = None
        for number, (_, x, out) in reversed(list(enumerate(values))):
            if gradient is None:
                (error * (1 if at_first and (number or at_first == "passed on") else weight)).backward()
            else:
                torch.autograd.backward(out * (weight if everywhere or (at_first and number == 0) else 1), gradient)
            gradient = x.grad
    return total(losses)
