"""The backward in two parts: I, the gradient of the stage's input, and W, those of its linear layers' weights, later.

In the backward of y = x·wᵀ the gradient of x goes on to the stage before, while that of w is read by nobody until the
update. So a linear layer inside of `deferring` only notes in its backward what the gradient of its weight is made of.
Biases, norms and embeddings cost little, and get their gradients in I. Source: Qi et al. 2024, arXiv 2401.10241.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

Owed = list[tuple[Tensor, Tensor, Tensor]]  # weight (out, in), input (..., in), gradient of the output (..., out)


class deferring(TorchFunctionMode, AbstractContextManager):
    """While it is entered, calls of F.linear note their weights' gradients in `owed` when backward reaches them."""

    def __init__(self, owed: Owed):
        super().__init__()
        self.owed = owed

    def __torch_function__(self, function: Callable, types, args=(), kwargs=None):
        if function is F.linear and torch.is_grad_enabled():
            values = dict(zip(("input", "weight", "bias"), args, strict=False), **(kwargs or {}))
            weight = values["weight"]
            if weight.requires_grad and weight.is_leaf:
                anchor = torch.empty(0, requires_grad=True)  # without it nothing would come back where the input needs nothing
                return LaterLinear.apply(anchor, values["input"], values.get("bias"), (weight, self.owed))
        return function(*args, **(kwargs or {}))


class LaterLinear(torch.autograd.Function):
    """F.linear, whose backward computes the gradients of input and bias, and notes that of the weight.

    The weight comes in a tuple, where autograd does not see it: else its hooks would be called in I, with no gradient,
    and a checkpoint would hand a copy of it to the backward.
    """

    @staticmethod
    def forward(ctx, anchor: Tensor, x: Tensor, bias: Tensor | None, later: tuple[Tensor, Owed]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.later = later
        return F.linear(x, later[0], bias)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (x,), (weight, owed) = ctx.saved_tensors, ctx.later
        owed.append((weight, x.detach(), gradient))
        _, of_input, of_bias, _ = ctx.needs_input_grad
        return (None, gradient @ weight if of_input else None, gradient.flatten(0, -2).sum(0) if of_bias else None, None)


def pay(owed: Owed) -> None:
    """W: compute what is owed, and add it to the weights' `.grad`, hooks included."""
    while owed:
        weight, x, gradient = owed.pop(0)
        of_weight = gradient.flatten(0, -2).t() @ x.flatten(0, -2)
        torch.autograd.backward([get_gradient_edge(weight)], [of_weight])
