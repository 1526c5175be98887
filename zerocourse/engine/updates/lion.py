"""Lion: steps of one size, whose direction is the sign of an average of gradients. It communicates nothing.

It keeps one average per parameter, 4 bytes in fp32, where Adam keeps two.
Source: Chen et al., arXiv 2302.06675, Algorithm 2.
"""

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.optim import Optimizer


class Lion(Optimizer):
    """An element-wise optimizer: a slice of a parameter is updated as it would be inside of the whole."""

    steps_in_parts = True  # several calls, each with some of the gradients, are one step: so its states may lie on a disk

    def __init__(self, params: Iterable, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """One update of every parameter that has a gradient. Returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.update(param, group)
        return loss

    def update(self, param: nn.Parameter, group: dict) -> None:
        state, (beta1, beta2) = self.state[param], group["betas"]
        if not state:
            state["exp_avg"] = torch.zeros_like(param)
        average = state["exp_avg"]
        direction = average.mul(beta1).add_(param.grad, alpha=1 - beta1).sign_()
        param.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-group["lr"])
        average.mul_(beta2).add_(param.grad, alpha=1 - beta2)
