"""Shapes from Hugging Face's `config.json`: the same parameters, by name and shape, as transformers builds from it."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, MixtralConfig, Qwen2Config, Qwen3Config, T5Config

from zerocourse.cli import main
from zerocourse.errors import BadInput
from zerocourse.formulas.gpt2_config import GPTConfig
from zerocourse.formulas.models.config_json import read_config
from zerocourse.models.llama import Llama
from zerocourse.planning.model_sizes import find_sizes
from zerocourse.simulation import SimulatedJob, simulate

SMALL = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 128}
LLAMAS = {"llama": LlamaConfig(**SMALL), "tied": LlamaConfig(**SMALL, tie_word_embeddings=True),
          "mistral": MistralConfig(**SMALL, head_dim=24), "qwen2": Qwen2Config(**SMALL),
          "qwen3": Qwen3Config(**SMALL, head_dim=32, tie_word_embeddings=True)}


def on_meta(config):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def saved(config, folder) -> str:
    config.save_pretrained(folder)
    return str(folder / "config.json")


@pytest.mark.parametrize("kind", LLAMAS)
def test_a_llama_has_the_parameters_of_transformers(kind, tmp_path):
    name = saved(LLAMAS[kind], tmp_path)
    shape, theirs = read_config(name), dict(on_meta(LLAMAS[kind]).named_parameters())
    with torch.device("meta"):
        ours = dict(Llama(shape).named_parameters())
    assert {key: value.shape for key, value in ours.items()} == {key: value.shape for key, value in theirs.items()}
    assert shape.params == find_sizes(name).params == sum(value.numel() for value in theirs.values())
    assert simulate(SimulatedJob(name, stage=1, ranks=2, seq=16))["params"] == shape.params


@pytest.mark.parametrize("kind", LLAMAS)
def test_a_llama_computes_what_transformers_does(kind, tmp_path):
    theirs = AutoModelForCausalLM.from_config(LLAMAS[kind])
    ours = Llama(read_config(saved(LLAMAS[kind], tmp_path)))
    ours.load_state_dict(theirs.state_dict())
    tokens = torch.randint(512, (2, 24), generator=torch.Generator().manual_seed(0))
    assert ours(tokens).item() == pytest.approx(theirs(tokens, labels=tokens).loss.item(), rel=2e-5)


def test_a_gpt2(tmp_path):
    config = GPT2Config(n_layer=3, n_head=4, n_embd=64, n_positions=96, vocab_size=300)
    shape = read_config(saved(config, tmp_path))
    assert shape == GPTConfig(3, 4, 64, 96, 300) and shape.params == sum(each.numel() for each in on_meta(config).parameters())


@pytest.mark.parametrize("config, words", (
    (MixtralConfig(**SMALL), r"is a mixtral with 8 experts \(num_local_experts\): mixtures of experts are not here yet"),
    (LlamaConfig(**SMALL, attention_bias=True), "asks for biases"), (GPT2Config(n_inner=100), "n_inner of .* is 100"),
    (T5Config(), "is a t5: known are gpt2, llama, mistral, qwen2, qwen3")))
def test_what_is_not_built_is_refused(config, words, tmp_path):
    with pytest.raises(BadInput, match=words):
        read_config(saved(config, tmp_path))


@pytest.mark.parametrize("text, words", (("{", "cannot be read as a config.json"), ("[]", "has no model_type"), (None, "cannot be read"),
                                         ('{"model_type": "llama"}', "num_hidden_layers of .* is None: it must be a positive")))
def test_a_file_that_is_none(text, words, tmp_path):
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match=words):
        read_config(str(path))


def test_a_plan_proposes_no_tensor_ranks_that_the_package_cannot_cut(tmp_path, capsys):
    words = f"plan --model {saved(LLAMAS['qwen3'], tmp_path)} --cluster 8xA100 --batch 8 --ranks 8 --mesh --seq 64".split()
    assert main([*words, "--json"]) == 0
    assert {each["tensor"] for each in json.loads(capsys.readouterr().out)["best"]} == {1}
    assert main([*words, "--tensor", "2"]) == 2
    assert "has no plan for the norms of queries and keys (Qwen 3)" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ("llama", "qwen3"))
@pytest.mark.parametrize("stage, recompute", ((1, False), (3, False), (3, True)))
def test_commands_take_the_file_and_the_peak_is_the_simulated_one(kind, stage, recompute, tmp_path, capsys):
    wide = LLAMAS[kind].to_dict() | {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6, "head_dim": 128}
    name = str(tmp_path / "config.json")
    (tmp_path / "config.json").write_text(json.dumps(wide))
    words = f"--model {name} --stage {stage} --ranks 4 --seq 128 --micro-batch 4 --json".split()
    assert main(["memory", *words, *["--recompute", "full"] * recompute]) == 0
    formula = json.loads(capsys.readouterr().out)
    assert main(["simulate", *words, "--dtype", "bf16", "--like", "nccl", *["--recompute"] * recompute]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert formula["params"] == counted["params"] == read_config(name).params
    assert formula["peak_bytes"] == pytest.approx(counted["peak_bytes"], rel=0.06)
