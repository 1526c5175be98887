"""The shapes of GPT-2, by name. Numbers alone: nothing here imports torch."""

import difflib
from dataclasses import dataclass

from ..errors import BadInput
from .transformer import gpt2_params


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


def find_config(name: str) -> GPTConfig:
    """The named size. Raises BadInput that names the nearest one."""
    if name not in CONFIGS:
        near = difflib.get_close_matches(name, CONFIGS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(CONFIGS)}."
        raise BadInput(f"There is no model {name!r}: {hint}")
    return CONFIGS[name]
