"""GPT-2, the model on which every stage is tried. It communicates nothing, and it has no buffers.

Shapes: B batch, T tokens, C width (n_embd), H heads, V vocabulary. `x_BTC` has the shape (B, T, C).
Source: Radford et al. 2019; parameter names follow the published checkpoints.
"""

import difflib
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadInput
from ..formulas.transformer import gpt2_params


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT-2. Raises BadInput when the numbers do not make one."""

    n_layer: int
    n_head: int
    n_embd: int  # C, a multiple of n_head
    block_size: int = 1024  # the longest T, and the number of rows of the position table
    vocab_size: int = 50257  # V
    bias: bool = True  # of the linear layers; LayerNorms always have theirs
    tied: bool = True  # the head is the token embedding, one tensor
    dropout: float = 0.0

    def __post_init__(self):
        for name in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise BadInput(f"{name} must be a positive whole number, not {value!r}.")
        if self.n_embd % self.n_head:
            raise BadInput(f"n_embd must be a multiple of n_head: {self.n_embd} is not divisible by {self.n_head}.")
        if not 0 <= self.dropout < 1:
            raise BadInput(f"dropout must be at least 0 and below 1, not {self.dropout!r}.")

    @property
    def params(self) -> int:
        """Parameters of the model, a tied head counted once."""
        return gpt2_params(self.n_layer, self.n_embd, self.vocab_size, self.block_size, self.tied, self.bias)


CONFIGS: dict[str, GPTConfig] = {
    # For a laptop; the tokens are bytes.
    "gpt2-tiny": GPTConfig(4, 4, 64, block_size=128, vocab_size=256),  # 0.2M: every test
    "gpt2-mini": GPTConfig(4, 4, 128, block_size=256, vocab_size=256),  # 0.9M: every chapter
    "gpt2-laptop": GPTConfig(6, 6, 384, block_size=256, vocab_size=256),  # 10.8M: an evening's training
    # As published.
    "gpt2": GPTConfig(12, 12, 768),  # 124M
    "gpt2-medium": GPTConfig(24, 16, 1024),  # 355M
    "gpt2-large": GPTConfig(36, 20, 1280),  # 774M
    "gpt2-xl": GPTConfig(48, 25, 1600),  # 1.5B
}


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


def find_config(name: str) -> GPTConfig:
    """The named size. Raises BadInput that names the nearest one."""
    if name not in CONFIGS:
        near = difflib.get_close_matches(name, CONFIGS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(CONFIGS)}."
        raise BadInput(f"There is no model {name!r}: {hint}")
    return CONFIGS[name]


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
