"""The staleness meter: how many steps late does an optimizer apply a gradient? It communicates nothing itself.

On f(x) = x²/2 the gradient is x, so an update that is d steps late is x(k+1) = x(k) - η x(k-d). It converges as long
as η < 2 sin(π / (2(2d + 1))), which is 2, 1, 0.618 and 0.445 for d = 0, 1, 2 and 3. So a training that converges at
η = 1.1 is not late at all; at 0.9 it is late by one step at most, at 0.55 by two. Three trainings read the delay off any
optimizer or engine, without a look inside.
Source: the roots of z^(d+1) - z^d + η leave the unit circle there.
"""

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

LEARNING_RATES = (1.1, 0.9, 0.55)  # diverges from a delay of 1, of 2, of 3 steps on
FAR = 1e6  # |x|, which is 1 at first: from here on it will not come back


class Parabola(nn.Module):
    """f(x) = x²/2, of one parameter, float64, that is 1 at first."""

    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self) -> Tensor:
        return self.x.square().sum() / 2


class Steps(Protocol):
    """What the meter calls, of a torch optimizer or of anything that has these."""

    def zero_grad(self) -> object: ...

    def step(self) -> object: ...


def critical_rate(delay: int) -> float:
    """The learning rate on x²/2 at which plain SGD begins to diverge when its gradients are `delay` steps late."""
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


def staleness(make: Callable[[nn.Module, float], Steps], steps: int = 400) -> int:
    """The delay of an optimizer in steps: 0, 1, 2, or 3 for three and more. Collective where its steps are.

    make(model, lr): the optimizer of a `Parabola`, plain SGD with this learning rate: momentum, decay and clipping
        would move the limits. It may change the model in place, as `zerocourse.shard` does.
    steps: of each of the three trainings; with a delay of 1, η = 1.1 takes 289 to get beyond 10⁶.
    """
    return sum(diverges(make, lr, steps) for lr in LEARNING_RATES)


def diverges(make: Callable[[nn.Module, float], Steps], lr: float, steps: int) -> bool:
    """Has |x| grown after so many steps?"""
    model = Parabola()
    optimizer = make(model, lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model()
        loss.backward()
        optimizer.step()
        if not loss.item() < FAR**2 / 2:  # NaN too
            return True
    return not loss.item() < 0.5
