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
from ..parallel.context.in_hugging_face import longest
from .cache import PagedCache

PAGED = "zerocourse_paged"  # our name among transformers' attentions
TOLD = ("num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings")  # by a config
OTHERWISE = ("sliding_window", "softcap", "s_aux", "position_bias")  # what some of its models ask of an attention besides
_active: list[PagedCache] = []  # of the forward that runs


@dataclass(frozen=True)
class Served:
    """What a server must know of a model.   positions: tokens of a sequence, at most.   behind: why no more, where its config has more.

    logits(tokens_R1, positions_R1) -> (R, V).   attending(cache): a context in which its layers attend to the cache.
    """

    layers: int
    kv_heads: int
    features: int
    positions: int
    logits: Callable[[Tensor, Tensor], Tensor]
    attending: Callable[[PagedCache], AbstractContextManager[None]]
    behind: str = ""


def served(model: nn.Module) -> Served:
    """Our GPT, or a causal model of Hugging Face. Raises BadInput for others."""
    if isinstance(model, GPT):
        config = model.config
        features = config.n_embd // config.n_head
        return Served(config.n_layer, heads_here(model, "c_attn", 3 * features, config.n_head), features, config.block_size,
                      lambda tokens, places: model(tokens, positions_T=places)[:, 0], lambda cache: in_gpt(model, cache))
    config: Any = getattr(model, "config", None)
    if not hasattr(model, "set_attn_implementation") or not all(getattr(config, name, None) for name in TOLD):
        raise BadInput(f"{type(model).__name__} is neither our GPT nor a causal model of Hugging Face whose config has {', '.join(TOLD)}")
    if asked := list(untold(config)):
        raise BadInput(f"{type(model).__name__} attends with {', '.join(asked)}: the cache knows plain causal attention alone")
    most = config.max_position_embeddings
    positions = longest(config) or most
    heads = config.num_attention_heads
    features = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = heads_here(model, "k_proj", features, getattr(config, "num_key_value_heads", None) or heads)
    return Served(config.num_hidden_layers, kv_heads, features, positions,
                  lambda tokens, places: model(input_ids=tokens, position_ids=places, use_cache=False).logits[:, 0],
                  lambda cache: in_hugging_face(model, cache),
                  f": its config has {most}, but behind {positions} longrope places all tokens of a forward anew" if positions < most else "")


def untold(config: Any) -> Iterator[str]:
    """What layers do besides, and no attention is told: chunks are in a mask alone, and Llama 4 scales queries by the length of transformers'
    cache, which is empty here."""
    chunk, chunked = getattr(config, "attention_chunk_size", None), "chunked_attention"
    if chunk and chunked in (getattr(config, "layer_types", None) or [chunked]):
        yield f"attention_chunk_size={chunk}"
    if getattr(config, "attn_temperature_tuning", False):
        yield "attn_temperature_tuning=True"


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


def paged_attention(module: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None = None, scaling: float | None = None,
                    **others) -> tuple[Tensor, None]:
    """transformers' form: q (R, H, 1, D), k and v (R, K, 1, D); returns (R, 1, H, D). It makes no mask for our name, so one that is there is
    the model's own. Raises BadInput for another attention."""
    cache, who = _active[-1], type(module).__name__
    asked = [name for name in OTHERWISE if others.get(name) is not None] + ["is_causal=False"] * (not getattr(module, "is_causal", True))
    asked += ["a mask of its own"] * (attention_mask is not None)
    if asked:
        raise BadInput(f"{who} attends with {', '.join(asked)}: the cache knows plain causal attention alone")
    if module.layer_idx in cache.attended:
        raise BadInput(f"layer {module.layer_idx} of {who} attends twice in one forward: the cache has one key of a token for each layer, "
                       "and the second would replace the first")
    room, features = cache.heads
    for what, given in (("keys", k), ("values", v)):
        if given.shape[1] not in (1, room) or given.shape[3] != features:  # one head, which all queries read, may stand in each of the cache's
            raise BadInput(f"layer {module.layer_idx} of {who} has {what} of {given.shape[1]} heads with {given.shape[3]} features, and the cache "
                           f"has {room} with {features}: keys and values of all layers must be as the config says")
    return cache.attend(module.layer_idx, q[:, :, 0], k[:, :, 0], v[:, :, 0], scaling)[:, None], None
