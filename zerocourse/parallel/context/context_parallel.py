"""From a model to one whose sequences are cut over ranks: only its attention changes, the rest treats each token by itself.

    model = context_parallel(model, comm, "ring")                       # comm: the ranks that share a sequence
    model, optimizer = zerocourse.shard(model, optimizer, stage=3)      # over these ranks, and those with other sequences
    cut = cut_tokens(tokens_BT, comm.rank, comm.world_size, "zigzag")   # "contiguous" for Ulysses
    loss = token_loss(model(cut.tokens_BT, positions_T=cut.positions_T), cut.targets_BT, all_ranks)

The weights are whole on every rank or cut by ZeRO, which takes these ranks for data-parallel ones.
"""

import inspect
from functools import partial

from torch import Tensor, nn

from ...comm import Comm
from ...errors import BadInput
from .ring_attention import RingAttention
from .ulysses import Ulysses

KINDS = {"ulysses": Ulysses, "ring": RingAttention}
HUGGING_FACE = "zerocourse_context"  # what its models know our attention as
POSITIONS = ("positions_T", "position_ids")
LABELS = ("targets_BT", "labels")
LONGEST = ("block_size", "max_position_embeddings")  # in a model's config


def context_parallel(model: nn.Module, comm: Comm, kind: str = "ring") -> nn.Module:
    """Let the causal attention of `model` run over the ranks of `comm`; in place, before or after `shard`.

    model: of `models.gpt2`, or of Hugging Face. From now on it takes this rank's tokens with their positions
        (`positions_T` or `position_ids`), and no labels and no mask: see `cut_tokens` and `token_loss`.
    kind: "ulysses" (tokens cut contiguously) or "ring" (zigzag).
    Raises BadInput for another kind or model, for attention that is not plain and causal, and, at each call, for tokens
    without positions, for labels, for an attention mask, and for a sequence that is longer than the model's positions.
    """
    if kind not in KINDS:
        raise BadInput(f"kind is {kind!r}: it must be {' or '.join(map(repr, KINDS))}")
    layers = {name: module for name, module in model.named_modules() if hasattr(module, "attend") or
              getattr(module, "is_causal", False)}
    if not layers:
        raise BadInput(f"{type(model).__name__} has no causal attention that context_parallel knows: it takes a GPT of "
                       "zerocourse.models.gpt2, or a decoder of Hugging Face")
    if hasattr(model, "set_attn_implementation"):
        use_in_hugging_face(model)
    for name, module in layers.items():
        module.attend = KINDS[kind](comm, name)
    model.register_forward_pre_hook(partial(check_call, world_size=comm.world_size), with_kwargs=True)
    return model


def use_in_hugging_face(model: nn.Module) -> None:
    """Register our attention with transformers, which makes no mask for it."""
    from transformers import AttentionInterface

    for setting in ("sliding_window", "attn_logit_softcapping"):
        if getattr(model.config, setting, None):
            raise BadInput(f"the config of {type(model).__name__} has {setting}={getattr(model.config, setting)!r}: "
                           "context_parallel has plain causal attention only, and would leave it out")
    AttentionInterface.register(HUGGING_FACE, attend_in_hugging_face)
    model.set_attn_implementation(HUGGING_FACE)


def attend_in_hugging_face(module: nn.Module, query_BHtD: Tensor, key_BKtD: Tensor, value_BKtD: Tensor,
                           attention_mask: Tensor | None = None, dropout: float = 0.0, scaling: float | None = None,
                           **others) -> tuple[Tensor, None]:
    """As transformers calls it; the output is (B, t, H, D)."""
    return module.attend(query_BHtD, key_BKtD, value_BKtD, dropout_p=dropout, scale=scaling).transpose(1, 2), None


def check_call(model: nn.Module, args: tuple, kwargs: dict, world_size: int) -> None:
    """Before each forward: what would be computed in silence, and wrongly, is refused."""
    given = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
    given = {name: value for name, value in (given | given.get("kwargs", {})).items() if value is not None}
    if not any(name in given for name in POSITIONS):
        raise BadInput(f"a part of a sequence needs its positions, because {type(model).__name__} would count from 0: pass "
                       "those of cut_tokens as positions_T, or to a model of Hugging Face as position_ids")
    for name in LABELS:
        if name in given:
            raise BadInput(f"{type(model).__name__} was given {name}, and would average over this rank's tokens alone: take "
                           "its logits, and compute the loss by token_loss")
    if "attention_mask" in given:
        raise BadInput("context_parallel has the causal mask only, and would leave the attention_mask out: pad on the right, "
                       "where targets of -100 are enough, and pass none")
    tokens = given[next(name for name in POSITIONS if name in given)].shape[-1] * world_size
    longest = next((getattr(model.config, name) for name in LONGEST if hasattr(model.config, name)), tokens)
    if tokens > longest:
        raise BadInput(f"{world_size} ranks have {tokens} tokens of a sequence together, and {type(model).__name__} has "
                       f"{longest} positions")
