"""A model as a list of layers, each of which takes what the one before returned: what a pipeline cuts into stages.

The layers are the model's own modules, some of them together in a small wrapper, so weights that it shares stay shared.
"""

import torch
from torch import Tensor, nn

from ..errors import BadInput
from .gpt2 import GPT


def model_layers(model: nn.Module) -> list[nn.Module]:
    """Embedding, blocks, head: of our GPT-2, of Hugging Face's GPT2LMHeadModel, and of those built like its
    LlamaForCausalLM; or the modules of an nn.Sequential. The first takes tokens (B, T), the last returns logits (B, T,
    V).

    Raises BadInput for other models: give a pipeline their layers as a list. Masks for padding are not passed on.
    """
    if isinstance(model, nn.Sequential):
        return list(model)
    if isinstance(model, GPT):
        return [LearnedEmbedding(model.wte, model.wpe, model.drop), *model.h, NormAndHead(model.ln_f, model.lm_head)]
    body, head = getattr(model, "transformer", None), getattr(model, "lm_head", None)
    if all(hasattr(body, name) for name in ("wte", "wpe", "drop", "h", "ln_f")) and head is not None:
        return [LearnedEmbedding(body.wte, body.wpe, body.drop), *map(FirstOutput, body.h), NormAndHead(body.ln_f, head)]
    body = getattr(model, "model", None)
    if all(hasattr(body, name) for name in ("embed_tokens", "layers", "norm", "rotary_emb")) and head is not None:
        return [body.embed_tokens, *(Rotated(layer, body.rotary_emb) for layer in body.layers), NormAndHead(body.norm, head)]
    raise BadInput(f"{type(model).__name__} has no layers that are known here: give the pipeline a list of modules, of which "
                   "each takes what the one before returns")


class LearnedEmbedding(nn.Module):
    """Tokens (B, T) to activations (B, T, C): an embedding of the token and one of its place."""

    def __init__(self, wte: nn.Embedding, wpe: nn.Embedding, drop: nn.Module):
        super().__init__()
        self.wte, self.wpe, self.drop = wte, wpe, drop

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.drop(self.wte(tokens_BT) + self.wpe(torch.arange(tokens_BT.shape[1], device=tokens_BT.device)))


class NormAndHead(nn.Module):
    """Activations (B, T, C) to logits (B, T, V)."""

    def __init__(self, norm: nn.Module, head: nn.Module):
        super().__init__()
        self.norm, self.head = norm, head

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.head(self.norm(x_BTC))


class FirstOutput(nn.Module):
    """A block of Hugging Face, some of whose versions return a tuple."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, x_BTC: Tensor) -> Tensor:
        out = self.block(x_BTC)
        return out[0] if isinstance(out, tuple) else out


class Rotated(nn.Module):
    """A block that is given the rotations of its queries and keys, which each stage computes again: they are no
    weights. With sequence parallelism x has T/t of the T tokens, and the attention, which is to be rotated, has all."""

    def __init__(self, block: nn.Module, rotary: nn.Module):
        super().__init__()
        self.block, self.rotary = block, rotary

    def forward(self, x_BTC: Tensor) -> Tensor:
        tokens = x_BTC.shape[1] * getattr(self.block, "tokens_cut_by", 1)
        places_1T = torch.arange(tokens, device=x_BTC.device)[None]
        out = self.block(x_BTC, position_ids=places_1T, position_embeddings=self.rotary(x_BTC, places_1T))
        return out[0] if isinstance(out, tuple) else out
