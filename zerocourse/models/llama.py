"""A Llama: what Hugging Face's LlamaForCausalLM computes, with its names of parameters, in their order. It communicates nothing.
Mistral and Qwen 2 and 3 are of the same make, with what `LlamaShape` has besides.

Shapes: B batch, T tokens, C width, H heads, K heads of keys and values, D = C/H, V vocabulary. `x_BTC` has the shape (B, T, C).
Source: Touvron et al. 2023 (arXiv 2302.13971), with the grouped keys and values of arXiv 2307.09288.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..formulas.models.llama_shape import LlamaShape

BASE = 10000.0  # of the rotations: the slowest pair of features turns once in about 2π times as many tokens
IGNORED = -100  # a target that does not count


class RMSNorm(nn.Module):
    """x over its root mean square, times a weight. Computes in fp32, whatever the dtype of x."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_BTC: Tensor) -> Tensor:
        dtype = x_BTC.dtype
        x_BTC = x_BTC.float()
        x_BTC = x_BTC * torch.rsqrt(x_BTC.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x_BTC.to(dtype)


class Rotations(nn.Module):
    """The cosines and sines by which queries and keys are turned, (1, T, D) each, in the dtype of x. It has no parameters."""

    def __init__(self, features: int):
        super().__init__()
        turns = BASE ** -(torch.arange(0, features, 2).float() / features)  # radians a token, of a pair of features
        self.register_buffer("turns_D", torch.cat((turns, turns)), persistent=False)

    def forward(self, x_BTC: Tensor, places_1T: Tensor) -> tuple[Tensor, Tensor]:
        angles_1TD = places_1T[..., None].float() * self.turns_D.float()
        return angles_1TD.cos().to(x_BTC.dtype), angles_1TD.sin().to(x_BTC.dtype)


def turned(x_BHTD: Tensor, cos_1TD: Tensor, sin_1TD: Tensor) -> Tensor:
    """Each feature of the first half is turned together with its fellow in the second."""
    half = x_BHTD.shape[-1] // 2
    in_place = x_BHTD * cos_1TD[:, None]
    return in_place + torch.cat((-x_BHTD[..., half:], x_BHTD[..., :half]), dim=-1) * sin_1TD[:, None]


class GroupedAttention(nn.Module):
    """Causal self-attention, in which H / K heads of queries share one of keys and values."""

    def __init__(self, shape: LlamaShape):
        super().__init__()
        self.features = shape.head_features  # D
        wide, narrow = shape.heads * self.features, shape.kv_heads * self.features
        self.q_proj = nn.Linear(shape.width, wide, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(shape.width, narrow, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(shape.width, narrow, bias=shape.qkv_bias)
        self.o_proj = nn.Linear(wide, shape.width, bias=False)
        self.q_norm, self.k_norm = (RMSNorm(self.features) if shape.qk_norm else nn.Identity() for _ in range(2))

    def forward(self, x_BTC: Tensor, rotations: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (linear(x_BTC).unflatten(-1, (-1, self.features)).transpose(1, 2)  # (B, H or K, T, D)
                   for linear in (self.q_proj, self.k_proj, self.v_proj))
        q, k = turned(self.q_norm(q), *rotations), turned(self.k_norm(k), *rotations)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] < q.shape[1])
        return self.o_proj(y.transpose(1, 2).flatten(2))


class GatedMLP(nn.Module):
    def __init__(self, shape: LlamaShape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x_BTC)) * self.up_proj(x_BTC))


class LlamaBlock(nn.Module):
    """A transformer block, which is one unit of ZeRO. It is given what Hugging Face's is, so that `model_layers` cuts both alike."""

    def __init__(self, shape: LlamaShape):
        super().__init__()
        self.self_attn, self.mlp = GroupedAttention(shape), GatedMLP(shape)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(shape.width), RMSNorm(shape.width)

    def forward(self, x_BTC: Tensor, position_ids: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        x_BTC = x_BTC + self.self_attn(self.input_layernorm(x_BTC), position_embeddings)
        return x_BTC + self.mlp(self.post_attention_layernorm(x_BTC))


class LlamaBody(nn.Module):
    """All but the head: tokens (B, T) to activations (B, T, C)."""

    def __init__(self, shape: LlamaShape):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(LlamaBlock(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width)
        self.rotary_emb = Rotations(shape.head_features)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTC, places_1T = self.embed_tokens(tokens_BT), torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
        rotations = self.rotary_emb(x_BTC, places_1T)
        for block in self.layers:
            x_BTC = block(x_BTC, position_ids=places_1T, position_embeddings=rotations)
        return self.norm(x_BTC)


class Llama(nn.Module):
    """A decoder whose values are random, normal with a deviation of 0.02."""

    def __init__(self, shape: LlamaShape):
        super().__init__()
        self.shape, self.model = shape, LlamaBody(shape)
        self.lm_head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        if shape.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """The mean cross entropy of each next token, an fp32 scalar. Tokens are int64 in 0..V-1."""
        return self.loss(self.lm_head(self.model(tokens_BT)), F.pad(tokens_BT, (0, 1), value=IGNORED)[:, 1:].contiguous())

    def loss(self, logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        """The mean cross entropy over the targets that count, in fp32 whatever the weights are."""
        return F.cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORED)
