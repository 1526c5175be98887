"""Mixtures of experts in place of blocks' feed-forward parts: a router, and experts as 3-D parameters. They communicate nothing.

Experts have the form of Hugging Face's: `experts(x_NC, experts_Nk, weights_Nk)`, so that `expert_parallel` knows one form.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...autograd.graph import current_backward
from ...errors import BadInput
from ...formulas.models.mixture_shape import MixtureShape
from ...models.llama import Llama
from .routing import Routing, by_expert, numbers_of, route, weighted_sum


class Experts(nn.Module):
    """E feed-forward parts. up (E, inner, C), down (E, C, inner). They begin different, because each draws its own numbers."""

    def __init__(self, experts: int, width: int, inner: int):
        super().__init__()
        self.num_experts = experts
        self.up = nn.Parameter(torch.randn(experts, inner, width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, width, inner) * inner**-0.5)

    def forward(self, x_NC: Tensor, experts_Nk: Tensor, weights_Nk: Tensor) -> Tensor:
        """Each token by its k experts: (N, C). An expert without a token gets gradients of zeros, and not none."""
        pairs = by_expert(experts_Nk, self.num_experts)
        rows_PC = x_NC[pairs.tokens(experts_Nk.shape[1])]
        of_experts = rows_PC.split(numbers_of(pairs.counts_E, len(rows_PC)))
        made = [self.one(*each) for each in zip(of_experts, *self.parameters(), strict=True)]
        return weighted_sum(torch.cat(made), pairs, weights_Nk)

    @staticmethod
    def one(rows: Tensor, up: Tensor, down: Tensor) -> Tensor:
        """What one expert makes of its rows."""
        return F.gelu(rows @ up.T) @ down.T


class GatedExperts(Experts):
    """E of a Llama's feed-forward parts, by Mixtral's names and in its form. gate_up_proj (E, 2 inner, C), down_proj (E, C, inner)."""

    def __init__(self, experts: int, width: int, inner: int):
        nn.Module.__init__(self)
        self.num_experts = experts
        self.gate_up_proj = nn.Parameter(0.02 * torch.randn(experts, 2 * inner, width))
        self.down_proj = nn.Parameter(0.02 * torch.randn(experts, width, inner))

    @staticmethod
    def one(rows: Tensor, up: Tensor, down: Tensor) -> Tensor:
        gates, made = (rows @ up.T).chunk(2, -1)
        return (F.silu(gates) * made) @ down.T


class MixtureOfExperts(nn.Module):
    """router (E, C), and the experts. x (..., C) -> (..., C). `routing` is that of the last forward, for the balance loss.

    kind: of the experts.   Raises BadInput where a token asks for more experts than there are.
    """

    def __init__(self, width: int, inner: int, experts: int, k: int = 2, kind: type[Experts] = Experts):
        super().__init__()
        if not 1 <= k <= experts:
            raise BadInput(f"k is {k}: of {experts} experts a token can take 1 to {experts}")
        self.k, self.router, self.experts = k, nn.Linear(width, experts, bias=False), kind(experts, width, inner)
        self.routing: Routing | None = None

    def forward(self, x: Tensor) -> Tensor:
        x_NC = x.flatten(0, -2)
        routing = route(self.router(x_NC), self.k)
        if current_backward() == -1:  # what a backward computes again is nobody's, and its graph would stay
            self.routing = routing
        return self.experts(x_NC, routing.experts_Nk, routing.weights_Nk).view(x.shape)


def mixture_llama(shape: MixtureShape) -> Llama:
    """A Mixtral, or a Qwen 3 MoE: a Llama whose blocks have mixtures, and the router's weights divided by their sum."""
    dense = shape.dense
    model = Llama(dense)
    for block in model.model.layers:
        block.mlp = MixtureOfExperts(dense.width, dense.inner, shape.experts, shape.k, GatedExperts)
    return model
