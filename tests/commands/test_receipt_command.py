"""A plan is written, a training follows it, and the receipt lays one beside the other."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from zerocourse.cli import main
from zerocourse.engine.config import Config
from zerocourse.planning import Candidate, ask
from zerocourse.planning.candidate import Evaluation
from zerocourse.planning.plan_files import config_of, launch_line, write_plan

TEXT = Path(__file__).parents[2] / "docs" / "tests.md"
CLUSTER = {"cards": 2, "machine": {"flops": 5e10, "memory_rate": 1e10, "memory": 8e9}, "sources": {"all": "a guess at a laptop"},
           "network": {"per_node": 2, "inside": 1e9, "between": 1e9, "latency": 1e-4, "latency_between": 1e-4}}
PLAN = ["plan", "--model", "gpt2-tiny", "--cluster", "cluster.json", "--ranks", "2", "--dtype", "fp32", "--batch", "16", "--seq", "64",
        "--most-micro-batch", "4", "--card", "12MB", "--write", "plan"]


# A small Llama by its config.json, and a script of one's own that trains it as the plan says.
LLAMA = {"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 64, "tie_word_embeddings": False}
SCRIPT = """
import sys

import torch
import zerocourse as deepspeed
from zerocourse.formulas.models.config_json import read_config
from zerocourse.models.llama import Llama

model = Llama(read_config("config.json"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=sys.argv[sys.argv.index("--deepspeed") + 1])
with engine.measured("output/mine", tokens=64):
    for _ in range(int(sys.argv[-1]) * engine.gradient_accumulation_steps()):
        engine.backward(engine(torch.randint(256, (engine.train_micro_batch_size_per_gpu(), 64))))
        engine.step()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("cluster.json").write_text(json.dumps(CLUSTER))
    return tmp_path


def said(capsys, *words: str) -> dict:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_was_planned_is_trained_and_its_receipt_has_the_same_bytes(here, capsys):
    planned = said(capsys, *PLAN)
    assert planned["written"] == ["plan/ds_config.json", "plan/launch.txt", "plan/prediction.json"]
    assert "zerocourse train --config plan/ds_config.json --model gpt2-tiny --tokens 64 --data TEXT" in Path("plan/launch.txt").read_text()
    measured = said(capsys, "train", "--config", "plan/ds_config.json", "--model", "gpt2-tiny", "--tokens", "64", "--data", str(TEXT),
                    "--nproc", "2", "--steps", "3")
    receipt = said(capsys, "receipt", "plan")
    for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "total_bytes", "sent_bytes"):
        row = receipt["rows"][name]
        assert row["measured"] == max(measured[name]) and row["ratio"] == pytest.approx(1, abs=1e-3), name
    assert receipt["rows"]["peak_bytes"]["ratio"] == pytest.approx(1, abs=0.05)
    assert receipt["rows"]["step_seconds"]["measured"] == measured["step_seconds"] and receipt["torch"] == measured["torch"]
    assert receipt["stage"] == planned["chosen"]["stage"] and receipt["source"] == "simulated"

    assert main(["receipt", "plan"]) == 0
    shown = capsys.readouterr().out
    assert "measured / predicted" in shown and "1.000" in shown

    summary = Path("output/deepspeed_metrics/summary.json")
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"stage": 3 - receipt["stage"]}))
    assert main(["receipt", "plan"]) == 2
    assert f"has stage = {receipt['stage']}, and the training in output/deepspeed_metrics had" in capsys.readouterr().err


def test_a_script_of_ones_own_measures_itself(here, capsys):
    Path("config.json").write_text(json.dumps(LLAMA))
    Path("train.py").write_text(SCRIPT)
    at = PLAN.index("gpt2-tiny")
    said(capsys, *PLAN[:at], "config.json", *PLAN[at + 1:])
    _, *words = shlex.split(Path("plan/launch.txt").read_text())  # the first is python

    def start(updates: int) -> subprocess.CompletedProcess:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.run([sys.executable, *words, str(updates)], env=environment, capture_output=True, text=True, timeout=120)

    ran = start(5)
    assert ran.returncode == 0, ran.stderr
    receipt = said(capsys, "receipt", "plan", "--measured", "output/mine")
    for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "total_bytes", "sent_bytes"):
        assert receipt["rows"][name]["ratio"] == pytest.approx(1, abs=2e-3), name
    assert receipt["rows"]["peak_bytes"]["ratio"] == pytest.approx(1, abs=0.05)
    assert receipt["rows"]["step_seconds"]["measured"] > 0
    Path("output/mine/summary.json").unlink()
    too_few = start(2)
    assert too_few.returncode and "engine.measured saw 2 updates: it needs three at least" in too_few.stderr
    assert not Path("output/mine/summary.json").exists()


@pytest.mark.parametrize("folder, said", [("plan", "plan/prediction.json is not there: `zerocourse plan --write` writes it"),
                                          ("broken", "broken/prediction.json is no JSON")])
def test_what_is_not_there_is_said(here, capsys, folder, said):
    Path("broken").mkdir()
    Path("broken/prediction.json").write_text("{")
    assert main(["receipt", folder]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("way", [
    Candidate(0, 2), Candidate(1, 4, 2, 3, dtype="fp32"), Candidate(3, 8, 4, 1, recompute=True),
    Candidate(2, 4, experts_over=2),
    Candidate(2, 2, optimizer="host"), Candidate(3, 2, optimizer="disk", parameters="disk"), Candidate(3, 2, optimizer="host", parameters="host"),
], ids=str)
def test_a_candidate_is_a_config_that_the_engine_takes(way):
    config = Config.load(config_of(way), way.ranks, {"optimizer.params.lr": 1e-3})
    assert (config.zero_optimization.stage, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps,
            config.train_batch_size, config.bf16.enabled) == (way.stage, way.micro_batch, way.accumulation, way.samples, way.half)
    devices = {"device": (None, "none"), "host": ("cpu",), "disk": ("nvme",)}
    assert config.zero_optimization.offload_optimizer.device in devices[way.optimizer]
    assert config.zero_optimization.offload_param.device in devices[way.parameters]
    assert (config.activation_checkpointing is not None) == way.recompute
    assert (config.expert_parallel.autoep_size if config.expert_parallel.enabled else 1) == way.experts_over


def test_the_launch_line_has_the_nodes(tmp_path):
    question = ask("llama-7b", "16x8xA100")
    line = launch_line(Path("plan"), question, Candidate(3, 64), "llama-7b")
    assert "--nnodes=8 --nproc-per-node=8" in line and line.endswith("-m zerocourse run train.py --deepspeed plan/ds_config.json")
    assert "--nproc-per-node=4 -m" in launch_line(Path("plan"), question, Candidate(3, 4), "llama-7b")


def test_a_mesh_is_not_written(tmp_path):
    chosen = Evaluation(Candidate(1, 8, tensor=2), "computed", {}, {"device": 1}, {}, 1.0, 0.0, 1)
    with pytest.raises(Exception, match="cannot write tensor 2 × data 4: a ds_config.json knows the data axis alone"):
        write_plan(tmp_path / "plan", ask("llama-7b", "8xA100"), chosen, {"model": "llama-7b", "cluster": "8xA100"})
    assert not (tmp_path / "plan").exists()
