"""Checks of what people run: DeepSpeed's loop with the engine, the tour; and how long a step takes, with a trace of it."""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from ...comm import bootstrap
from ...comm.device_clock import finished
from ...engine import initialize
from ...errors import BadInput
from ...models.gpt2 import GPT, GPTConfig
from ...offload import HostOffload
from ...zero.extras import shard
from .check_record import Record
from .small_training import config, forget_peak, half, tokens_of

PRECISIONS = {"fp32": {}, "bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True, "initial_scale_power": 22}}}
TOUR = ["-m", "zerocourse", "tour", "--json"]
SMALL_TOUR = ["--model", "gpt2-tiny", "--tokens", "16", "--micro-batch", "1", "--steps", "3"]
ROUNDS = 10  # that are timed


def engine(record: Record) -> None:
    """DeepSpeed's loop in three precisions. fp16 begins with a loss scale that overflows; a GPU without bf16 refuses it."""
    for name, section in PRECISIONS.items():
        with record.trying(name):
            try:
                said = engine_run(record.tiny, section)
            except BadInput as refused:
                record.note(**{name: refused})
                record.expect(name == "bf16" and half() != torch.bfloat16, f"{name} is refused: {refused}")
                continue
            record.note(**{name: said})
            record.expect(said["updates"] == 12, f"{name}: {said['updates']} updates, and not 12")
            record.expect(said["last"] < said["first"], f"{name}: the loss does not fall")
            record.expect(name != "bf16" or half() == torch.bfloat16, "bf16 would be emulated here, and is not refused")
            record.expect(name != "fp16" or 0 < said["skipped"] < 12, f"fp16: {said['skipped']} of 12 steps overflowed")


def engine_run(tiny: bool, section: dict) -> dict:
    forget_peak()
    torch.manual_seed(0)
    made, *_ = initialize(model=GPT(config(tiny)), config={
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}} | section)
    losses = []
    for step in range(24):
        tokens = tokens_of(config(tiny), step % 2, 0, 0).to(made.device)
        loss = made(tokens, tokens)
        made.backward(loss)
        made.step()
        losses.append(loss.item())
    return {"device": made.device, "first": losses[0], "last": losses[-1], "skipped": made.skipped_steps, "updates": made.global_steps,
            "MiB of the ledger": made.memory()["total_bytes"] >> 20,
            "MiB of the allocator": torch.cuda.memory_allocated() >> 20 if made.device.type == "cuda" else None}


def tour(record: Record) -> None:
    """`zerocourse tour` on two ranks, which share a GPU or have one each: bytes by formula, losses as one process's."""
    out = record.folder / "tour"
    ended = subprocess.run([sys.executable, *TOUR, "--device", bootstrap.device().type, "--out", out, *(SMALL_TOUR if record.tiny else [])],
                           capture_output=True, text=True)
    if ended.stdout.strip():
        record.note(**json.loads(ended.stdout))
    if ended.returncode:
        table = out / "table.txt"  # names what is wrong, where the tour came to its end
        said = table.read_text().splitlines()[-8:] if table.exists() else [ended.stderr[-1500:]]
        record.expect(False, "\n".join([f"the tour ended with status {ended.returncode}", *said]))


def speed(record: Record) -> None:
    """Milliseconds of a step of plain PyTorch, of our stages and of FSDP2, all in a group of one rank; in every round each takes a turn."""
    bootstrap.init()
    steps = {}
    for name, make in WAYS.items():
        with record.trying(name):
            steps[name] = step_of(record.tiny, make)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(2 + ROUNDS):
        for name, step in steps.items():
            took = step()
            if round_ >= 2:  # the first ones also build states and buffers
                seconds[name].append(took)
    record.note(**{f"{name}, ms": statistics.median(seconds[name]) * 1e3 for name in steps})
    for ours, theirs in (("stage 2", "DDP"), ("stage 3", "FSDP2"), ("stage 3, half", "FSDP2, half")):
        if ours in seconds and theirs in seconds:
            ratios = [one / other for one, other in zip(seconds[ours], seconds[theirs], strict=True)]
            record.note(**{f"{ours} to {theirs}": statistics.median(ratios)})


def ours(stage: int, **options) -> Callable:
    return lambda model, optimizer: shard(model, optimizer, stage=stage, **{name: value() for name, value in options.items()})


def fsdp2(dtype: Callable | None = None) -> Callable:
    def make(model: GPT, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        options = {} if dtype is None else {"mp_policy": MixedPrecisionPolicy(param_dtype=dtype())}
        for part in (*model.h, model):
            fully_shard(part, **options)
        return model, torch.optim.AdamW(model.parameters(), fused=True)

    return make


WAYS: dict[str, Callable] = {
    "plain": lambda model, optimizer: (model, optimizer),
    "DDP": lambda model, optimizer: (DistributedDataParallel(model), optimizer),
    **{f"stage {stage}": ours(stage) for stage in range(4)}, "FSDP2": fsdp2(),
    "stage 2, half": ours(2, param_dtype=half), "stage 3, half": ours(3, param_dtype=half), "FSDP2, half": fsdp2(half),
    "stage 2, offloaded": ours(2, offload=HostOffload)}  # callables, because an offload serves one model


def step_of(tiny: bool, make: Callable) -> Callable[[], float]:
    """A step that returns its seconds, with what it has asked of the GPU."""
    shape, device = config(True) if tiny else GPTConfig(12, 12, 768, block_size=512, vocab_size=50_304), bootstrap.device()
    torch.manual_seed(0)
    model = GPT(shape).to(device)
    made, optimizer = make(model, torch.optim.AdamW(model.parameters(), fused=True))
    tokens = tokens_of(shape, 0, 0, 0).to(device)

    def step() -> float:
        began = finished(device)
        made(tokens, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        return finished(device) - began

    return step


def trace(record: Record) -> None:
    """Three steps of stage 2 in half precision, for https://ui.perfetto.dev; how many kernels are launched, how often the host waits."""
    shape, device = config(record.tiny), bootstrap.device()
    gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    for name, options in {"plain": {}, "offloaded": {"offload": HostOffload()}, "delayed": {"offload": HostOffload(delay_after=1)}}.items():
        torch.manual_seed(0)
        model = GPT(shape).to(device)
        model, optimizer = shard(model, torch.optim.AdamW(model.parameters(), fused=True), stage=2, param_dtype=half(), **options)
        tokens = tokens_of(shape, 0, 0, 0).to(device)

        def steps(number: int, model=model, optimizer=optimizer, tokens=tokens) -> None:
            for _ in range(number):
                model(tokens, tokens).backward()
                model.zero.clip_grad_norm_(1.0)
                optimizer.step()
                optimizer.zero_grad()

        steps(3)
        with profile(activities=[ProfilerActivity.CPU, *gpu]) as seen:
            steps(3)
            if gpu:
                torch.cuda.synchronize()
        model.zero.settle()
        seen.export_chrome_trace(str(record.folder / f"trace_{name}.json.gz"))
        counts = {row.key: row.count for row in seen.key_averages()}
        record.note(**{name: {"launches a step": sum(count for key, count in counts.items() if "LaunchKernel" in key) // 3,
                              "waits in three steps": {key: count for key, count in counts.items()
                                                       if "Synchronize" in key or key == "aten::_local_scalar_dense"}}})
