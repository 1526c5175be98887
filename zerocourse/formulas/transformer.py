"""How many parameters a GPT-2 and a Llama have, and what a step computes. Formulas: no torch. C is the width."""


def gpt2_block_params(width: int, bias: bool = True) -> int:
    """Parameters of one transformer block: 12C^2 in matrices, 4C in LayerNorms, 9C in biases."""
    return 12 * width**2 + 4 * width + (9 * width if bias else 0)


def gpt2_params(layers: int, width: int, vocab: int = 50257, block_size: int = 1024, tied: bool = True,
                bias: bool = True) -> int:
    """Parameters of the whole model. `bias`: the linear layers have biases; LayerNorms always do."""
    embeddings = ((1 if tied else 2) * vocab + block_size) * width
    return embeddings + layers * gpt2_block_params(width, bias) + 2 * width


def gpt2_step_flops(params: int, layers: int, width: int, samples: int, seq: int) -> int:
    """Floating-point operations of a forward and a backward on `samples` samples of `seq` tokens.

    6 a parameter and token, and 12C a layer, token and token attended to. Source: Chowdhery et al. 2022, appendix B.
    """
    return samples * seq * (6 * params + 12 * layers * width * seq)


def llama_block_params(width: int, inner: int, heads: int, kv_heads: int, features: int | None = None, qkv_bias: bool = False,
                       qk_norm: bool = False) -> int:
    """Parameters of one Llama block: queries and output, keys and values of fewer heads, three matrices, two norms.

    features: of a head; None: width / heads.   qkv_bias, qk_norm: as `LlamaShape` has them.
    """
    features = features or width // heads
    attention = 2 * width * features * (heads + kv_heads) + qkv_bias * features * (heads + 2 * kv_heads) + qk_norm * 2 * features
    return attention + 3 * width * inner + 2 * width


def block_flops(block: int, width: int, seq: int, samples: int, passes: int) -> int:
    """Floating-point operations of one block on `samples` samples of `seq` tokens, full attention counted.

    passes: 1 for a forward; 2 for a backward, whose attention computes the scores once more (five products, not four).
    """
    attention = {1: 4, 2: 10}[passes]
    return samples * seq * (2 * passes * block + attention * width * seq)
