"""Which modules of a model become what under tensor parallelism: names with * for a block's number.

Of our GPT-2, our Llama and Hugging Face's the plans are here; another model's is a `TensorPlan` of one's own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from ...errors import BadInput


@dataclass(frozen=True)
class Columns:
    """A linear layer whose outputs are cut. parts: matrices side by side in it (3: queries, keys, values).

    groups: heads, which are not cut through; None: single features.
    """

    groups: int | None = None
    parts: int = 1


@dataclass(frozen=True)
class TensorPlan:
    """entered: modules inside of which the ranks compute apart; f stands before each, once for all its column layers.

    columns, rows: linear layers by name; a row layer gives the groups that its inputs are cut by, as their columns were.
    embedding, head: of the vocabulary; None: whole on every rank.   blocks: of the transformer, in order: where tokens
    are cut with sequence parallelism.   norms, dropouts: between the regions, which then see T/t tokens.
    random: modules with dropout inside of a region.   attributes: what a module must know of its own size.
    """

    entered: Sequence[str]
    columns: Mapping[str, Columns]
    rows: Mapping[str, int | None]
    embedding: str | None = None
    head: str | None = None
    blocks: str = ""
    norms: Sequence[str] = ()
    dropouts: Sequence[str] = ()
    random: Sequence[str] = ()
    attributes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def gpt2(model: nn.Module, ranks: int) -> TensorPlan:
    heads = model.config.n_head
    return TensorPlan(
        entered=("h.*.attn", "h.*.mlp"), columns={"h.*.attn.c_attn": Columns(heads, parts=3), "h.*.mlp.c_fc": Columns()},
        rows={"h.*.attn.c_proj": heads, "h.*.mlp.c_proj": None}, embedding="wte", head="lm_head", blocks="h.*",
        norms=("h.*.ln_1", "h.*.ln_2", "ln_f"), dropouts=("h.*.drop",), random=("h.*.attn",))


def llama(model: nn.Module, ranks: int) -> TensorPlan:
    return of_llama(model.config.num_attention_heads, model.config.num_key_value_heads, ranks)


def own_llama(model: nn.Module, ranks: int) -> TensorPlan:
    """Of `models.llama`, which has no dropout, and reads the numbers of heads from what it is given."""
    shape: Any = model.shape
    if shape.qk_norm:
        raise BadInput("the norms of queries and keys (Qwen 3) see a rank's own heads alone, and their gradients would have to be "
                       "added up: tensor parallelism has no plan for them")
    return replace(of_llama(shape.heads, shape.kv_heads, ranks), random=(), attributes={})


def of_llama(heads: int, kv_heads: int, ranks: int) -> TensorPlan:
    attention, mlp, norm = (f"model.layers.*.{name}" for name in ("self_attn", "mlp", "{}_layernorm"))
    return TensorPlan(
        entered=(attention, mlp),
        columns={f"{attention}.q_proj": Columns(heads), f"{attention}.k_proj": Columns(kv_heads),
                 f"{attention}.v_proj": Columns(kv_heads), f"{mlp}.gate_proj": Columns(), f"{mlp}.up_proj": Columns()},
        rows={f"{attention}.o_proj": heads, f"{mlp}.down_proj": None}, embedding="model.embed_tokens", head="lm_head",
        blocks="model.layers.*", norms=(norm.format("input"), norm.format("post_attention"), "model.norm"),
        random=(attention,), attributes={attention: {"num_key_value_groups": heads // max(kv_heads, ranks)}})


PLANS: dict[str, Callable[[nn.Module, int], TensorPlan]] = {"GPT": gpt2, "LlamaForCausalLM": llama, "Llama": own_llama}


def plan_of(model: nn.Module, ranks: int) -> TensorPlan:
    """The plan for a model of this kind. Raises BadInput."""
    for kind in type(model).__mro__:
        if kind.__name__ in PLANS:
            return PLANS[kind.__name__](model, ranks)
    raise BadInput(f"there is no plan by which to cut a {type(model).__name__}: give `plan`, a TensorPlan with the names of "
                   f"its modules (there are plans for {' and '.join(PLANS)})")
