"""One small GPT-2, trained for a few steps by a stage or by plain PyTorch, of which the losses are compared."""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from ...comm import bootstrap
from ...comm.torch_private import cuda_sleep
from ...engine.checkpoint import load_checkpoint, save_checkpoint
from ...models.gpt2 import GPT, GPTConfig
from ...zero.extras import shard

SAMPLES = 4  # of a micro-batch


def config(tiny: bool) -> GPTConfig:
    """A GPT-2 with 30M parameters, or with 35,000."""
    return GPTConfig(2, 2, 32, block_size=16, vocab_size=256) if tiny else GPTConfig(8, 8, 512, block_size=256, vocab_size=8192)


def half() -> torch.dtype:
    """The half precision that this device has: bf16, and fp16 on GPUs before compute capability 8.0."""
    old = bootstrap.device().type == "cuda" and torch.cuda.get_device_capability() < (8, 0)
    return torch.float16 if old else torch.bfloat16


def tokens_of(shape: GPTConfig, step: int, micro_batch: int, rank: int) -> torch.Tensor:
    """(samples, tokens), int64, on the CPU: small numbers are frequent, so that there is something to learn."""
    source = torch.Generator().manual_seed(10_000 * step + 100 * micro_batch + rank)
    return (torch.rand(SAMPLES, shape.block_size, generator=source).square() * shape.vocab_size).long()


def losses_of(tiny: bool, stage: int | None, steps: int = 6, micro_batches: int = 2, *, ranks: int | None = None, dropout: float = 0.0,
              device: torch.device | str | None = None, prepare: Callable = lambda model: None, attach: Callable = lambda stage: None,
              save: Path | None = None, load: Path | None = None, asynchronous: bool = False, late: bool = True, **options) -> list[float]:
    """This rank's loss of each step, a mean over its micro-batches.

    stage: None is plain PyTorch in one process, on the samples of all `ranks`.   options: of `zerocourse.shard`.
    prepare(model): before it is sharded.   attach(model.zero): after it.   save: a folder for a checkpoint in the middle of the
    steps.   load: such a folder; only the steps after it are made then.
    late: keep a GPU busy before each backward, so that the host is far ahead of it. What is read too early, or overwritten too
    early, is wrong then, and not by luck right.
    """
    shape, device = config(tiny), bootstrap.device() if device is None else torch.device(device)
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() and stage is not None else (0, ranks or 1)
    torch.manual_seed(0)
    model = GPT(replace(shape, dropout=dropout)).to(device)
    prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    if stage is not None:
        model, optimizer = shard(model, optimizer, stage=stage, **options)
        attach(model.zero)
    if load is not None:
        load_checkpoint(model, optimizer, load)
    samples_of = range(ranks) if stage is None else [rank]
    losses = []
    for step in range(0 if load is None else steps // 2, steps):
        total = torch.zeros((), device=device)
        for micro_batch in range(micro_batches):
            is_last = micro_batch == micro_batches - 1
            for of_rank in samples_of:
                tokens = tokens_of(shape, step, micro_batch, of_rank).to(device)
                with nullcontext() if stage is None else model.zero.backward_options(is_last=True) if is_last else model.zero.no_sync():
                    loss = model(tokens, tokens) / (micro_batches * len(samples_of))
                    if late and device.type == "cuda":
                        cuda_sleep(20_000_000)  # of its clock's ticks: some 10 ms
                    loss.backward()
                total += loss.detach()
        if stage is None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        else:
            model.zero.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)  # its value is read at the end, because reading it waits for the GPU
        if save is not None and step == steps // 2 - 1:
            save_checkpoint(model, optimizer, save, asynchronous=asynchronous).wait()
    if stage is not None:
        model.zero.settle()
    return [loss.item() for loss in losses]


def apart(ours: list[float], theirs: list[float]) -> float:
    """The largest relative difference; infinite where one is NaN."""
    distances = [abs(one / other - 1) for one, other in zip(ours, theirs, strict=True)]
    return max(distance if distance == distance else float("inf") for distance in distances)


def mean_over_ranks(losses: list[list[float]]) -> list[float]:
    return [sum(each) / len(each) for each in zip(*losses, strict=True)]


def peak_mib() -> int:
    """MiB that the GPU's allocator had handed out at most since `forget_peak`; 0 without a GPU."""
    return torch.cuda.max_memory_allocated() >> 20 if torch.cuda.is_initialized() else 0


def forget_peak() -> None:
    gc.collect()  # a stage and its hooks refer to each other: the one before would count
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
