"""A model's sizes: the parameters of its blocks and of the rest, and what a token costs in it. Builds no model."""

from dataclasses import dataclass

from ..formulas.gpt2_config import GPTConfig
from ..formulas.models.token_costs import TokenCosts, gpt2_token, llama_token
from ..formulas.transformer import gpt2_block_params
from ..simulation.shapes import shape_of


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
    features: int = 0  # of a head; 0: width / heads
    qk_norm: bool = False

    @property
    def params(self) -> int:
        return self.before + self.layers * self.block + self.after

    @property
    def tied(self) -> bool:
        """Is the head the embedding?"""
        return self.after < self.vocabulary * self.width

    @property
    def kv_heads(self) -> int:
        return self.kv_width // (self.features or self.width // self.heads)

    def token(self, element: int, recompute: bool) -> TokenCosts:
        """element: bytes of a number, 2 or 4."""
        if self.family == "gpt2":
            return gpt2_token(self.width, self.heads, self.vocabulary, element, recompute)
        return llama_token(self.width, self.inner, self.heads, self.kv_width, self.vocabulary, element, recompute,
                           self.features * self.heads, self.qk_norm)


def find_sizes(name: str) -> ModelSizes:
    """name: or the path of a Hugging Face `config.json`. Raises BadInput for one that is not known."""
    config = shape_of(name)
    if isinstance(config, GPTConfig):
        block = gpt2_block_params(config.n_embd, config.bias)
        after = 2 * config.n_embd + (0 if config.tied else config.vocab_size * config.n_embd)
        return ModelSizes(name, "gpt2", config.n_layer, config.n_embd, 4 * config.n_embd, config.n_head,
                          config.n_embd, config.vocab_size, config.block_size,
                          config.params - config.n_layer * block - after, block, after)
    embedding = config.vocabulary * config.width
    return ModelSizes(name, "llama", config.layers, config.width, config.inner, config.heads,
                      config.head_features * config.kv_heads, config.vocabulary, config.tokens, embedding, config.block,
                      config.width + (0 if config.tied else embedding), config.head_features, config.qk_norm)
