"""Tries a model of Hugging Face on a few tokens, before its sequences are cut: does a token see others in attention alone?

In place of attention stands a function that lets no token see another. Then two things must hold, whatever the model is:

    a token that is NaN makes no other one NaN       else something that stays on a rank mixes tokens: attention that does
                                                     not go through transformers' interface, a convolution, a recurrence
    a part of the tokens, with its positions, has    else something counts tokens from the rank's own first, or begins to count
    the queries and keys that it has in the whole    positions elsewhere than at 0

And what is handed to attention beside queries, keys and values must say plain causal attention, at any length. One process
alone finds all of that, without a message; under ZeRO the forwards gather parameters as others do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ...errors import BadInput
from ...models.evaluating import evaluating
from .in_hugging_face import HUGGING_FACE, TRIAL
from .token_cut import positions_of

TOKENS, TAINTED = 8, 3  # tokens of the trial, and the one that becomes NaN


class TokenByToken:
    """In a trial, a layer's attention: each token gets its own value, changed by its own query and key."""

    def __init__(self, name: str):
        self.name, self.queries_and_keys = name, []

    def __call__(self, q_BHtD: Tensor, k_BKtD: Tensor, v_BKtD: Tensor, dropout_p: float = 0.0,
                 scale: float | None = None) -> Tensor:
        self.queries_and_keys.append((q_BHtD, k_BKtD))
        own_BKtD = v_BKtD + k_BKtD.mean(-1, keepdim=True)
        return own_BKtD.repeat_interleave(q_BHtD.shape[1] // k_BKtD.shape[1], dim=1) + q_BHtD.mean(-1, keepdim=True)


def try_token_by_token(model: nn.Module, layers: dict[str, nn.Module]) -> None:
    """Raises BadInput for a model in which tokens see each other otherwise than by the attention of `layers`."""
    attention = {name: TokenByToken(name) for name in layers}
    for name, module in layers.items():
        module.attend = attention[name]
    embedding, kind = model.get_input_embeddings(), type(model).__name__
    tokens = torch.arange(1, TOKENS + 1, device=next(model.parameters()).device)[None] % embedding.num_embeddings
    positions = torch.arange(TOKENS, device=tokens.device)[None]
    part = positions_of(0, 2, TOKENS, "zigzag").to(tokens.device)  # 0, 1, 6 and 7

    def run(where: Tensor, **options: Tensor) -> tuple[Tensor, list[tuple[str, Tensor]]]:
        """The logits, and each query and key by its layer."""
        for each in attention.values():
            each.queries_and_keys.clear()
        logits = model(tokens[:, where], use_cache=False, **options).logits
        return logits, [(each.name, tensor) for each in attention.values() for pair in each.queries_and_keys for tensor in pair]

    def taint(module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        return output.index_fill(1, positions[0, TAINTED:TAINTED + 1], float("nan"))

    with evaluating(model):
        model.set_attn_implementation(TRIAL)
        logits, whole = run(positions[0])
        model.set_attn_implementation(HUGGING_FACE)
        if not logits.isfinite().all():
            raise BadInput(f"{kind} computes NaN or inf of plain tokens: give it its values before context_parallel tries it")
        _, cut = run(part, position_ids=positions[:, part])
        for (name, of_whole), (_, of_part) in zip(whole, cut, strict=True):
            apart = (of_whole[:, :, part] - of_part).abs().max()
            if apart > 2 * torch.finfo(of_whole.dtype).eps ** 0.5 * of_whole.abs().max():
                raise BadInput(f"{kind} computes other queries or keys in {name} for a part of a sequence with its position_ids than "
                               "for the whole: something before it mixes tokens, or does not place the first one at 0")
        hook = embedding.register_forward_hook(taint)
        try:
            with watching(model) as spread:
                tainted, _ = run(positions[0], position_ids=positions)
        finally:
            hook.remove()
        if others(tainted).isnan().any():
            raise BadInput(f"{kind} mixes tokens in {next(iter(spread), 'its own code')}, otherwise than by attention that goes "
                           "through transformers' AttentionInterface: each rank would mix its own tokens alone")


@contextmanager
def watching(model: nn.Module) -> Iterator[dict[str, None]]:
    """The modules whose outputs have NaN in another than the tainted token, in the order in which they end."""
    spread: dict[str, None] = {}

    def look(name: str) -> Callable:
        def after(module, args, output):
            first = output[0] if isinstance(output, tuple) and output else output
            if isinstance(first, Tensor) and first.is_floating_point() and TOKENS in first.shape[1:] \
                    and others(first, first.shape.index(TOKENS, 1)).isnan().any():
                spread.setdefault(name)
        return after

    hooks = [module.register_forward_hook(look(name)) for name, module in model.named_modules() if name]
    try:
        yield spread
    finally:
        for hook in hooks:
            hook.remove()


def others(tensor: Tensor, dim: int = 1) -> Tensor:
    """All tokens but the tainted one."""
    return torch.cat([tensor.narrow(dim, 0, TAINTED), tensor.narrow(dim, TAINTED + 1, TOKENS - TAINTED - 1)], dim)
