"""Puts a cache into a model's attention for a forward, and takes it out again, so that the same weights can be trained in between.

Of our GPT the attention has a seam, `Attention.attend`; Hugging Face's models have one in `AttentionInterface`, by which queries and
keys come rotated. Under tensor parallelism every rank has a server of its own, and they make the same steps: each keeps the keys of
its own heads, and all get whole logits, so all choose the same tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..errors import BadInput
from ..models.gpt2 import GPT
from .cache import PagedCache

PAGED = "zerocourse_paged"  # our name among transformers' attentions
TOLD = ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings")  # by a config
OTHERWISE = ("sliding_window", "softcap", "s_aux", "position_bias")  # what some of its models ask of an attention besides
_active: list[PagedCache] = []  # of the forward that runs


@dataclass(frozen=True)
class Served:
    """What a server must know of a model.   positions: tokens of a sequence, at most.

    logits(tokens_R1, positions_R1) -> (R, V).   attending(cache): a context in which its layers attend to the cache.
    """

    layers: int
    kv_heads: int
    features: int
    positions: int
    logits: Callable[[Tensor, Tensor], Tensor]
    attending: Callable[[PagedCache], AbstractContextManager[None]]


def served(model: nn.Module) -> Served:
    """Our GPT, or a causal model of Hugging Face. Raises BadInput for others."""
    if isinstance(model, GPT):
        config = model.config
        features = config.n_embd // config.n_head
        return Served(config.n_layer, heads_here(model, "c_attn", 3 * features, config.n_head), features, config.block_size,
                      lambda tokens, places: model(tokens, positions_T=places)[:, 0], lambda cache: in_gpt(model, cache))
    config: Any = getattr(model, "config", None)
    if not hasattr(model, "set_attn_implementation") or not all(hasattr(config, name) for name in TOLD):
        raise BadInput(f"{type(model).__name__} is neither our GPT nor a causal model of Hugging Face whose config has {', '.join(TOLD)}")
    heads = config.num_attention_heads
    features = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = heads_here(model, "k_proj", features, getattr(config, "num_key_value_heads", None) or heads)
    return Served(config.num_hidden_layers, kv_heads, features, config.max_position_embeddings,
                  lambda tokens, places: model(input_ids=tokens, position_ids=places, use_cache=False).logits[:, 0],
                  lambda cache: in_hugging_face(model, cache))


def heads_here(model: nn.Module, projection: str, size: int, otherwise: int) -> int:
    """Heads of keys that this rank has: under tensor parallelism some of all, by what their projection gives.   size: of one head there."""
    for name, module in model.named_modules():
        features = getattr(module, "out_features", None)
        if name.rpartition(".")[2] == projection and isinstance(features, int):
            return features // size
    return otherwise


@contextmanager
def in_gpt(model: GPT, cache: PagedCache) -> Iterator[None]:
    def of_layer(layer: int) -> Callable:
        def attend(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, dropout_p: float) -> Tensor:  # (R, H, 1, D)
            return cache.attend(layer, q[:, :, 0], k[:, :, 0], v[:, :, 0])[:, :, None]
        return attend

    blocks: list[Any] = list(model.h)
    for layer, block in enumerate(blocks):
        block.attn.attend = of_layer(layer)
    try:
        yield
    finally:
        for block in blocks:
            del block.attn.attend  # the class's own is there again


@contextmanager
def in_hugging_face(model: Any, cache: PagedCache) -> Iterator[None]:
    from transformers import AttentionInterface

    AttentionInterface.register(PAGED, paged_attention)
    before = model.config._attn_implementation
    model.set_attn_implementation(PAGED)
    _active.append(cache)
    try:
        yield
    finally:
        _active.pop()
        model.set_attn_implementation(before)


def paged_attention(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: object, scaling: float | None = None, **others) -> tuple[Tensor, None]:
    """transformers' form: q (R, H, 1, D), k and v (R, K, 1, D); returns (R, 1, H, D). Raises BadInput for another attention."""
    asked = [name for name in OTHERWISE if others.get(name) is not None] + ["is_causal=False"] * (not getattr(module, "is_causal", True))
    if asked:
        raise BadInput(f"{type(module).__name__} attends with {', '.join(asked)}: the cache knows plain causal attention alone")
    return _active[-1].attend(module.layer_idx, q[:, :, 0], k[:, :, 0], v[:, :, 0], scaling)[:, None], None
