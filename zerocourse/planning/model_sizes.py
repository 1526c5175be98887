"""A model's sizes: the parameters of its blocks and of the rest, and what a token costs in it. Builds no model."""

from dataclasses import dataclass

from ..formulas.token_costs import TokenCosts, gpt2_token, llama_token
from ..formulas.transformer import gpt2_block_params, llama_block_params
from ..simulation.shapes import GPTS, LLAMAS, find_model


@dataclass(frozen=True)
class ModelSizes:
    """family: "gpt2" or "llama".   inner: of the feed-forward part.   kv_width: of keys, and of values.   tokens: of a sample, at most.

    before, block, after: parameters before the blocks, of one block, and after the blocks.
    """

    name: str
    family: str
    layers: int
    width: int
    inner: int
    heads: int
    kv_width: int
    vocabulary: int
    tokens: int
    before: int
    block: int
    after: int

    @property
    def params(self) -> int:
        return self.before + self.layers * self.block + self.after

    @property
    def tied(self) -> bool:
        """Is the head the embedding?"""
        return self.after < self.vocabulary * self.width

    @property
    def kv_heads(self) -> int:
        return self.kv_width // (self.width // self.heads)

    def token(self, element: int, recompute: bool) -> TokenCosts:
        """element: bytes of a number, 2 or 4."""
        if self.family == "gpt2":
            return gpt2_token(self.width, self.heads, self.vocabulary, element, recompute)
        return llama_token(self.width, self.inner, self.heads, self.kv_width, self.vocabulary, element, recompute)


def find_sizes(name: str) -> ModelSizes:
    """Raises BadInput for a name that is not known."""
    find_model(name)  # complains where it is not known
    if name in GPTS:
        config = GPTS[name]
        block = gpt2_block_params(config.n_embd, config.bias)
        after = 2 * config.n_embd + (0 if config.tied else config.vocab_size * config.n_embd)
        return ModelSizes(name, "gpt2", config.n_layer, config.n_embd, 4 * config.n_embd, config.n_head,
                          config.n_embd, config.vocab_size, config.block_size,
                          config.params - config.n_layer * block - after, block, after)
    shape = LLAMAS[name]
    embedding = shape.vocabulary * shape.width
    return ModelSizes(name, "llama", shape.layers, shape.width, shape.inner, shape.heads,
                      shape.width // shape.heads * shape.kv_heads, shape.vocabulary, shape.tokens, embedding,
                      llama_block_params(shape.width, shape.inner, shape.heads, shape.kv_heads),
                      shape.width + embedding)
