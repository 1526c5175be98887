"""Which parameters of a GPT-2 get a gradient at all."""

from collections.abc import Callable

import torch
from torch import nn

KINDS: dict[str, Callable[[str], bool]] = {
    "matrices of the blocks": lambda name: name.startswith("h.") and name.endswith("weight") and ".ln_" not in name,
    "LayerNorms of the blocks": lambda name: name.startswith("h.") and ".ln_" in name,
    "biases of c_proj": lambda name: name.endswith("c_proj.bias"),
    "other biases of the blocks": lambda name: name.startswith("h.") and name.endswith(("c_attn.bias", "c_fc.bias")),
    "embeddings and ln_f": lambda name: not name.startswith("h."),
}


def gradients_not_zero(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor, factor: float) -> dict[str, float]:
    """kind of parameter → the share of its gradient's elements that are not 0, after a backward of the loss times `factor`."""
    (model(tokens, targets) * factor).backward()
    return {kind: torch.cat([param.grad.flatten() != 0 for name, param in model.named_parameters() if belongs(name)]).float().mean().item()
            for kind, belongs in KINDS.items()}
