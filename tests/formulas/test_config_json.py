"""Shapes from Hugging Face's `config.json`: the same parameters, by name and shape, as transformers builds from it."""

import json

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    T5Config,
)

from zerocourse import shard
from zerocourse.cli import main
from zerocourse.errors import BadInput
from zerocourse.formulas.gpt2_config import GPTConfig
from zerocourse.formulas.models.config_json import read_config
from zerocourse.formulas.models.mixture_shape import mixture_states
from zerocourse.formulas.states import FP32
from zerocourse.layout.mesh import Mesh
from zerocourse.models.llama import Llama
from zerocourse.parallel.experts import expert_groups, expert_parallel
from zerocourse.parallel.mesh_comms import MeshComms
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
    (Qwen2MoeConfig(**SMALL), r"is a qwen2_moe with 60 experts \(num_experts\): of mixtures mixtral and qwen3_moe are known"),
    (Qwen3MoeConfig(**SMALL, mlp_only_layers=[0]), "has layers without experts"),
    (LlamaConfig(**SMALL, attention_bias=True), "asks for biases"), (GPT2Config(n_inner=100), "n_inner of .* is 100"),
    (T5Config(), "is a t5: known are gpt2, llama, mistral, qwen2, qwen3, mixtral, qwen3_moe")))
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


MIXTURES = {"mixtral": MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2),
            "qwen3_moe": Qwen3MoeConfig(**SMALL, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=48, head_dim=32)}


@pytest.mark.parametrize("kind", MIXTURES)
def test_a_mixture_has_the_parameters_of_transformers(kind, tmp_path):
    shape, theirs = read_config(saved(MIXTURES[kind], tmp_path)), on_meta(MIXTURES[kind])
    assert shape.params == sum(param.numel() for param in theirs.parameters())
    assert shape.expert_params == sum(param.numel() for name, param in theirs.named_parameters() if ".experts." in name)
    idle = 1 - shape.k / shape.experts
    assert shape.used == shape.params - round(shape.expert_params * idle)


def held_by_a_rank(config, ranks, over, stage):
    """Bytes of parameters, and of optimizer states, in fp32, with experts over so many ranks."""
    comms = MeshComms(Mesh({"dp": ranks // over, "ep": over}), timeout=20)
    model = AutoModelForCausalLM.from_config(config)
    model = expert_parallel(model, comms.along("ep"))
    optimizer = torch.optim.AdamW(model.parameters())
    shard(model, optimizer, stage, comm=expert_groups(comms))
    tokens = torch.randint(512, (1, 8), generator=torch.Generator().manual_seed(comms.rank))
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    held = model.zero.memory(optimizer)
    return held["parameters_bytes"], held["optimizer_bytes"]


@pytest.mark.parametrize("over, stage", ((1, 1), (2, 1), (4, 2), (2, 3)))
def test_bytes_with_experts_over_ranks_are_those_of_real_ranks(pool, over, stage, tmp_path):
    shape = read_config(saved(MIXTURES["mixtral"], tmp_path))
    by_formula = mixture_states(shape, stage, 4, over, FP32)
    for parameters, optimizer in pool(4).run(held_by_a_rank, MIXTURES["mixtral"], 4, over, stage):
        assert parameters == pytest.approx(by_formula.parameters_bytes, rel=0.02)
        assert optimizer == pytest.approx(by_formula.optimizer_bytes, rel=0.02)


def test_mixtral_8x7b_in_the_command(tmp_path, capsys):
    name = saved(MixtralConfig(), tmp_path)
    words = f"memory --model {name} --ranks 64 --experts-over 8 --seq 4096".split()
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "46,702,792,704 parameters on 64 ranks" in said and "uses 12,879,925,248 parameters" in said and "8 ranks have different ones" in said
    assert main([*words, "--stage", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    experts = 32 * 8 * 3 * 4096 * 14_336
    assert told["parameters_bytes"] == 2 * (46_702_792_704 - experts) + 2 * experts // 8 and told["peak_bytes"] is None
    travelled = 4 * 32 * 2 * 4096 * 7 // 8 * 4096 * 2  # trips, layers, experts of a token, tokens; width and bytes
    rest = 2 * 2 * ((46_702_792_704 - experts) * 63 // 64 + experts // 8 * 7 // 8)
    assert told["sent_bytes"] == pytest.approx(travelled + rest, rel=1e-6)
    assert main(f"memory --model {name} --kv --card 200GB --seq 4096 --json".split()) == 0
    steps = {step["requests"]: step["step_bytes"] for step in json.loads(capsys.readouterr().out)["steps"]}
    assert steps[1] == pytest.approx(2 * (12_879_925_248 - 32_000 * 4096) + 131_072 * 4096, rel=1e-9), "one request reads two experts of eight"
    assert steps[64] > 2 * 46e9, "and 64 requests read nearly all"


@pytest.mark.parametrize("more, words", (("--experts-over 3", "3 ranks cannot share 8 experts among 8 ranks"),
                                         ("--device 80GB", "of which --device knows nothing"),
                                         ("--recompute full", "no peak is estimated")))
def test_what_is_not_known_of_mixtures(more, words, tmp_path, capsys):
    assert main(f"memory --model {saved(MixtralConfig(), tmp_path)} {more}".split()) == 2
    assert words in capsys.readouterr().err
    assert main("memory --model gpt2 --experts-over 2".split()) == 2
