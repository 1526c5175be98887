"""Small models that know one text by heart, so that their next tokens are no accident."""

import torch

from ....models.gpt2 import GPT, build_model

TEXT = b"""def mean(values):
    return sum(values) / len(values)

def variance(values):
    middle = mean(values)
    return mean([(value - middle) ** 2 for value in values])

def deviation(values):
    return variance(values) ** 0.5
"""
STEPS = 90


def knows_by_heart(**overrides) -> GPT:
    """A gpt2-tiny with room for 256 tokens, after some steps on TEXT alone.   overrides: of its shape."""
    torch.manual_seed(0)
    model = build_model("gpt2-tiny", block_size=256, **overrides)
    tokens = torch.tensor([list(TEXT)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, fused=True)
    for _ in range(STEPS):
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()
