"""`zerocourse config`: a file explained line by line, all of its problems on stderr, and the schema."""

import json

import pytest
import torch
from test_config import at, finite, mistakes

from zerocourse.cli import main
from zerocourse.engine.config import Config
from zerocourse.engine.config.explain import gradient_dtypes
from zerocourse.engine.config.json_schema import json_schema
from zerocourse.engine.updates.half_precision import DTYPES, precision_of
from zerocourse.errors import BadInput
from zerocourse.formulas.peak import gpt2_peak_bytes
from zerocourse.formulas.states import CONVENTIONS, Convention, model_states
from zerocourse.formulas.units import gb
from zerocourse.formulas.volumes import sent_bytes
from zerocourse.models.gpt2 import CONFIGS

FILE = """{
  "train_batch_size": 16,
  "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
  "steps_per_print": 10,
  "zero_optimization": {
    "stage": 3, "reduce_bucket_size": 1000,
    "overlap_comm": true
  },
  "bf16": {"enabled": true},
  "optimizer": {"type": "Lion", "params": {"lr": 1e-4}},
  "activation_checkpointing": {"number_checkpoints": null}
}
"""
GPT2 = CONFIGS["gpt2"]
LION = Convention("half", 2, 2, 8)  # in bf16: fp32 master weights and one average


@pytest.fixture
def file(tmp_path):
    def write(text: str = FILE) -> str:
        path = tmp_path / "ds_config.json"
        path.write_text(text)
        return str(path)
    return write


def run(capsys, *args) -> str:
    assert main(["config", *args]) == 0
    said = capsys.readouterr()
    assert not said.err
    return said.out


def explained(capsys, *args) -> dict:
    return json.loads(run(capsys, *args, "--json"))


def effects(capsys, *args) -> dict[str, str]:
    return {key["path"]: key["effect"] for key in explained(capsys, *args)["keys"]}


def test_what_offload_does(capsys, file):
    """bf16 with Lion, 2 ranks, 2 micro-batches: 8 bytes of states, 2 of a gradient and 2 of the parameter lie on the host; 2 go down,
    8 up. On the disk 10 and what is being written; 16 and 2 × 4 + 2 are read and written."""
    section = '"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"},'
    found, share = effects(capsys, file(FILE.replace('"stage": 3,', section))), GPT2.params // 2
    states, params = (found[f"zero_optimization.offload_{of}.device"] for of in ("optimizer", "param"))
    assert f"the host holds {gb(12 * share)} per rank at the step" in states and f"moves {gb(10 * share)} over the link" in states
    assert params == f"{gb(2 * share)} of parameters per rank leave the device, and go up for each of the 4 gathers of a step"
    on_disk = effects(capsys, file(FILE.replace('"stage": 3,', section.replace('"cpu"', '"nvme", "nvme_path": "/tmp"'))))[
        "zero_optimization.offload_optimizer.device"]
    unit = (GPT2.params - 12 * 7_087_872) // 2
    assert f"the disk holds {gb(10 * (share + 4 * unit))}" in on_disk and f"reads and writes {gb(26 * share)} on the disk" in on_disk
    states = effects(capsys, file(FILE.replace('"stage": 3,', section[: section.index(' "offload_param')])))[
        "zero_optimization.offload_optimizer.device"]
    assert states.endswith(f"a step moves {gb(4 * share)} over the link")


def test_what_slow_links_do(capsys, file):
    section = '"stage": 3, "zero_hpz_partition_size": 2, "zero_quantized_weights": true, "zero_quantized_gradients": true,'
    of_four = file(FILE.replace('"stage": 3,', section))
    found = {key["path"]: key["effect"] for key in explained(capsys, of_four, "--nproc", "4")["keys"]}
    share, blocks = -(-GPT2.params // 4), -(-GPT2.params // 4 // 256)
    sent = blocks * (256 + 4) + 2 * blocks * (128 + 4)
    plain = 2 * 3 * 2 * share * 2
    assert found["zero_optimization.zero_quantized_weights"] == (
        f"of 2 nodes with 2 ranks each a rank sends {gb(sent)} to the others per step, where stage 3 alone sends {gb(plain)}")
    assert found["zero_optimization.zero_hpz_partition_size"].startswith(f"each rank keeps {gb(GPT2.params)} of its node's copy")
    alone = {key["path"]: key["effect"] for key in explained(capsys, of_four, "--nproc", "2")["keys"]}
    assert alone["zero_optimization.zero_quantized_gradients"] == "all 2 ranks are on one node, so nothing goes between nodes"
    of_three = file(FILE.replace('"stage": 3,', section.replace(": 2,", ": 3,")))
    assert main(["config", of_three, "--nproc", "8"]) == 2 and "no whole number of nodes" in capsys.readouterr().err


def test_json(capsys, file):
    out = explained(capsys, file())
    states = model_states(GPT2.params, 3, 2, LION)
    assert {key: out[key] for key in ("params", "stage", "ranks")} == {"params": GPT2.params, "stage": 3, "ranks": 2}
    assert out["total_bytes"] == states.total_bytes
    assert out["optimizer_bytes"] == states.optimizer_bytes == 4 * GPT2.params
    assert out["sent_bytes"] == sent_bytes(GPT2.params, 3, 2, 2, convention=LION)
    assert out["peak_bytes"] == gpt2_peak_bytes(GPT2, 3, 2, 4, 1024, LION, "full", accumulated=True)
    assert out["config"]["train_micro_batch_size_per_gpu"] == 4
    assert out["config"]["optimizer"]["params"]["betas"] == [0.9, 0.999]
    assert [(key["line"], key["path"]) for key in out["keys"]] == [
        (2, "train_batch_size"), (3, "gradient_accumulation_steps"), (3, "gradient_clipping"), (4, "steps_per_print"),
        (5, "zero_optimization"), (6, "zero_optimization.stage"), (6, "zero_optimization.reduce_bucket_size"),
        (7, "zero_optimization.overlap_comm"), (9, "bf16"), (9, "bf16.enabled"), (10, "optimizer"), (10,
                                                                                                     "optimizer.type"),
        (10, "optimizer.params"), (10, "optimizer.params.lr"), (11, "activation_checkpointing"),
        (11, "activation_checkpointing.number_checkpoints")]
    assert {key["path"]: key["group"] for key in out["keys"] if key["group"] != "works"} == {
        "steps_per_print": "changes nothing here"}
    assert all(key["does"] for key in out["keys"])


def test_what_keys_do_to_bytes(capsys, file):
    found = effects(capsys, file())
    alone = model_states(GPT2.params, 0, 2, LION)
    assert found["train_batch_size"] == "16 = 4 × 2 × 2 ranks"
    assert f"where data parallel holds {gb(alone.total_bytes)}" in found["zero_optimization.stage"]
    assert f"sends {gb(sent_bytes(GPT2.params, 3, 2, 1, convention=LION))} without accumulation" in \
        found["gradient_accumulation_steps"].replace("per rank, and ", "sends ")
    assert found["bf16.enabled"] == "a parameter costs 2 bytes, its gradient 2, and the optimizer 8: 12 in all"
    assert found["optimizer.type"] == f"1 number per parameter, {gb(4 * GPT2.params)} per rank with the master weights"
    assert found["zero_optimization.reduce_bucket_size"].endswith("2.00 kB")
    kept, would_keep = 4 * 1024 * 768 * 2 * 12, 34 * 4 * 1024 * 768 * 12
    assert found["activation_checkpointing"] == (
        f"12 of 12 blocks: all blocks keep {gb(kept)} of activations, where they would keep {gb(would_keep)}")
    assert found["gradient_clipping"] == "holds nothing, and sends one number per step"
    part = effects(capsys, file(FILE.replace('"number_checkpoints": null', '"number_checkpoints": 3')))
    assert part["activation_checkpointing"].startswith("3 of 12 blocks")
    assert "zero_optimization.overlap_comm" not in part or part["zero_optimization.overlap_comm"] is None


@pytest.mark.parametrize("section, convention", [
    ("", CONVENTIONS["fp32"]),
    (', "optimizer": {"type": "Adam"}', CONVENTIONS["fp32"]),
    (', "optimizer": {"type": "SGD"}', CONVENTIONS["fp32-sgd"]),
    (', "optimizer": {"type": "SGD", "params": {"momentum": 0.9}}', CONVENTIONS["fp32-momentum"]),
    (', "bf16": {"enabled": true}', CONVENTIONS["16"]),
])
@pytest.mark.parametrize("stage", (0, 1, 2, 3))
def test_bytes_of_each_optimizer_and_stage(capsys, file, section, convention, stage):
    path = file(f'{{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {{"stage": {stage}}}{section}}}')
    out, states = explained(capsys, path, "--model", "gpt2-tiny", "--nproc", "4"), None
    states = model_states(CONFIGS["gpt2-tiny"].params, stage, 4, convention)
    assert [out[f"{kind}_bytes"] for kind in ("parameters", "gradients", "optimizer", "total")] == [
        states.parameters_bytes, states.gradients_bytes, states.optimizer_bytes, states.total_bytes]
    assert out["peak_bytes"] == gpt2_peak_bytes(CONFIGS["gpt2-tiny"], stage, 4, 1, 128, convention, "selective")


def test_text_has_the_files_lines_with_what_they_do_below(capsys, file):
    path = file()
    text = run(capsys, path, "--nproc", "4")
    lines = text.splitlines()
    assert lines[0] == f"{path} for gpt2 (124,439,808 parameters) on 4 ranks"
    assert [line[6:] for line in lines if line[:4].strip().isdigit()] == FILE.splitlines()
    at = lines.index('   4    "steps_per_print": 10,')
    assert lines[at + 1] == "          > changes nothing here: engine.step prints nothing"
    assert lines[at + 2].startswith("   5")
    assert "here: 16 = 2 × 2 × 4 ranks" in text and "In all a rank holds 373 MB" in text


def test_every_malformed_config_ends_the_command_with_status_2_and_a_sentence(capsys, file):
    """Those that `test_config` reads: more than 500, a wrong value of every key. Not one of them gets a traceback."""
    wrong = {}
    for base, path, value, must in mistakes():
        status = main(["config", file(json.dumps(at(path, value, base)))])
        said = capsys.readouterr()
        if status != 2 or said.out or f"it must be {finite(must, value)}" not in said.err or said.err.count("\n") != 1:
            wrong[path, str(value)] = status, said
    assert not wrong


def test_all_problems_are_named_and_the_status_is_2(capsys, file):
    path = file(FILE.replace('"stage": 3', '"stage": 5, "stge": 1').replace(": 16", ": 15").replace("Lion", "Muon"))
    assert main(["config", path, "--json"]) == 2
    said = capsys.readouterr()
    starts = ["train_batch_size 15 is not divisible by 2 × 2",
              "zero_optimization.stage is 5: it must be an integer from 0 to 3",
              "zero_optimization has the unknown key 'stge'; did you mean 'stage'?",
              "optimizer.type is 'Muon', which is not supported"]
    sentences = said.err.splitlines()
    assert not said.out and len(sentences) == len(starts)
    for sentence, start, line in zip(sentences, starts, (2, 6, 6, 10), strict=True):
        assert sentence.startswith(f"zerocourse config: {start}") and sentence.endswith(f"({path}, line {line})")


@pytest.mark.parametrize("args, words", [
    ([], "FILE is missing: name a ds_config.json, or ask for its --schema"),
    (["nowhere.json"], "the config nowhere.json cannot be read: No such file or directory"),
    (["--schema", "--nproc", "2"], "--nproc would change nothing with --schema"),
    (["FILE", "--nproc", "0"], "--nproc is 0: it must be an integer from 1"),
    (["FILE", "--model", "gpt2-xxl"], "did you mean 'gpt2-xl'?"),
    (["FILE", "--nproc", "3"], "train_batch_size 16 is not divisible by 2 × 3"),
    (["FILE", "--auto", "optimizer.params.lr"], "it must be KEY=VALUE with a JSON value, such as optimizer"),
])
def test_bad_input(capsys, file, args, words):
    assert main(["config", *(file() if each == "FILE" else each for each in args)]) == 2
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1 and not said.out


def test_auto_may_be_given(capsys, file):
    path = file('{"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": "auto", "betas": "auto"}}}')
    out = explained(capsys, path, "--auto", "optimizer.params.lr=1e-4", "--auto", "optimizer.params.betas=[0.5, 0.75]")
    params = out["config"]["optimizer"]["params"]
    assert params["lr"] == 1e-4 and params["betas"] == [0.5, 0.75]


def test_schema(capsys):
    assert json.loads(run(capsys, "--schema")) == json.loads(run(capsys, "--schema", "--json")) == json_schema()


TRAINER = """{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
 "gradient_clipping": "auto", "fp16": {"enabled": "auto"}, "zero_optimization": {"stage": 2},
 "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
 "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto",
  "total_num_steps": "auto"}}}"""


def test_several_files_are_checked_at_once(tmp_path, capsys):
    good, auto, sized, bad, none = (tmp_path / f"{name}.json" for name in ("good", "auto", "sized", "bad", "none"))
    good.write_text(FILE)
    auto.write_text(TRAINER)
    sized.write_text(TRAINER.replace('"train_batch_size": "auto"', '"train_batch_size": 6'))
    bad.write_text('{"train_batch_size": 8,\n "zero_optimization": {"stage": 4},\n "fp17": {}}')
    assert main(["config", "--check", str(good), str(auto), str(sized)]) == 0
    assert capsys.readouterr().out == "3 files: nothing is wrong\n"
    assert main(["config", "--check", str(good), str(bad), str(none)]) == 2
    problems = capsys.readouterr().err.splitlines()
    assert [f"({bad}, line 2)" in problems[0], f"({bad}, line 3)" in problems[1], str(none) in problems[2]] == [True] * 3 == [True] * len(problems)
    assert main(["config", str(good), str(bad)]) == 2
    assert "one is explained at a time" in capsys.readouterr().err
    assert main(["config", "--check", str(good), "--model", "gpt2-xl"]) == 2
    assert "--model would change nothing with --check" in capsys.readouterr().err


def test_what_is_auto_counts_as_the_trainers_default(file, capsys):
    assert main(["config", file(TRAINER)]) == 2
    assert "optimizer.params.lr is 'auto'" in capsys.readouterr().err
    assert main(["config", file(TRAINER), "--trainer", "--auto", "optimizer.params.lr=0.25", "--json"]) == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert config["train_micro_batch_size_per_gpu"] == 8 and config["train_batch_size"] == 16
    assert config["optimizer"]["params"]["lr"] == 0.25 and config["optimizer"]["params"]["betas"] == [0.9, 0.999]


@pytest.mark.parametrize("half", ["bf16", "fp16", None])
@pytest.mark.parametrize("sent", ["fp32", "fp16", "bf16", None])
@pytest.mark.parametrize("added", ["fp32", "fp16", "bf16", None])
def test_gradients_have_the_dtypes_that_training_gives_them(half, sent, added):
    """The table knows them without torch."""
    given = {"train_batch_size": 2, "zero_optimization": {"stage": 1}, "communication_data_type": sent, "data_types": {"grad_accum_dtype": added}}
    try:
        config = Config.load(given | ({half: {"enabled": True}} if half else {}), 2)
    except BadInput:
        return  # what cannot be added up is refused
    precision = precision_of(config)
    assert tuple(DTYPES[name] for name in gradient_dtypes(config)) == precision.of_gradients(precision.param_dtype or torch.float32)
