"""How many parameters a GPT-2 has. Formulas: no torch. C is the width."""


def gpt2_block_params(width: int, bias: bool = True) -> int:
    """Parameters of one transformer block: 12C^2 in matrices, 4C in LayerNorms, 9C in biases."""
    return 12 * width**2 + 4 * width + (9 * width if bias else 0)


def gpt2_params(layers: int, width: int, vocab: int = 50257, block_size: int = 1024, tied: bool = True,
                bias: bool = True) -> int:
    """Parameters of the whole model. `bias`: the linear layers have biases; LayerNorms always do."""
    embeddings = ((1 if tied else 2) * vocab + block_size) * width
    return embeddings + layers * gpt2_block_params(width, bias) + 2 * width
