"""Claims about offload, on a simulated device, and about DeepSpeed's code, read at commit edaa722 (22 August 2026)."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from ....formulas.estimators import deepspeed_offloaded_share
from ....formulas.placements import best_placements
from ....formulas.states import fewest_ranks
from ....formulas.what_fits import HOST, Arrangement, needs
from ....measure.staleness import staleness
from ....offload import HostOffload
from ....zero.extras import shard
from ..offload import offload_trial as trial
from ..offload import simulated_device as device
from .claim import Evidence, judges
from .memory_claims import TRILLION, V100

WORDS = ("dpu", "delayed_param", "delay_param", "delayed param", "delayed_update", "delayed_step", "one_step_delay")
COUNTED = 657, 0  # what `files_with(WORDS, ...)` returns for deepspeed/ at that commit
CONFIG = trial.SMALL


def link_bytes(**options) -> float:
    """Bytes for each parameter that a step moves over the link, both ways together."""
    run = trial.train(2, {}, steps=2, config=CONFIG, **options)
    return sum(run.link.values()) / CONFIG.params


def four_bytes() -> Evidence:
    every = best_placements()
    return {"claimed": 4, "least_of_all_placements": min(each.moved for each in every if each.on_host),
            "gradients_go_down_in_bf16": link_bytes(),
            "gradients_go_down_in_fp32": link_bytes(accumulate_dtype=torch.float32)}


@judges("offload: 4 bytes", four_bytes)
def four_with(e):
    """bf16 gradients, and with fp32 gradients as well."""
    half, full = (abs(e[f"gradients_go_down_in_{dtype}"] - e["claimed"]) < 0.01 for dtype in ("bf16", "fp32"))
    return [half, half and full]


def late_sgd(delay_after: int | None, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    sgd = torch.optim.SGD(model.parameters(), lr=lr)
    return shard(model, sgd, 2, offload=HostOffload(delay_after=delay_after))[1]


def files_with(words: Sequence[str], folder: Path) -> tuple[int, int]:
    """How many Python files a folder has, and how many of them have one of the words, in capitals or not."""
    texts = [path.read_text(errors="replace").lower() for path in folder.rglob("*.py")]
    return len(texts), sum(any(re.search(rf"\b{word}", text) for word in words) for text in texts)


def delayed_update() -> Evidence:
    machine, (files, found) = device.SleepingMachine(), COUNTED
    return {"python_files_of_DeepSpeed": files, "words_looked_for": WORDS, "files_with_one_of_them": found,
            "steps_late": {"our offload": staleness(partial(late_sgd, None)),
                           "our offload, delayed": staleness(partial(late_sgd, 0))},
            "milliseconds_of_a_step_predicted": {mode: round(1e3 * machine.predicted(mode)) for mode in device.MODES},
            "milliseconds_of_computing": round(1e3 * machine.compute)}


@judges("hidden by DPU", delayed_update)
def there_is_a_word(e):
    return e["files_with_one_of_them"] > 0


def share_on_host(ratio: float) -> float:
    """The share of the optimizer's bytes that our own offload puts on the host."""
    run = trial.train(2, {"ratio": ratio}, steps=2, config=CONFIG)
    on_device, on_host = (where.get("optimizer_bytes", 0) for where in (run.device, run.host))
    return on_host / (on_device + on_host)


def ratio() -> Evidence:
    asked, sub_groups = 0.3, (1, 2, 3, 5, 10)
    return {"asked": asked, "share_by_DeepSpeeds_sub_groups": {n: float(deepspeed_offloaded_share(asked, n * 10**9))
                                                               for n in sub_groups},
            "share_measured_here": share_on_host(asked)}


@judges("ratio 0.3 is 30 %", ratio)
def as_asked(e):
    return {n: abs(share - e["asked"]) < 0.01 for n, share in e["share_by_DeepSpeeds_sub_groups"].items()}


SLOW_LINK = device.SleepingMachine(blocks=4, link=0.010, update=0.003)


def slowdown(micro_batches: int) -> float:
    """Measured: the share of the speed that offload costs. A step that takes twice as long has half the speed."""
    alone, offloaded = (device.run(SLOW_LINK, accumulation=micro_batches, rounds=2, offloaded=there)
                        for there in (False, True))
    return 1 - alone.seconds / offloaded.seconds


def cost_of_offload() -> Evidence:
    numbers = (1, 2, 8)
    added = SLOW_LINK.predicted("in the backward") / SLOW_LINK.compute - 1  # to a step of one micro-batch
    held = needs(Arrangement(3, HOST), TRILLION, 128)
    return {"claimed_loss_of_speed": (0.3, 0.5), "lost_by_micro_batches": {n: slowdown(n) for n in numbers},
            "lost_by_formula": {n: added / (n + added) for n in numbers}, "claimed_ranks": 128,
            "ranks_without_offload": fewest_ranks(TRILLION, 3, V100),
            "device_bytes_on_128": held.device_bytes, "host_bytes_on_128": held.host_bytes}


@judges("offload costs 30–50 %", cost_of_offload)
def costs(e):
    """As much somewhere, and everywhere. What is measured is not looked at: it has the noise of a shared machine."""
    low, high = e["claimed_loss_of_speed"]
    losses = e["lost_by_formula"].values()
    least, most = min(losses), max(losses)
    return [least <= high and most >= low, low <= least and most <= high]
