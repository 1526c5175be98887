"""The check of 1.1: GPT-2's parameters, counted by a formula."""

from .....formulas.transformer import gpt2_params
from ....checks import FORMULAS, exercise


@exercise(
    "1.1", "Count GPT-2", minutes=10, difficulty=1, own=gpt2_params, replaces=FORMULAS,
    sample=lambda random: (random.randint(1, 48), 64 * random.randint(1, 25), random.randint(100, 60_000),
                           128 * random.randint(1, 16), random.random() < .5),
    cases=[(12, 768, 50257, 1024, True), (24, 1024, 50257, 1024, True), (4, 64, 256, 128, False),
           (1, 16, 1000, 32, False)],
    mistakes={
        "tied head": {"head": lambda tied: 1},
        "no head": {"head": lambda tied: 0},
        "upside down": {"head": lambda tied: tied},
        "head bias": {"head_bias": 1},
        "no biases": {"biases": 0},
        "short biases": ({"biases": 4}, {"biases": 6}),
        "no vectors": {"biases": 0, "norms": 0, "last_norm": 0},
        "no norms": {"norms": 0, "last_norm": 0},
        "last norm": {"last_norm": 0},
        "last norm in blocks": {"norms": 6, "last_norm": 0},
        "one vector": ({"norms": 2, "last_norm": 1}, {"biases": 0, "norms": 2, "last_norm": 1}),
        "one norm": {"norms": 2},
        "no positions": {"positions": 0},
        "no projection": {"matrices": 11, "biases": 8},
        "narrow attention": ({"matrices": 10, "biases": 7}, {"matrices": 10}),
        "half an MLP": ({"matrices": 8, "biases": 8}, {"matrices": 8, "biases": 5}, {"matrices": 8}),
        "one block": lambda layers, *shape: count_params(1, *shape),
        "3072": lambda layers, width, *shape: (count_params(layers, width, *shape)
                                               + layers * (2 * width + 1) * (3072 - 4 * width)),
    })
def count_params(layers, width, vocab, block_size, tied, *, matrices=12, biases=9, norms=4, last_norm=2, positions=1,
                 head=lambda tied: not tied, head_bias=0):
    """GPT-2's parameters, part by part; `norms` and `biases` of a block in units of the width."""
    block = matrices * width**2 + (biases + norms) * width
    return ((1 + head(tied)) * vocab * width + positions * block_size * width + layers * block + last_norm * width
            + head_bias * vocab)
