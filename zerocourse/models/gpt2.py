"""GPT-2, the model on which every stage is tried. It communicates nothing, and it has no buffers.

Shapes: B batch, T tokens, C width (n_embd), H heads, V vocabulary. `x_BTC` has the shape (B, T, C).
Source: Radford et al. 2019; parameter names follow the published checkpoints.
"""

from dataclasses import fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadInput
from ..formulas.gpt2_config import CONFIGS, GPTConfig, find_config

__all__ = ["CONFIGS", "GPT", "GPTConfig", "build_model", "find_config", "generate"]


class Attention(nn.Module):
    """Causal self-attention. `attend` computes it, and context parallelism puts another function in its place."""

    attend = staticmethod(F.scaled_dot_product_attention)

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.n_head, self.dropout = config.n_head, config.dropout
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)  # queries, keys and values
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x_BTC: Tensor) -> Tensor:
        B, T, C = x_BTC.shape
        heads = self.c_attn(x_BTC).view(B, T, 3, -1, C // self.n_head)  # -1: a rank may have some of the heads only
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # each (B, H, T, C/H)
        dropout = self.dropout if self.training else 0.0
        y = self.attend(q, k, v, is_causal=True, dropout_p=dropout)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x_BTC), approximate="tanh"))


class Block(nn.Module):
    """A transformer block, which is one unit of ZeRO: stage 3 gathers, uses and frees it as a whole."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(config.n_embd), Attention(config)
        self.ln_2, self.mlp = nn.LayerNorm(config.n_embd), MLP(config)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.drop(self.attn(self.ln_1(x_BTC)))
        return x_BTC + self.drop(self.mlp(self.ln_2(x_BTC)))


class GPT(nn.Module):
    """A decoder of `n_layer` blocks (`self.h`) between an embedding and a head, initialised as GPT-2 was."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.wte.weight
        for block in self.h:  # every block adds to the residual stream twice; this keeps its variance at depth
            for linear in (block.attn.c_proj, block.mlp.c_proj):
                linear.init_scale = (2 * config.n_layer) ** -0.5
        self.apply(self._init_weights)

    @staticmethod
    def _init_weights(module: nn.Module):
        """Fill the parameters that `module` itself has, not those of its children. Works after `to_empty` too."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02 * getattr(module, "init_scale", 1.0))
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            module.reset_parameters()  # ones and zeros

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor | None = None, positions_T: Tensor | None = None) -> Tensor:
        """Logits (B, T, V) in the weights' dtype; given targets, the mean cross entropy, a float32 scalar.

        Tokens and targets are int64 in 0..V-1; targets of -100 do not count. Raises BadInput when T > block_size.
        positions_T: which rows of the position table the tokens have; None: 0 to T - 1, those of a whole sequence.
        """
        T = tokens_BT.shape[1]
        if T > self.config.block_size:
            raise BadInput(f"The model reads at most block_size = {self.config.block_size} tokens, not {T}.")
        positions_T = torch.arange(T, device=tokens_BT.device) if positions_T is None else positions_T
        x_BTC = self.drop(self.wte(tokens_BT) + self.wpe(positions_T))
        for block in self.h:
            x_BTC = block(x_BTC)
        logits_BTV = self.lm_head(self.ln_f(x_BTC))
        if targets_BT is None:
            return logits_BTV
        return self.loss(logits_BTV, targets_BT)

    def loss(self, logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        """The mean cross entropy, in fp32 whatever the weights are: a scaled loss soon overflows fp16."""
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())


def build_model(config: str | GPTConfig, **overrides) -> GPT:
    """A new model, `build_model("gpt2-tiny", n_layer=2)`. Under `torch.device("meta")` it takes no memory.

    Raises BadInput for an unknown name or field.
    """
    config = find_config(config) if isinstance(config, str) else config
    names = [field.name for field in fields(config)]
    for key in overrides:
        if key not in names:
            raise BadInput(f"A GPTConfig has no field {key!r}; it has {', '.join(names)}.")
    return GPT(replace(config, **overrides))


@torch.no_grad()
def generate(model: GPT, tokens_BT: Tensor, n: int, temperature: float = 0.0,
             generator: torch.Generator | None = None) -> Tensor:
    """`tokens_BT` with `n` more tokens in each row, (B, T + n): the likeliest, or drawn if `temperature` is above 0.

    There is no end token, so every rank runs `n` forwards, and no rank waits for a gather that another one skips.
    Ranks draw the same tokens when their generators have the same seed.
    """
    for _ in range(n):
        logits_BV = model(tokens_BT[:, -model.config.block_size:])[:, -1]
        if temperature > 0:
            p_BV = F.softmax(logits_BV.float() / temperature, dim=-1)
            next_B1 = torch.multinomial(p_BV, 1, generator=generator)
        else:
            next_B1 = logits_BV.argmax(dim=-1, keepdim=True)
        tokens_BT = torch.cat([tokens_BT, next_B1], dim=1)
    return tokens_BT
