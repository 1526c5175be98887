"""Models by name that a simulation can train: the course's GPT-2, its Llama and its mixtures of experts, up to 10¹² parameters.

Shapes of Llamas and mixtures are those of the published configurations; `llama-128b` and `llama-1t` are of the same proportions, and nobody's.
"""

import difflib
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor, nn

from ..errors import BadInput
from ..formulas.models.config_json import is_config, read_config
from ..formulas.models.llama_shape import LlamaShape
from ..formulas.models.mixture_shape import MixtureShape
from ..models.gpt2 import CONFIGS, GPT, GPTConfig
from ..models.llama import Llama
from ..parallel.experts import mixture_llama

LLAMAS = {
    "llama-tiny": LlamaShape(4, 64, 192, 4, 2, 256, 128),
    "llama-7b": LlamaShape(32, 4096, 11008, 32, 32, 32000, 2048),
    "llama2-7b": LlamaShape(32, 4096, 11008, 32, 32, 32000, 4096),
    "llama-13b": LlamaShape(40, 5120, 13824, 40, 40, 32000, 2048),
    "llama-70b": LlamaShape(80, 8192, 28672, 64, 8, 32000, 4096),
    "llama3-8b": LlamaShape(32, 4096, 14336, 32, 8, 128256, 8192),
    "llama-128b": LlamaShape(96, 10240, 35840, 80, 8, 32000, 4096),
    "llama3-405b": LlamaShape(126, 16384, 53248, 128, 8, 128256, 8192),
    "llama-1t": LlamaShape(160, 22528, 75776, 176, 16, 128256, 4096),
}
MIXTURES = {
    "mixtral-tiny": MixtureShape(LlamaShape(4, 64, 96, 4, 2, 256, 128), 8, 2),
    "mixtral-8x7b": MixtureShape(LlamaShape(32, 4096, 14336, 32, 8, 32000, 4096), 8, 2),  # arXiv 2401.04088, table 1, with fewer tokens
    "mixtral-8x22b": MixtureShape(LlamaShape(56, 6144, 16384, 48, 8, 32000, 4096), 8, 2),
    "qwen3-30b-a3b": MixtureShape(LlamaShape(48, 2048, 768, 32, 4, 151936, 4096, 128, qk_norm=True), 128, 8),  # arXiv 2505.09388, table 2
    "qwen3-235b-a22b": MixtureShape(LlamaShape(94, 4096, 1536, 64, 4, 151936, 4096, 128, qk_norm=True), 128, 8),
}

UNTIED = {f"{name}-untied": replace(CONFIGS[name], vocab_size=50304, bias=False, tied=False)  # 163M, 406M, 838M
          for name in ("gpt2", "gpt2-medium", "gpt2-large")}  # as Tiny-DeepSpeed's examples have them
PUBLISHED_GPTS = {  # what published runs trained, with our GPT-2's positions and LayerNorms
    "gpt-13b": GPTConfig(62, 32, 4096),  # arXiv 1910.02054, tables 4 and 10
    "mpt-7b": GPTConfig(32, 32, 4096, block_size=2048, vocab_size=50368),  # MosaicML's llm-foundry, with its number of
    "mpt-13b": GPTConfig(40, 40, 5120, block_size=2048, vocab_size=50368),  # parameters to the last one
    "mpt-70b": GPTConfig(80, 64, 8192, block_size=2048, vocab_size=50368),
    "bloom-176b": GPTConfig(70, 112, 14336, block_size=2048, vocab_size=250680),  # arXiv 2211.05100, table 3
    "megatron-39b": GPTConfig(48, 64, 8192, block_size=2048, vocab_size=51200),  # arXiv 2104.04473, table 1, as are these
    "megatron-146b": GPTConfig(80, 96, 12288, block_size=2048, vocab_size=51200),
    "megatron-530b": GPTConfig(105, 128, 20480, block_size=2048, vocab_size=51200),
    "megatron-1t": GPTConfig(128, 160, 25600, block_size=2048, vocab_size=51200),
}
GPTS = CONFIGS | UNTIED | PUBLISHED_GPTS


class KnownModel(NamedTuple):
    """make(): the model, on whatever mode is active.   loss(model, tokens_BT): a scalar.   tokens: of a sample, at most.
    experts: of a layer; 0: it has none."""

    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Tensor], Tensor]
    tokens: int
    vocabulary: int
    experts: int = 0


def find_model(name: str) -> KnownModel:
    """name: or the path of a Hugging Face `config.json`. Raises BadInput for one that is not known."""
    config = shape_of(name)
    if isinstance(config, GPTConfig):
        return KnownModel(lambda: GPT(config), lambda model, tokens: model(tokens, tokens), config.block_size,
                          config.vocab_size)
    if isinstance(config, MixtureShape):
        return KnownModel(lambda: mixture_llama(config), lambda model, tokens: model(tokens), config.tokens, config.dense.vocabulary,
                          config.experts)
    return KnownModel(lambda: Llama(config), lambda model, tokens: model(tokens), config.tokens, config.vocabulary)


def shape_of(name: str) -> GPTConfig | LlamaShape | MixtureShape:
    """Of a name, or of a file. Raises BadInput."""
    if is_config(name):
        return read_config(name)
    known = GPTS | LLAMAS | MIXTURES
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    raise BadInput(f"there is no model {name!r}: " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}, and "
                   "a Hugging Face model is named by the path of its config.json"))
