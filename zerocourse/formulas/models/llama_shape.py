"""The shape of a Llama and of its relatives (Mistral, Qwen). Numbers alone: nothing here imports torch."""

from typing import NamedTuple

from ..transformer import llama_block_params


class LlamaShape(NamedTuple):
    """features: of a head, D; None: C/H.   tied: the head is the token embedding.   qkv_bias: of queries, keys and values (Qwen 2).
    qk_norm: queries and keys pass a norm over a head's features, each of which has a weight (Qwen 3)."""

    layers: int
    width: int  # C
    inner: int  # of the feed-forward part
    heads: int  # H
    kv_heads: int  # K
    vocabulary: int  # V
    tokens: int  # of a sample, by default
    features: int | None = None
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def head_features(self) -> int:
        return self.features or self.width // self.heads

    @property
    def block(self) -> int:
        """Parameters of a block."""
        return llama_block_params(self.width, self.inner, self.heads, self.kv_heads, self.head_features, self.qkv_bias, self.qk_norm)

    @property
    def params(self) -> int:
        """Parameters of the model, a tied head counted once."""
        return self.layers * self.block + (2 - self.tied) * self.vocabulary * self.width + self.width
