"""Side by side with DeepSpeed itself: one script, one ds_config.json, the same losses, and its checkpoints go on here.

Skipped where DeepSpeed is not installed; CONTRIBUTING says how to install it. DeepSpeed runs on the CPU over gloo too.
"""

import importlib.util
import json
import math
import shutil
import statistics
from itertools import combinations

import pytest
import torch
from test_trainer import AUTO, COMMON, tiny_gpt2
from test_trainer import SCRIPT as TRAINER

from zerocourse.cli import main
from zerocourse.launch.launcher import launch

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
    pytest.mark.skipif(not (shutil.which("g++") and shutil.which("ninja")),
                       reason="DeepSpeed compiles its Adam with g++ and ninja, and one of them is missing"),
    pytest.mark.timeout(900),  # the first test waits for all runs
]

SCRIPT = '''
import argparse, importlib, json, sys
import torch, torch.distributed as dist
from zerocourse.data.text import TextDataset, read_tokens
from zerocourse.models.gpt2 import build_model

package, runs = sys.argv[1], json.load(open(sys.argv[2]))
deepspeed = importlib.import_module(package)  # `import deepspeed`, or `import zerocourse as deepspeed`
if package == "deepspeed":  # it refuses fp16 on processors without instructions for it, where torch computes it all the same
    type(deepspeed.accelerator.get_accelerator()).is_fp16_supported = lambda self: True
deepspeed.init_distributed("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
text = TextDataset(read_tokens(argparse.__file__), 32)
order = torch.randperm(len(text), generator=torch.Generator().manual_seed(0))

def train(config, steps, deal=0, save=None, load=None):
    """deal: 1 and 2, the samples of a batch go to other ranks and micro-batches.   save: {step: folder}.   load: a folder."""
    torch.manual_seed(1)
    model = build_model("gpt2-tiny", n_layer=2, n_embd=32)
    half = torch.bfloat16 if "bf16" in config else torch.float16 if "fp16" in config else torch.float32
    model.to(half).float()  # DeepSpeed's master weights are the rounded weights, ours the given ones: these are the same
    engine, optimizer, _, schedule = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    if load:
        assert engine.load_checkpoint("ours", load)[0]
    micro, window = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    rows = []
    while engine.global_steps < steps:
        batch = order[engine.global_steps * engine.train_batch_size():][:engine.train_batch_size()]
        batch = (batch, batch.view(2, -1).T, batch.flip(0))[deal].reshape(window, ranks, micro)
        rate, losses = engine.get_lr()[0], torch.zeros(1, dtype=torch.float64)
        for samples in batch[:, rank].tolist():
            loss = engine(*map(torch.stack, zip(*(text[sample] for sample in samples))))
            engine.backward(loss)
            engine.step()
            losses += loss.detach() / window / ranks
        dist.all_reduce(losses)
        norm, scale = engine.get_global_grad_norm(), getattr(optimizer, "cur_scale", 1)
        rows.append([losses.item(), rate, None if norm is None else float(norm), scale])
        if save and str(engine.global_steps) in save:
            engine.save_checkpoint(save[str(engine.global_steps)])
    engine.destroy()
    return rows

seen = {name: train(**run) for name, run in runs.items()}
if rank == 0:
    json.dump(seen, open(f"{package}.json", "w"))
'''
STAGES = (1, 2, 3)
STEPS, SAVED = 50, 25
CPU = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "DS_LOG_LEVEL": "error"}
FP16 = {  # begins with overflows. At stage 1 DeepSpeed adds micro-batches up before it divides by the number of ranks,
    # so its gradients overflow earlier than ours, and a scale without overflows is compared.
    1: {"initial_scale_power": 10}, 2: {"initial_scale_power": 20, "hysteresis": 1, "loss_scale_window": 5},
    3: {"initial_scale_power": 20, "hysteresis": 2, "loss_scale_window": 5}}


def config(stage: int, **precision) -> dict:
    bucket = 20_000  # several buckets; DeepSpeed's default would take 1.9 GiB per rank
    sizes = ["reduce_bucket_size", "allgather_bucket_size", *["stage3_prefetch_bucket_size"] * (stage == 3)]
    return {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_clipping": 0.5,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}},
            "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 10,
                                                              "total_num_steps": 60}},
            "zero_optimization": {"stage": stage} | dict.fromkeys(sizes, bucket), **precision}


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> tuple[dict, dict]:
    """(DeepSpeed's, ours): by run and step the mean loss, the learning rate, the gradient's norm and the loss scale."""
    folder = tmp_path_factory.mktemp("side-by-side")
    (folder / "script.py").write_text(SCRIPT)
    runs = {f"fp32, stage {stage}": {"config": config(stage), "steps": STEPS} for stage in range(4)}
    for stage in (1, 2, 3):  # no stage 0: there DeepSpeed's own runs in half precision are not those of its stages
        bf16 = {"config": config(stage, bf16={"enabled": True}), "steps": STEPS}
        runs |= {f"bf16, stage {stage}": bf16, f"bf16, stage {stage}, dealt otherwise": bf16 | {"deal": 1},
                 f"bf16, stage {stage}, dealt backwards": bf16 | {"deal": 2},
                 f"fp16, stage {stage}": {"config": config(stage, fp16={"enabled": True} | FP16[stage]), "steps": 30}}
    saved = {name: f"saved {name}" for name in runs if name in ("fp32, stage 1", "fp32, stage 2", "fp32, stage 3", "fp16, stage 2")}
    (folder / "deepspeed-runs.json").write_text(json.dumps(
        {name: run | {"save": {SAVED: saved[name]} if name in saved else None} for name, run in runs.items()}))
    launch("script.py", argv=["deepspeed", "deepspeed-runs.json"], cwd=folder, env=CPU, quiet=True)
    for name, theirs in saved.items():
        assert main(["checkpoint", "convert", str(folder / theirs / f"global_step{SAVED}"), str(folder / "ours" / name),
                     "--to", "zerocourse"]) == 0
        runs[f"{name}, goes on"] = runs[name] | {"load": name}
    (folder / "our-runs.json").write_text(json.dumps(runs))
    launch("script.py", argv=["zerocourse", "our-runs.json"], cwd=folder, env=CPU, quiet=True)
    return tuple(json.loads((folder / f"{package}.json").read_text()) for package in ("deepspeed", "zerocourse"))


def column(rows: list, index: int) -> torch.Tensor:
    return torch.tensor([math.nan if row[index] is None else row[index] for row in rows], dtype=torch.float64)


def largest(theirs: list, ours: list, index: int = 0) -> float:
    assert len(theirs) == len(ours)
    return (column(theirs, index) - column(ours, index)).abs().max().item()


def spread(one: list, other: list) -> float:
    """The root of the mean square of the losses' difference."""
    return (column(one, 0) - column(other, 0)).square().mean().sqrt().item()


@pytest.mark.parametrize("stage", range(4))
def test_losses_in_fp32(seen, stage):
    theirs, ours = (each[f"fp32, stage {stage}"] for each in seen)
    assert len(theirs) == STEPS and theirs[-1][0] < theirs[0][0] - 1, "it must have learned something"
    print(f"fp32, stage {stage}: losses {largest(theirs, ours):.1e}, norms {largest(theirs, ours, 2):.1e}")
    assert largest(theirs, ours) < 1e-5
    assert largest(theirs, ours, 1) == 0, "learning rates"
    if stage:  # at stage 0 DeepSpeed has no norm in fp32
        assert largest(theirs, ours, 2) < 1e-4, "norms"


def test_losses_in_bf16_lie_within_the_spread_of_deepspeeds_own(seen):
    """Three stages, and three ways to deal the same batches to the ranks: how far does rounding drive two runs apart?

    Each of our runs is compared with DeepSpeed's run of the same file and order, and DeepSpeed's runs with each other.
    """
    names = [name for name in seen[0] if name.startswith("bf16")]
    own = [spread(*pair) for pair in combinations([seen[0][name] for name in names], 2)]
    ours = {name: spread(seen[0][name], seen[1][name]) for name in names}
    print(f"bf16: DeepSpeed's own {statistics.median(own):.1e}, at most {max(own):.1e}; ours to its", ours)
    assert 0 < max(own) < 1e-3 and statistics.median(ours.values()) < max(own) and max(ours.values()) < 1.5 * max(own)
    for name in names:
        assert largest(seen[0][name], seen[1][name], 1) == 0, f"{name}: learning rates"


@pytest.mark.parametrize("stage", (1, 2, 3))
def test_losses_and_loss_scales_in_fp16(seen, stage):
    theirs, ours = (each[f"fp16, stage {stage}"] for each in seen)
    print(f"fp16, stage {stage}: losses {largest(theirs, ours):.1e}, scales {sorted(set(column(ours, 3).tolist()))}")
    assert column(theirs, 3).tolist() == column(ours, 3).tolist()
    assert (len(set(column(theirs, 3).tolist())) > 3) == (stage > 1), "the dynamic scale must have moved"
    assert largest(theirs, ours) < 1e-3
    assert largest(theirs, ours, 1) == 0, "learning rates: a step that is skipped is no step of the schedule"


@pytest.mark.parametrize("run", ["fp32, stage 1", "fp32, stage 2", "fp32, stage 3", "fp16, stage 2"])
def test_deepspeeds_checkpoint_goes_on_as_deepspeed_does(seen, run):
    theirs, ours = seen[0][run][SAVED:], seen[1][f"{run}, goes on"]
    print(f"{run}, from DeepSpeed's checkpoint on: losses {largest(theirs, ours):.1e}")
    assert largest(theirs, ours) < (1e-5 if "fp32" in run else 1e-3)
    assert largest(theirs, ours, 1) == 0, "learning rates"
    assert largest(theirs, ours, 3) == 0, "loss scales"


@pytest.fixture(scope="module")
def trainers(tmp_path_factory) -> dict[str, dict]:
    """What Hugging Face's Trainer saw by package and stage: one script, one ds_config.json."""
    seen = {}
    for package in ("deepspeed", "zerocourse"):
        folder = tmp_path_factory.mktemp(package)
        tiny_gpt2().save_pretrained(folder / "model")
        (folder / "script.py").write_text(TRAINER)
        (folder / "starts.py").write_text("starts = dict\n")
        runs = {}
        for stage in STAGES:
            zero = config(stage)["zero_optimization"]
            (folder / f"{stage}.json").write_text(json.dumps(AUTO | {"zero_optimization": zero}))
            runs[stage] = [*COMMON, "--use_cpu", "--output_dir", "out", "--save_strategy", "no", "--deepspeed", f"{stage}.json"]
        (folder / "runs.json").write_text(json.dumps(runs))
        bridge = {"zerocourse": ["zerocourse.engine.bridge", "script.py"], "deepspeed": ["script.py"]}[package]
        launch(bridge[0], argv=[*bridge[1:], "runs.json"], cwd=folder, env=CPU, quiet=True)
        seen[package] = json.loads((folder / "seen0.json").read_text())
    return seen


@pytest.mark.parametrize("stage", STAGES)
def test_the_trainer_loses_the_same_on_both(trainers, stage):
    theirs, ours = (trainers[package][str(stage)] for package in ("deepspeed", "zerocourse"))
    assert theirs["stage"] is None and ours["stage"] == stage, "each ran on the package that it names"
    assert list(theirs["logs"]) == list(ours["logs"]) and len(ours["logs"]) == 6
    for name, number in (("losses", 0), ("norms", 1), ("learning rates", 2)):
        gap = max(abs(theirs["logs"][step][number] - row[number]) for step, row in ours["logs"].items())
        print(f"Trainer, stage {stage}, {name}: {gap:.1e}")
        assert gap < 1e-5, name
    assert ours["evals"] == pytest.approx(theirs["evals"], abs=1e-5)
