"""Our attention as transformers calls it, by the name under which its models know it. It communicates nothing itself.

For the name HUGGING_FACE transformers makes no mask. For TRIAL it asks `plain_and_causal` for one, which answers by one
element: whether what the model would hide is what a plain causal mask hides, up to the longest sequence that it takes.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from ...errors import BadInput

HUGGING_FACE, TRIAL = "zerocourse_context", "zerocourse_context_trial"
LONGEST = ("block_size", "max_position_embeddings")  # in a model's config
HARMLESS = {"position_ids", "position_embeddings", "cache_position", "use_cache", "past_key_values", "num_items_in_batch",
            "output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "layer_idx"}


def register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    for name in (HUGGING_FACE, TRIAL):
        AttentionInterface.register(name, attend_in_hugging_face)
    AttentionMaskInterface.register(TRIAL, plain_and_causal)


def attend_in_hugging_face(module: nn.Module, query_BHtD: Tensor, key_BKtD: Tensor, value_BKtD: Tensor,
                           attention_mask: Tensor | None = None, dropout: float = 0.0, scaling: float | None = None,
                           is_causal: bool | None = None, **others) -> tuple[Tensor, None]:
    """As transformers calls it; the output is (B, t, H, D). Raises BadInput for what is not plain causal attention."""
    if not hasattr(module, "attend") or is_causal is False:
        raise BadInput(f"a {type(module).__name__} attends to tokens that come later: context_parallel has causal attention only")
    if attention_mask is not None and not (attention_mask.dtype == torch.bool and attention_mask.all()):
        raise BadInput(f"the mask of {module.attend.name} is not the plain causal one: context_parallel has no other, such as a "
                       "window, chunks or a bias by distance, and would leave it out")
    for name, value in others.items():
        if value is not None and name not in HARMLESS:
            raise BadInput(f"{module.attend.name} is called with {name}: context_parallel has plain causal attention only, and "
                           "would leave it out")
    out_BHtD = module.attend(query_BHtD, key_BKtD, value_BKtD, dropout_p=dropout, scale=scaling)
    return out_BHtD.transpose(1, 2).contiguous(), None  # some models take a view of it


def plain_and_causal(mask_function: Callable, config: object, device: torch.device = torch.device("cpu"), **_) -> Tensor:
    """In place of a mask: a bool (1, 1, 1, 1), whether the mask is the plain causal one. It is read at places spread over
    the longest sequence, because windows and chunks hide nothing in a short one."""
    most = longest(config) or 2**20
    queries, keys = (torch.linspace(0, most - 1, min(number, most), dtype=torch.float64, device=device).long()
                     for number in (65, 1025))
    first = torch.zeros((), dtype=torch.int64, device=device)
    try:
        visible = mask_function(first, first, queries[:, None], keys)
    except (IndexError, RuntimeError):  # it reads these tokens, as for images, and not places alone
        visible = torch.zeros((), dtype=torch.bool, device=device)
    return (visible == (keys <= queries[:, None])).all().view(1, 1, 1, 1)


def longest(config: object) -> int | None:
    """The most tokens of a sequence for which every token is placed as in any part of it; None where the config names none."""
    return min(limits(config), default=None)


def limits(config: object) -> Iterator[int]:
    for name in LONGEST:
        if getattr(config, name, None):
            yield getattr(config, name)
    rope = getattr(config, "rope_parameters", None) or {}
    for each in [rope, *rope.values()]:  # or one for each type of layer
        if isinstance(each, dict) and each.get("rope_type") == "longrope":  # the longest position of a rank decides on frequencies
            yield each.get("original_max_position_embeddings") or config.original_max_position_embeddings
