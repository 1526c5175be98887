"""The check of 1.1: GPT-2's parameters, counted by a formula."""

from .....formulas.transformer import gpt2_params
from ...exercise import FORMULAS, exercise


@exercise(
    "1.1", "Count GPT-2", minutes=10, difficulty=1, answer="count_params", own=gpt2_params, replaces=FORMULAS,
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
    """GPT-2's parameters, part by part; `norms` and `biases` of a block in units of the width.

    tied head: You counted the head although it is tied: then it is the token table itself, one tensor with two uses.
    no head: You left out the head where it is not tied: then it is a second table of vocab x width.
    upside down: You counted the head where it is tied, and only there: tied, it is the token table itself, and not
        tied, it is a second one.
    head bias: You gave the head a bias: it has none.
    no biases: You left out the biases of the four linear layers of a block: 3C + C + 4C + C = 9C.
    short biases: You gave linear layers a bias of C: a bias is as long as the output, 3C + C + 4C + C = 9C.
    no vectors: You counted matrices only: a block also has biases, 9C, and two LayerNorms, 4C, and one more comes last.
    no norms: You left out the LayerNorms: each has a weight and a bias of C, two in a block and one at the end.
    last norm: You left out the last LayerNorm, which comes after all blocks: 2C.
    last norm in blocks: You counted the last LayerNorm in every block: it comes once, after all blocks, 2C.
    one vector: You gave a LayerNorm one vector: it has a weight and a bias, 2C together.
    one norm: You gave a block one LayerNorm: it has two, one before the attention and one before the MLP.
    no positions: You left out the table of positions: block_size x C.
    no projection: You left out the projection after attention, the second C x C matrix: attention has 3C² and C².
    narrow attention: You gave the attention's first layer one matrix of C x C: it makes queries, keys and values, 3C².
    half an MLP: You counted one matrix of the MLP: it has two, C x 4C and 4C x C.
    one block: You counted one block: there are `layers` of them.
    3072: You gave every MLP 3072 features inside, which is right for GPT-2 small alone: there are 4C of them.
    right: 124,439,808 for GPT-2 small, and right for every other shape tried.
    """
    block = matrices * width**2 + (biases + norms) * width
    return ((1 + head(tied)) * vocab * width + positions * block_size * width + layers * block + last_norm * width
            + head_bias * vocab)
