"""Generation as it is without a cache: every token computes all tokens before it again."""

from collections.abc import Sequence

import torch
from torch import nn


def without_cache(model: nn.Module, prompt: Sequence[int], new: int) -> tuple[list[int], int]:
    """(tokens, rows that were computed), the likeliest token each time.   model: our GPT."""
    tokens, rows = list(prompt), 0
    model.eval()
    with torch.no_grad():
        for _ in range(new):
            rows += len(tokens)
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens, rows
