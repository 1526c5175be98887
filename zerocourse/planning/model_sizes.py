"""A model's sizes: the parameters of its blocks and of the rest, and what a token costs in it. Builds no model."""

from dataclasses import dataclass, replace

from ..formulas.gpt2_config import GPTConfig
from ..formulas.models.llama_shape import LlamaShape
from ..formulas.models.mixture_shape import MixtureShape
from ..formulas.models.token_costs import TokenCosts, gpt2_token, llama_token, mixture_token
from ..formulas.transformer import gpt2_block_params
from ..simulation.shapes import shape_of


@dataclass(frozen=True)
class ModelSizes:
    """family: "gpt2" or "llama", a mixture among them.   inner: of the feed-forward part, or of an expert.
    kv_width: of keys, and of values.   tokens: of a sample, at most.

    before, block, after: parameters before the blocks, of one block, and after the blocks.
    experts: of a block, with `expert` parameters each, which are not in `block`; a token takes k of them.
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
    experts: int = 0
    k: int = 0

    @property
    def expert(self) -> int:
        return 3 * self.width * self.inner

    @property
    def params(self) -> int:
        return self.before + self.layers * (self.block + self.experts * self.expert) + self.after

    @property
    def used(self) -> int:
        """Parameters of a block that one token uses."""
        return self.block + self.k * self.expert

    @property
    def tied(self) -> bool:
        """Is the head the embedding?"""
        return self.after < self.vocabulary * self.width

    @property
    def kv_heads(self) -> int:
        return self.kv_width // (self.features or self.width // self.heads)

    def token(self, element: int, recompute: bool, experts_over: int = 1) -> TokenCosts:
        """element: bytes of a number, 2 or 4.   experts_over: ranks with different experts."""
        if self.family == "gpt2":
            return gpt2_token(self.width, self.heads, self.vocabulary, element, recompute)
        if self.experts:
            return mixture_token(self.width, self.inner, self.heads, self.kv_width, self.vocabulary, element, recompute,
                                 self.features * self.heads, self.qk_norm, self.experts, self.k, experts_over > 1)
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
    if isinstance(config, MixtureShape):
        router = config.experts * config.dense.width
        dense = _llama(name, config.dense)
        return replace(dense, block=dense.block - config.expert + router, experts=config.experts, k=config.k)
    return _llama(name, config)


def _llama(name: str, config: LlamaShape) -> ModelSizes:
    embedding = config.vocabulary * config.width
    return ModelSizes(name, "llama", config.layers, config.width, config.inner, config.heads,
                      config.head_features * config.kv_heads, config.vocabulary, config.tokens, embedding, config.block,
                      config.width + (0 if config.tied else embedding), config.head_features, config.qk_norm)
