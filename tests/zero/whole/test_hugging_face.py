"""Hugging Face's models: trained, saved and loaded in its own format, each rank reading the bytes it owns and no others."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from worlds import sgd

from zerocourse import deferred_init, load_safetensors, save_safetensors, shard, state_dict
from zerocourse.errors import BadInput

COMMON = {"vocab_size": 23, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "initializer_range": 0.2}
LLAMA = COMMON | {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "max_position_embeddings": 12}
MODELS = {
    "gpt2": (GPT2LMHeadModel, GPT2Config, COMMON | {"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 12, "resid_pdrop": 0,
                                                    "embd_pdrop": 0, "attn_pdrop": 0}),
    "llama": (LlamaForCausalLM, LlamaConfig, LLAMA | {"tie_word_embeddings": False}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, LLAMA | {"tie_word_embeddings": True}),
    "t5": (T5ForConditionalGeneration, T5Config, {"vocab_size": 23, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2,
                                                  "dropout_rate": 0, "decoder_start_token_id": 0, "pad_token_id": 0}),
    "experts": (Qwen2MoeForCausalLM, Qwen2MoeConfig, LLAMA | {
        "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2,
        "decoder_sparse_step": 1, "output_router_logits": False}),
}


def made(kind: str) -> nn.Module:
    model, config, sizes = MODELS[kind]
    torch.manual_seed(2)
    return model(config(**sizes))


def tokens(step: int, rank: int) -> torch.Tensor:
    return torch.randint(1, 23, (2, 9), generator=torch.Generator().manual_seed(31 * step + rank))


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    return model(input_ids=tokens(step, rank), labels=tokens(step, rank)).loss


def trained_and_saved(kind: str, stage: int, folder: str) -> dict:
    model = made(kind)
    model, optimizer = shard(model, sgd(model.parameters(), 0.1), stage)
    losses = []
    for step in range(2):
        loss = loss_of(model, step, dist.get_rank())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.save_pretrained(f"{folder}/theirs")
    save_safetensors(model, f"{folder}/ours", shard_bytes=2000)
    return {"losses": losses, "state": state_dict(model)}


def read_back(kind: str, stage: int, folder: str) -> dict:
    """A model without memory, and its weights straight from the folder; what was read, and what a rank holds of it."""
    with deferred_init():
        model = made(kind)
    model, _ = shard(model, None, stage, weights=folder)
    own = {flat.name: flat.layout.real(model.zero.comm.rank) if stage else flat.layout.numel for flat in model.zero.flats}
    fresh, _ = shard(made(kind), None, stage)
    buffers = {name for name, _ in model.named_buffers()} & type(model).state_dict(model, keep_vars=True).keys()
    return {"state": state_dict(model), "read": load_safetensors(fresh, folder), "own": 4 * sum(own.values()), "buffers": buffers}


@pytest.mark.parametrize("kind, stage", [("gpt2", 3), ("llama", 2), ("qwen2", 3), ("t5", 3), ("experts", 3), ("experts", 1)])
def test_trained_saved_and_loaded(pool, tmp_path, kind, stage):
    plain = made(kind)
    optimizer, losses = sgd(plain.parameters(), 0.1), []
    for step in range(2):
        of_ranks = [loss_of(plain, step, rank) for rank in range(2)]
        torch.stack(of_ranks).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append([loss.item() for loss in of_ranks])
    results = pool(2).run(trained_and_saved, kind, stage, str(tmp_path))
    assert [list(pair) for pair in zip(*(result["losses"] for result in results))] == [pytest.approx(pair, rel=1e-5) for pair in losses]
    state = results[0]["state"]
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-6)

    assert len(list((tmp_path / "ours").glob("model-*-of-*.safetensors"))) > 2, "several files with an index"
    auto = AutoModelForSeq2SeqLM if kind == "t5" else AutoModelForCausalLM
    for folder in ("theirs", "ours"):
        loaded = auto.from_pretrained(tmp_path / folder).state_dict()
        assert loaded.keys() == state.keys()
        for name, value in state.items():
            assert torch.equal(loaded[name], value), f"{folder}: {name}"

    for folder in ("ours",) if kind == "experts" else ("ours", "theirs"):  # Hugging Face stores each expert by itself
        for result in pool(2).run(read_back, kind, stage, str(tmp_path / folder)):
            assert all(torch.equal(result["state"][name], value) for name, value in state.items())
            assert not result["buffers"] and result["read"] == result["own"], "each rank reads what it owns, to the byte"


def test_weights_that_do_not_fit_are_named(tmp_path):
    model, _ = shard(made("llama"), None, 3)
    save_safetensors(model, tmp_path / "w")
    assert [file.name for file in sorted((tmp_path / "w").glob("*.safetensors"))] == ["model.safetensors"]
    with pytest.raises(BadInput, match="has no weights for 'transformer.wpe.weight', 'transformer.h.0.ln_1.weight'|has no weights for"):
        shard(made("gpt2"), None, 3, weights=tmp_path / "w")
    other = MODELS["llama"][2] | {"intermediate_size": 14}
    with pytest.raises(BadInput, match=r"'model.layers.0.mlp.gate_proj.weight' is \(12, 8\) in .*, and \(14, 8\) in the model"):
        shard(LlamaForCausalLM(LlamaConfig(**other)), None, 3, weights=tmp_path / "w")
    with pytest.raises(BadInput, match="there are no safetensors in"):
        load_safetensors(model, tmp_path)
    (tmp_path / "bad.safetensors").write_bytes(b"not one of them")
    with pytest.raises(BadInput, match="bad.safetensors is not a file of safetensors"):
        load_safetensors(model, tmp_path / "bad.safetensors")


def test_in_another_precision(tmp_path):
    model, _ = shard(made("gpt2"), None, 3)
    save_safetensors(model, tmp_path / "w", dtype=torch.bfloat16)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "w", dtype=torch.bfloat16).state_dict()
    assert all(value.dtype is torch.bfloat16 and torch.equal(value, state_dict(model)[name].bfloat16()) for name, value in loaded.items())
    half, _ = shard(made("gpt2"), None, 3, param_dtype=torch.bfloat16, weights=Path(tmp_path / "w"))
    assert all(torch.equal(value, loaded[name]) for name, value in state_dict(half).items())
