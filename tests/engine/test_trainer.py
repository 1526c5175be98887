"""Hugging Face's Trainer with `--deepspeed ds_config.json`, started by `zerocourse run`, trains as without it, and under
stage 3 `from_pretrained` takes no more memory than a rank's slices and one unit."""

import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from tools.trainer_matrix import name_of
from zerocourse.cli import main
from zerocourse.engine.bridge import stand_in
from zerocourse.errors import BadInput

SCRIPT = '''
import json, sys
import torch
from transformers import (AutoModelForSeq2SeqLM, GPT2LMHeadModel, HfArgumentParser, Seq2SeqTrainer, Seq2SeqTrainingArguments,
                          Trainer, TrainingArguments)
from transformers.utils import logging
logging.disable_progress_bar()

def sample(number):
    """Some labels do not count, so that micro-batches differ in weight."""
    draw = torch.Generator().manual_seed(number)
    tokens = torch.randint(1, 23, (9,), generator=draw)
    ignored = torch.randint(0, 7, (), generator=draw).item()
    return {"input_ids": tokens, "labels": tokens.clone().index_fill_(0, torch.arange(ignored), -100)}

def train(arguments):
    args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(arguments)
    model = GPT2LMHeadModel.from_pretrained("model")
    trainer = Trainer(model=model, args=args, train_dataset=[sample(number) for number in range(48)],
                      eval_dataset=[sample(number) for number in range(100, 108)])
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    logs = {log["step"]: [log["loss"], log.get("grad_norm"), log["learning_rate"]] for log in trainer.state.log_history if "loss" in log}
    evals = {log["step"]: log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log}
    engine = trainer.deepspeed
    held = engine.memory() if hasattr(engine, "memory") else {}  # neither DeepSpeed's own has it, nor None
    return {"logs": logs, "evals": evals, "held": held, "ranks": args.world_size, "stage": getattr(engine, "zero_stage", None)}

def translate(arguments):
    """One rank generates 2 tokens and the other 7."""
    args, = HfArgumentParser(Seq2SeqTrainingArguments).parse_args_into_dataclasses(arguments)
    trainer = Seq2SeqTrainer(model=AutoModelForSeq2SeqLM.from_pretrained("t5"), args=args, train_dataset=[sample(n) for n in range(4)])
    trainer.train()
    said = trainer.predict([sample(number) for number in range(100, 104)], max_new_tokens=2 + 5 * args.process_index)
    return {"predictions": said.predictions.tolist(), "loss": said.metrics["test_loss"],
            "stage": getattr(trainer.deepspeed, "zero_stage", None)}

runs = json.load(open(sys.argv[1]))
from starts import starts
sys.path.append(sys.argv[2])
from tools.trainer_matrix import in_turn
seen = {"starts": starts()} | {name: (translate if "generates" in name else train)(arguments) for name, arguments in runs.items()}
seen["saves"] = in_turn(sys.argv[3:])
json.dump(seen, open(f"seen{torch.distributed.get_rank()}.json", "w"))
'''
STARTS = '''
"""What a rank holds while from_pretrained and initialize make a model under stage 3, and whether the values are the stored ones."""
import torch
import deepspeed
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, LlamaForSequenceClassification
from transformers.integrations import HfDeepSpeedConfig
from zerocourse import Ledger, state_dict

CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}

def start(make):
    """make: under stage 3. Returns the peak of the tensors' bytes, and the whole state."""
    switched_on = HfDeepSpeedConfig(CONFIG)  # for transformers, as long as it lives
    with Ledger() as ledger:
        model = make()
        deepspeed.initialize(model=model, config=CONFIG)
    assert model.generation_config.max_new_tokens == 7 if hasattr(model, "generation_config") else True
    return ledger.peak, state_dict(model) | {f"buffer {name}": value for name, value in model.named_buffers()}

def same(state, plain):
    return state.keys() == plain.keys() and all(value.equal(plain[name]) for name, value in state.items())

def starts():
    seen = {}
    for name in ("t5", "llama", "experts"):
        load = (AutoModelForSeq2SeqLM if name == "t5" else AutoModelForCausalLM).from_pretrained
        plain = load(name)
        peak, state = start(lambda: load(name))
        values = plain.state_dict() | {f"buffer {key}": value for key, value in plain.named_buffers()}
        seen[name] = {"peak": peak, "whole": sum(4 * param.numel() for param in plain.parameters()), "same": same(state, values)}
    llama = AutoModelForCausalLM.from_pretrained("llama").state_dict()

    def from_config():
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained("llama"))
        model.generation_config.max_new_tokens = 7
        return model

    peak, state = start(from_config)
    weights = [state["model.embed_tokens.weight"], state["model.layers.3.mlp.up_proj.weight"]]
    seen["config"] = {"peak": peak, "std": [weight.std().item() for weight in weights], "first": state["lm_head.weight"][0].tolist()}

    def resized():
        model = AutoModelForCausalLM.from_pretrained("llama")
        model.resize_token_embeddings(26)
        return model

    state = start(resized)[1]
    seen["resized"] = [list(state[name].shape) == [26, 16] and state[name][:23].equal(llama[name]) and state[name][23:].any().item()
                       for name in ("model.embed_tokens.weight", "lm_head.weight")]
    state = start(lambda: LlamaForSequenceClassification.from_pretrained("llama", num_labels=3))[1]
    seen["new head"] = state["score.weight"].tolist(), state["model.norm.weight"].equal(llama["model.norm.weight"])
    state = start(lambda: get_peft_model(AutoModelForCausalLM.from_pretrained("llama"), LoraConfig(r=2, target_modules=["q_proj"])))[1]
    seen["adapters"] = {each: [value.any().item() for name, value in state.items() if each in name] for each in ("lora_A", "lora_B")}
    return seen
'''
COMMON = ["--per_device_train_batch_size", "2", "--num_train_epochs", "2", "--learning_rate", "0.01", "--logging_steps", "1",
          "--max_grad_norm", "0.5", "--gradient_accumulation_steps", "5", "--eval_strategy", "steps", "--eval_steps", "2",
          "--report_to", "none", "--disable_tqdm", "true"]
GENERATES = ["--per_device_train_batch_size", "2", "--per_device_eval_batch_size", "2", "--max_steps", "1", "--max_grad_norm", "0.5",
             "--learning_rate", "0.01", "--predict_with_generate", "true", "--report_to", "none", "--disable_tqdm", "true",
             "--save_strategy", "no", "--output_dir", "generates"]
FP16 = {"fp16": {"loss_scale": 1024}, "fp16, overflowing": {"initial_scale_power": 19, "hysteresis": 1}}
LLAMA = {"vocab_size": 23, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 12, "initializer_range": 0.2, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0,
         "pad_token_id": 0}
SAVES = [name_of(*case) for case in (("full", 1, "fp32", "nvme"), ("full", 2, "fp16", "cpu"), ("LoRA", 1, "bf16", "cpu"), ("LoRA", 2, "fp32", "none"),
                                     ("LoRA", 3, "fp16", "none"), ("SFT", 2, "bf16", "none"), ("SFT", 3, "fp32", "cpu"))]
pytestmark = pytest.mark.timeout(400)  # one run of two ranks trains all that the tests ask for
UPDATES = 6  # two epochs of 12 micro-batches: windows of 5, 5 and 2
AUTO = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
                     "auto")
ADAM = {"optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")}}


def tiny_gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(2)
    return GPT2LMHeadModel(GPT2Config(vocab_size=23, n_layer=2, n_head=2, n_embd=8, n_positions=12, bos_token_id=0,
                                      eos_token_id=0, initializer_range=0.2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def tiny_t5() -> T5ForConditionalGeneration:
    torch.manual_seed(2)
    return T5ForConditionalGeneration(T5Config(vocab_size=23, d_model=8, d_kv=4, d_ff=12, num_layers=2, num_heads=2, dropout_rate=0,
                                               decoder_start_token_id=0, pad_token_id=0, eos_token_id=1))


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(2)
    return LlamaForCausalLM(LlamaConfig(**LLAMA, num_hidden_layers=10))


def tiny_experts() -> Qwen2MoeForCausalLM:
    torch.manual_seed(2)
    return Qwen2MoeForCausalLM(Qwen2MoeConfig(**LLAMA, num_hidden_layers=2, moe_intermediate_size=8, num_experts_per_tok=2, num_experts=4,
                                              shared_expert_intermediate_size=8, output_router_logits=False))


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What each rank saw of one run by name: without DeepSpeed, at every stage, and resumed after half of it."""
    folder = tmp_path_factory.mktemp("trainer")
    model = tiny_gpt2()
    model.save_pretrained(folder / "model")
    configs = {f"stage {stage}": AUTO | {"zero_optimization": {"stage": stage}} for stage in (1, 2, 3)}
    configs["the config's optimizer"] = configs["stage 2"] | ADAM
    runs = {"without": [*COMMON, "--use_cpu", "--output_dir", "without", "--save_strategy", "no"]}
    for number, (name, config) in enumerate(configs.items()):
        (folder / f"{number}.json").write_text(json.dumps(config))
        saving = ["--save_steps", "3"] if name == "stage 3" else ["--save_strategy", "no"]
        runs[name] = [*COMMON, "--output_dir", f"out{number}", "--deepspeed", f"{number}.json", *saving]
    (folder / "bf16.json").write_text(json.dumps(configs["stage 3"] | {"bf16": {"enabled": "auto"}}))
    runs["bf16"] = [*COMMON, "--output_dir", "bf16", "--deepspeed", "bf16.json", "--bf16", "true", "--use_cpu", "--save_steps", "2",
                    "--save_total_limit", "1"]
    runs["stage 1"].append("--use_cpu")  # accelerate then starts the group by itself
    runs["resumed"] = [*runs["stage 3"], "--resume_from_checkpoint", "out2/checkpoint-3"]
    for name, scale in FP16.items():
        (folder / f"{name}.json").write_text(json.dumps(configs["stage 3"] | {"fp16": {"enabled": "auto"} | scale}))
        runs[name] = [*COMMON, "--output_dir", name, "--deepspeed", f"{name}.json", "--fp16", "true", "--save_strategy", "no"]
    (folder / "starts.py").write_text(STARTS)
    for name, made in {"t5": tiny_t5(), "llama": tiny_llama(), "experts": tiny_experts()}.items():
        made.generation_config.max_new_tokens = 7
        made.save_pretrained(folder / name)
    runs["generates, without"] = [*GENERATES, "--use_cpu"]
    for stage in (2, 3):
        runs[f"generates, stage {stage}"] = [*GENERATES, "--deepspeed", f"{stage - 1}.json"]
    (folder / "runs.json").write_text(json.dumps(runs))
    (folder / "script.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["run", "--nproc", "2", "script.py", "runs.json", str(Path(__file__).parents[2]), *SAVES]) == 0
    return folder, [json.loads((folder / f"seen{rank}.json").read_text()) for rank in range(2)], model


@pytest.mark.parametrize("name", ["stage 1", "stage 2", "stage 3", "the config's optimizer"])
def test_losses_are_those_without_deepspeed(seen, name):
    _, ranks, model = seen
    elements = sum(param.numel() for param in model.parameters())
    for of_rank in ranks:
        run, without = of_rank[name], of_rank["without"]
        assert run["ranks"] == without["ranks"] == 2 and without["stage"] is None
        assert len(run["logs"]) == UPDATES and run["stage"] == (int(name[-1]) if name[-1].isdigit() else 2)
        for step, values in without["logs"].items():
            logged = len(values) - (name == "the config's optimizer")  # whose rate the engine has moved on already
            assert run["logs"][step][:logged] == pytest.approx(values[:logged], abs=1e-5), step
        assert list(run["evals"]) == ["2", "4", "6"] and run["evals"] == pytest.approx(without["evals"], abs=1e-5)
    held = [of_rank[name]["held"] for of_rank in ranks]
    assert 8 * elements <= sum(each["optimizer_bytes"] for each in held) < 8 * elements * 1.2, held  # divided, not copied
    assert (sum(each["parameters_bytes"] for each in held) < 4 * elements * 1.2) == (name == "stage 3"), held


@pytest.mark.parametrize("name", SAVES)
def test_what_a_training_saves_is_resumed_and_the_best_model_loaded(seen, name):
    assert [of_rank["saves"][name] for of_rank in seen[1]] == ["passed"] * 2


def test_bf16_loses_no_more_than_its_digits_and_old_checkpoints_go(seen):
    folder, ranks, model = seen
    elements = sum(param.numel() for param in model.parameters())
    for of_rank in ranks:
        run, without = of_rank["bf16"], of_rank["without"]
        assert run["stage"] == 3 and list(run["logs"]) == list(without["logs"])
        for step, (loss, *_) in without["logs"].items():
            assert run["logs"][step][0] == pytest.approx(loss, rel=0.01) and run["logs"][step][0] != loss, step
        assert run["evals"] == pytest.approx(without["evals"], rel=0.01)
    held = [of_rank["bf16"]["held"] for of_rank in ranks]
    assert sum(each["parameters_bytes"] for each in held) < 2 * elements * 1.2, held
    assert [each.name for each in (folder / "bf16").glob("checkpoint-*")] == ["checkpoint-6"]


def test_fp16_loses_no_more_than_its_digits_and_skips_what_overflows(seen):
    for of_rank in seen[1]:
        run, without = of_rank["fp16"], of_rank["without"]
        assert run["stage"] == 3 and list(run["logs"]) == list(without["logs"])
        for step, (loss, norm, rate) in without["logs"].items():
            assert run["logs"][step] == [pytest.approx(loss, rel=1e-3), pytest.approx(norm, rel=1e-2), pytest.approx(rate)], step
            assert run["logs"][step][0] != loss, step
        rates = [rate for *_, rate in of_rank["fp16, overflowing"]["logs"].values()]
        plain = [rate for *_, rate in without["logs"].values()]
        moved = sorted(set(rates), reverse=True)
        assert rates == sorted(rates, reverse=True) and 1 < len(moved) < UPDATES, "some updates are skipped, some are not"
        assert moved == pytest.approx(plain[: len(moved)]), "and a skipped one is no step of the schedule"


def test_from_pretrained_under_stage_3_holds_slices_and_one_unit(seen):
    """Tied weights, buffers that no file has, and experts that are stored one by one come out right."""
    for of_rank in seen[1]:
        starts = of_rank["starts"]
        assert all(starts[name]["same"] for name in ("t5", "llama", "experts")), starts
        whole, units = starts["llama"]["whole"], 12
        for name in ("llama", "config"):
            assert starts[name]["peak"] < whole / 2 + 2 * whole / units, "the slices, and a unit on its way into its buffer"
    assert [of_rank["starts"]["config"]["first"] for of_rank in seen[1]] == [seen[1][0]["starts"]["config"]["first"]] * 2
    assert seen[1][0]["starts"]["config"]["std"] == pytest.approx([0.2, 0.2], rel=0.2), "initializer_range"


def test_what_is_added_before_initialize_keeps_its_values(seen):
    for of_rank in seen[1]:
        assert of_rank["starts"]["resized"] == [True, True]
        head, is_stored = of_rank["starts"]["new head"]
        assert is_stored and head == seen[1][0]["starts"]["new head"][0] and head[0][0]
        assert of_rank["starts"]["adapters"] == {"lora_A": [True] * 10, "lora_B": [False] * 10}


@pytest.mark.parametrize("stage", (2, 3))
def test_generation_that_ends_early_on_a_rank_hangs_nobody(seen, stage):
    for of_rank in seen[1]:
        run, without = of_rank[f"generates, stage {stage}"], of_rank["generates, without"]
        assert run["stage"] == stage and len(run["predictions"]) == 4 and run["predictions"] == without["predictions"]
        assert run["loss"] == pytest.approx(without["loss"], abs=1e-5)


def test_a_trainers_checkpoint_is_resumed(seen):
    for of_rank in seen[1]:
        resumed, through = of_rank["resumed"]["logs"], of_rank["stage 3"]["logs"]
        assert list(resumed)[-3:] == ["4", "5", "6"]
        for step in ("4", "5", "6"):
            assert resumed[step] == pytest.approx(through[step], abs=1e-6), step


def test_a_checkpoint_has_whole_weights(seen):
    folder, _, model = seen
    trained = GPT2LMHeadModel.from_pretrained(folder / "out2" / "checkpoint-6")
    for (name, before), after in zip(model.named_parameters(), trained.parameters(), strict=True):
        assert after.shape == before.shape and after.isfinite().all() and not after.equal(before), name


@pytest.mark.parametrize("name, says", [
    ("deepspeed.ops.transformer", "'deepspeed.ops.transformer': its kernels are DeepSpeed's own"),
    ("deepspeed.moe", "'deepspeed.moe': its layers drop tokens beyond a capacity"),
    ("deepspeed.runtime.zenflow", "'deepspeed.runtime.zenflow': use the public names"),
])
def test_what_is_missing_is_said(name, says):
    with pytest.raises(ModuleNotFoundError, match=says):
        stand_in.StandInFinder().find_spec(name)


def test_deepspeed_itself_is_not_replaced_under_way(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", sys)
    with pytest.raises(BadInput, match="has been imported in this process"):
        stand_in.install()


@pytest.mark.parametrize("words, says", [
    (["run", "absent.py", "--deepspeed", "ds.json"], "SCRIPT is absent.py, which is not a file"),
    (["run", "--nporc", "2", "train.py"], "there is no option --nporc: did you mean --nproc?"),
    (["run", "--nproc", "0", "train.py"], "--nproc is 0"),
])
def test_bad_input_is_one_sentence(capsys, words, says):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
