"""A model's shape from the `config.json` that Hugging Face keeps beside its weights. Nothing is downloaded, and no torch."""

import json
from pathlib import Path
from typing import Any, cast

from ...errors import BadInput
from ..gpt2_config import GPTConfig
from .llama_shape import LlamaShape
from .mixture_shape import MixtureShape

LLAMAS = ("llama", "mistral", "qwen2", "qwen3")
MIXTURES = {"mixtral": "intermediate_size", "qwen3_moe": "moe_intermediate_size"}  # what names an expert's inner width
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def is_config(name: str) -> bool:
    """Is it a path, and no name of a model?"""
    return name.endswith(".json")


def read_config(name: str) -> GPTConfig | LlamaShape | MixtureShape:
    """The shape that the file names by its attributes. Raises BadInput for what is no such file, and for a model that is not built here."""
    try:
        found: Any = json.loads(Path(name).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{name} cannot be read as a config.json: {error}") from None
    if not isinstance(found, dict) or "model_type" not in found:
        raise BadInput(f"{name} has no model_type: it is not the config.json of a Hugging Face model")
    config = cast("dict[str, Any]", found)
    kind = config["model_type"]
    if kind in MIXTURES:
        return _mixture(name, config, kind)
    if experts := next((key for key in EXPERTS if config.get(key)), None):
        raise BadInput(f"{name} is a {kind} with {config[experts]} experts ({experts}): of mixtures {' and '.join(MIXTURES)} are known")
    if kind == "gpt2":
        return _gpt2(name, config)
    if kind in LLAMAS:
        return _llama(name, config, kind)
    raise BadInput(f"{name} is a {kind}: known are gpt2, {', '.join((*LLAMAS, *MIXTURES))}")


def _number(name: str, config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadInput(f"{key} of {name} is {value!r}: it must be a positive whole number")
    return value


def _gpt2(name: str, config: dict[str, Any]) -> GPTConfig:
    layers, heads, width, tokens, words = (_number(name, config, key) for key in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size"))
    if config.get("n_inner") not in (None, 4 * width):
        raise BadInput(f"n_inner of {name} is {config['n_inner']}: only 4 times n_embd is known here, which is {4 * width}")
    return GPTConfig(layers, heads, width, tokens, words, tied=config.get("tie_word_embeddings", True))


def _mixture(name: str, config: dict[str, Any], kind: str) -> MixtureShape:
    count = next((key for key in EXPERTS if key in config), EXPERTS[0])  # versions of transformers name it differently
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise BadInput(f"{name} has layers without experts (mlp_only_layers or decoder_sparse_step): known are mixtures with experts in each")
    experts, k = _number(name, config, count), _number(name, config, "num_experts_per_tok")
    if k > experts:
        raise BadInput(f"{name} has {experts} experts, of which a token takes {k} (num_experts_per_tok)")
    dense = config | {"intermediate_size": _number(name, config, MIXTURES[kind])}
    return MixtureShape(_llama(name, dense, "qwen3" if kind == "qwen3_moe" else "mistral"), experts, k)


def _llama(name: str, config: dict[str, Any], kind: str) -> LlamaShape:
    if config.get("mlp_bias") or (kind != "qwen2" and config.get("attention_bias")):
        raise BadInput(f"{name} asks for biases (attention_bias or mlp_bias): a {kind} is built without them here")
    layers, width, inner, heads, words, tokens = (_number(name, config, key) for key in (
        "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "max_position_embeddings"))
    kv_heads = heads if config.get("num_key_value_heads") is None else _number(name, config, "num_key_value_heads")
    features = None if config.get("head_dim") is None else _number(name, config, "head_dim")
    if heads % kv_heads or (features is None and width % heads):
        raise BadInput(f"{name} has {heads} heads, {kv_heads} of keys and values, in a width of {width}: these do not divide")
    return LlamaShape(layers, width, inner, heads, kv_heads, words, tokens, features, bool(config.get("tie_word_embeddings", False)),
                      kind == "qwen2", kind == "qwen3")
