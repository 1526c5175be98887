"""From a model to one whose sequences are cut over ranks: only its attention changes, the rest treats each token by itself.

    model = context_parallel(model, comm, "ring")                       # comm: the ranks that share a sequence
    model, optimizer = zerocourse.shard(model, optimizer, stage=3)      # over these ranks, and those with other sequences
    cut = cut_tokens(tokens_BT, comm.rank, comm.world_size, "zigzag")   # "contiguous" for Ulysses
    loss = token_loss(model(cut.tokens_BT, positions_T=cut.positions_T), cut.targets_BT, all_ranks)

The weights are whole on every rank or cut by ZeRO, which takes these ranks for data-parallel ones.
"""

import inspect
from functools import partial

from torch import nn

from ...comm import Comm
from ...errors import BadInput, ZeroCourseError
from .in_hugging_face import longest, register
from .ring_attention import RingAttention
from .token_cut import positions_of
from .trial import TOKENS, try_token_by_token
from .ulysses import Ulysses

KINDS = {"ulysses": Ulysses, "ring": RingAttention}
ORDERS = {"ulysses": "contiguous", "ring": "zigzag"}  # in which each takes the tokens
POSITIONS = ("positions_T", "position_ids")
LABELS = ("targets_BT", "labels")


def context_parallel(model: nn.Module, comm: Comm, kind: str = "ring") -> nn.Module:
    """Let the causal attention of `model` run over the ranks of `comm`; in place, before or after `shard`.

    model: of `models.gpt2`, or of Hugging Face. From now on it takes this rank's tokens with their positions
        (`positions_T` or `position_ids`), and no labels and no mask: see `cut_tokens` and `token_loss`.
    kind: "ulysses" (tokens cut contiguously) or "ring" (zigzag).
    Raises BadInput for another kind or model, for attention that is not plain and causal, for layers of Hugging Face's that
    mix tokens otherwise (see `trial`, which runs a few tokens), and, at each call, for tokens without positions, for those of
    the other order, for labels, for an attention mask, and for a sequence that is longer than the model's positions.
    """
    if kind not in KINDS:
        raise BadInput(f"kind is {kind!r}: it must be {' or '.join(map(repr, KINDS))}")
    layers = {name: module for name, module in model.named_modules() if hasattr(module, "attend") or
              getattr(module, "is_causal", False)}
    if not layers:
        raise BadInput(f"{type(model).__name__} has no causal attention that context_parallel knows: it takes a GPT of "
                       "zerocourse.models.gpt2, or a decoder of Hugging Face")
    attends = {name: KINDS[kind](comm, name) for name in layers}
    if hasattr(model, "set_attn_implementation"):
        use_in_hugging_face(model, layers)
    for name, module in layers.items():
        module.attend = attends[name]
    model.register_forward_pre_hook(partial(check_call, comm=comm, order=ORDERS[kind]), with_kwargs=True)
    return model


def use_in_hugging_face(model: nn.Module, layers: dict[str, nn.Module]) -> None:
    """Let the model call our attention, if that is all it needs; else it stays as it was."""
    before, kind = model.config._attn_implementation, type(model).__name__
    for setting in ("sliding_window", "attn_logit_softcapping"):
        if getattr(model.config, setting, None):
            raise BadInput(f"the config of {kind} has {setting}={getattr(model.config, setting)!r}: context_parallel has plain "
                           "causal attention only, and would leave it out")
    if any(param.is_meta for param in model.parameters()):
        raise BadInput(f"the parameters of {kind} are on the meta device, and context_parallel tries the model on a few tokens: call "
                       "it after `shard`, which gives them values")
    register()
    try:
        try_token_by_token(model, layers)
    except BaseException as error:
        model.set_attn_implementation(before)
        for module in layers.values():
            del module.attend
        if isinstance(error, ZeroCourseError) or not isinstance(error, Exception):
            raise
        raise BadInput(f"{kind} cannot run on {TOKENS} tokens with their position_ids, by which context_parallel tries it: "
                       f"{type(error).__name__}: {error}") from error


def check_call(model: nn.Module, args: tuple, kwargs: dict, comm: Comm, order: str) -> None:
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
    positions = given[next(name for name in POSITIONS if name in given)]
    tokens = positions.shape[-1] * comm.world_size
    most = longest(model.config) or tokens
    if tokens > most:
        raise BadInput(f"{comm.world_size} ranks have {tokens} tokens of a sequence together, and {type(model).__name__} has "
                       f"{most} positions")
    other = "contiguous" if order == "zigzag" else "zigzag"
    if comm.world_size > 1 and tokens % (2 * comm.world_size) == 0 and (
            positions == positions_of(comm.rank, comm.world_size, tokens, other).to(positions.device)).all():
        raise BadInput(f"the tokens are cut in {other} order, and this attention would mask them as if they were in {order} order: "
                       f'call cut_tokens with order="{order}"')
