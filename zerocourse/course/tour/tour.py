"""The tour: one GPT-2 trained on the same text in five ways, measured on every rank. What `zerocourse tour` runs.

    single   one process with the whole batch, in plain PyTorch, without our code
    ddp      stage 0: every rank holds everything
    zero1    optimizer states are sharded         zero2   gradients as well         zero3   parameters as well

`run_mode` runs in the ranks and only measures; `zerocourse.course.tour.tour.tour_checks` says what the numbers should be.
"""

import gc
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from ...comm import bootstrap
from ...comm.device_clock import finished
from ...comm.group import Comm
from ...data.sampler import ShardSampler
from ...data.text import batches, load_text
from ...init.deferred import deferred_init, materialize_model
from ...launch.launcher import launch
from ...launch.worker import progress
from ...measure.ledger import Ledger
from ...measure.watched_step import watched_step
from ...models.gpt2 import GPT, GPTConfig
from ...zero.extras import shard

MODES = ("single", "ddp", "zero1", "zero2", "zero3")
LIMIT_SECONDS = 900  # for the mode with one process, and for those with ranks together
STAGE = {mode: stage for stage, mode in enumerate(MODES[1:])}


@dataclass(frozen=True)
class TourSettings:
    """What is the same in every mode. Batches are in samples, and lengths in tokens."""

    model: GPTConfig
    ranks: int = 2
    micro_batch: int = 4  # samples per rank and step; `single` takes those of all ranks at once
    steps: int = 8
    lr: float = 1e-3
    seed: int = 0
    source: str | None = None  # a text file or a folder; None: Python's standard library
    budget: int | None = None  # bytes that each rank may hold before it is out of memory


def run_mode(mode: str, settings: TourSettings, plant: Callable | None = None,
             tell: Callable = lambda step, loss: None) -> dict:
    """Train in one mode on this rank, and return what was measured.

    The ledger watches the last step but one, which is not timed. The other steps are timed and not watched.
    plant(model, optimizer): called in the watched step; tests plant faults with it.   tell(step, loss): called after
        each step.

    Returns a dictionary: device ("cpu" or "cuda"); losses (this rank's, one per step); step_seconds (median); parameters_bytes, optimizer_bytes,
    buffers_bytes, rest_bytes (after the watched step); gradients_bytes (just before its update); peak_bytes;
    sent_bytes, sent_elements, padding_bytes, metadata_bytes (of that step); flat_buffers (see `buffer_lengths`);
    events.
    """
    comm, device = Comm(), bootstrap.device()
    train, _ = load_text(settings.source, settings.model.block_size)
    alone = mode == "single"
    sampler = (ShardSampler(len(train), 0, 1, settings.micro_batch * settings.ranks, seed=settings.seed) if alone else
               ShardSampler(len(train), comm.rank, comm.world_size, settings.micro_batch, seed=settings.seed))
    with deferred_init():
        model = GPT(settings.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, fused=True)
    if alone:
        materialize_model(model, seed=settings.seed, device=device)
    else:
        shard(model, optimizer, STAGE[mode], comm=comm, seed=settings.seed, device=device)

    parts = settings.ranks if alone else 1  # one after the other, so that the sums are those of the ranks
    losses, seconds, measured = [], [], {}
    stream = batches(train, sampler)
    for number in range(settings.steps):
        x_BT, y_BT = (tokens_BT.to(device) for tokens_BT in next(stream))
        if number == settings.steps - 2:
            with Ledger(model, optimizer, settings.budget) as ledger:
                if plant is not None:
                    plant(model, optimizer)
                watched = comm.recorder.step
                with nullcontext() if alone else model.zero.meter.watched_by(ledger):
                    measured = watched_step(ledger, optimizer, comm, lambda: step(model, optimizer, x_BT, y_BT, parts))
            losses.append(measured.pop("loss"))
            measured["events"] = comm.recorder.of_step(watched)
        else:
            began = finished(device)
            losses.append(step(model, optimizer, x_BT, y_BT, parts))
            seconds.append(finished(device) - began)
        tell(number + 1, losses[-1])
    return {"device": device.type, "losses": losses, "step_seconds": statistics.median(seconds[1:] or seconds), **measured,
            "flat_buffers": buffer_lengths(model)}


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x_BT: torch.Tensor, y_BT: torch.Tensor,
         parts: int) -> float:
    """One optimizer step on the batch in `parts` micro-batches; returns its mean loss."""
    total = 0.0
    for x, y in zip(x_BT.chunk(parts), y_BT.chunk(parts), strict=True):
        loss = model(x, y) / parts
        loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    return total


def buffer_lengths(model: torch.nn.Module) -> list[tuple[int, int]]:
    """(padded length, length of this rank's slice) of each flat buffer, in elements; empty without a stage."""
    if not hasattr(model, "zero"):
        return []
    return [(flat.layout.padded, flat.own.stop - flat.own.start) for flat in model.zero.flats]


def run_modes(modes: Sequence[str], settings: TourSettings, plant: Callable | None) -> dict[str, dict]:
    """Several modes one after the other, on this rank."""
    measured = {}
    for index, mode in enumerate(modes):
        def tell(step, loss, mode=mode, before=index * settings.steps):
            progress(before + step, len(modes) * settings.steps, mode=mode, loss=round(loss, 3))

        measured[mode] = run_mode(mode, settings, plant, tell)
        gc.collect()  # a stage and its hooks refer to each other; its memory must be free for the next mode
    return measured


def measure(settings: TourSettings, plant: Callable | None = None) -> dict[str, list[dict]]:
    """Every mode on real ranks: {mode: what each rank measured}. Raises what `launch` raises."""
    options = {"quiet": True, "timeout": LIMIT_SECONDS, "env": {"OMP_NUM_THREADS": "1"}}  # one core per rank
    alone = launch(run_modes, MODES[:1], settings, plant, nproc=1, **options)
    ranks = launch(run_modes, MODES[1:], settings, plant, nproc=settings.ranks, **options)
    return {mode: [rank[mode] for rank in (alone if mode in MODES[:1] else ranks)] for mode in MODES}
