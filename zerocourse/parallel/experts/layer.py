"""A mixture of experts in place of a block's feed-forward part: a router, and experts as 3-D parameters. It communicates nothing.

Experts have the form of Hugging Face's: `experts(x_NC, experts_Nk, weights_Nk)`, so that `expert_parallel` knows one form.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import BadInput
from .routing import Routing, by_expert, route, weighed_sum


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
        made = [F.gelu(rows @ up.T) @ down.T for rows, up, down in zip(rows_PC.split(pairs.counts_E.tolist()), self.up, self.down, strict=True)]
        return weighed_sum(torch.cat(made), pairs, weights_Nk)


class MixtureOfExperts(nn.Module):
    """router (E, C), and the experts. x (..., C) -> (..., C). `routing` is that of the last forward, for the balance loss.

    Raises BadInput where a token asks for more experts than there are.
    """

    def __init__(self, width: int, inner: int, experts: int, k: int = 2):
        super().__init__()
        if not 1 <= k <= experts:
            raise BadInput(f"k is {k}: of {experts} experts a token can take 1 to {experts}")
        self.k, self.router, self.experts = k, nn.Linear(width, experts, bias=False), Experts(experts, width, inner)
        self.routing: Routing | None = None

    def forward(self, x: Tensor) -> Tensor:
        x_NC = x.flatten(0, -2)
        self.routing = route(self.router(x_NC), self.k)
        return self.experts(x_NC, self.routing.experts_Nk, self.routing.weights_Nk).view(x.shape)
