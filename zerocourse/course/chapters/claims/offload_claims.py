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
from ....zero.shard import shard
from ..offload import offload_trial as trial
from ..offload import simulated_device as device
from .claim import FALSE, ONLY_IF, TRUE, Claim, Evidence, Judgement, judged
from .memory_claims import TRILLION, V100

GROUP = "offload"
READ = "deepspeed/ in github.com/deepspeedai/DeepSpeed, commit edaa722"
WORDS = ("dpu", "delayed_param", "delay_param", "delayed param", "delayed_update", "delayed_step", "one_step_delay")
COUNTED = 657, 0  # what `files_with(WORDS, ...)` returns there
CONFIG = trial.SMALL


# -- 4 bytes for each parameter ----------------------------------------------------------------------------------------

def link_bytes(**options) -> float:
    """Bytes for each parameter that a step moves over the link, both ways together."""
    run = trial.train(2, {}, steps=2, config=CONFIG, **options)
    return sum(run.link.values()) / CONFIG.params


def four_bytes() -> Evidence:
    every = best_placements()
    return {"claimed": 4, "least_of_all_placements": min(each.moved for each in every if each.on_host),
            "gradients_go_down_in_bf16": link_bytes(),
            "gradients_go_down_in_fp32": link_bytes(accumulate_dtype=torch.float32)}


def judge_four(e: Evidence) -> Judgement:
    half, full = (abs(e[f"gradients_go_down_in_{dtype}"] - e["claimed"]) < 0.01 for dtype in ("bf16", "fp32"))
    return judged((half, half and full), "{gradients_go_down_in_bf16:.0f} bytes with bf16 gradients, "
                  "{gradients_go_down_in_fp32:.0f} with fp32 gradients", "gradients go down in half precision")


# -- DeepSpeed hides it with DPU ---------------------------------------------------------------------------------------

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
            "milliseconds_of_a_step": {mode: round(1e3 * machine.predicted(mode)) for mode in device.MODES},
            "milliseconds_of_computing": round(1e3 * machine.compute)}


def judge_delayed(e: Evidence) -> Judgement:
    return Judgement(TRUE if e["files_with_one_of_them"] else FALSE,
                     "{files_with_one_of_them} of {python_files_of_DeepSpeed} Python files have a word for it")


# -- the ratio ---------------------------------------------------------------------------------------------------------

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


def judge_ratio(e: Evidence) -> Judgement:
    right = {n: abs(share - e["asked"]) < 0.01 for n, share in e["share_by_DeepSpeeds_sub_groups"].items()}
    numbers = ", ".join(str(n) for n, holds in right.items() if holds)
    return judged(right.values(), "{share_by_DeepSpeeds_sub_groups[1]:.0%} of a model with one sub-group",
                  f"sub-groups can be divided so; of those tried here, {numbers}")


# -- 30 to 50 % --------------------------------------------------------------------------------------------------------

SLOW_LINK = device.SleepingMachine(blocks=4, link=0.010, update=0.003)


def slowdown(micro_batches: int) -> float:
    """Measured: how much longer a step takes with offload, as a share of the step without."""
    alone, offloaded = (device.run(SLOW_LINK, accumulation=micro_batches, rounds=2, offloaded=there)
                        for there in (False, True))
    return offloaded.seconds / alone.seconds - 1


def cost_of_offload() -> Evidence:
    numbers = (1, 2, 8)
    once = SLOW_LINK.predicted("in the backward") / SLOW_LINK.compute - 1
    held = needs(Arrangement(3, HOST), TRILLION, 128)
    return {"claimed_cost": (0.3, 0.5), "cost_measured": {n: slowdown(n) for n in numbers},
            "cost_by_formula": {n: once / n for n in numbers}, "claimed_ranks": 128,
            "ranks_without_offload": fewest_ranks(TRILLION, 3, V100),
            "device_bytes_on_128": held.device_bytes, "host_bytes_on_128": held.host_bytes}


def judge_cost(e: Evidence) -> Judgement:
    low, high = e["claimed_cost"]
    costs = list(e["cost_by_formula"].values())  # what is measured has the noise of a shared machine
    settles = "from {cost_by_formula[8]:.0%} to {cost_by_formula[1]:.0%} on one and the same machine, by the batch"
    if low <= min(costs) and max(costs) <= high:
        return Judgement(TRUE, settles)
    if max(costs) < low or min(costs) > high:
        return Judgement(FALSE, settles)
    return Judgement(ONLY_IF, settles, "the batch is the right one")


CLAIMS = (
    Claim("offload: 4 bytes", GROUP, "traffic", "ZeRO-Offload moves 4 bytes per parameter and step between GPU and "
          "CPU.", four_bytes, judge_four,
          "It is the least that any placement of the paper's graph moves, as an enumeration of all of them shows.",
          "The dtype of the gradients on their way. DeepSpeed casts them to fp32 on the GPU first.",
          "deepspeed/runtime/zero/stage_1_and_2.py, 0.19.8"),
    Claim("hidden by DPU", GROUP, "time", "DeepSpeed hides the CPU's update behind the next step: the delayed "
          "parameter update (DPU).",
          delayed_update, judge_delayed,
          "The ZeRO-Offload paper has it, and it works: late by {steps_late[our offload, delayed]} step, a step of our "
          "simulated device takes {milliseconds_of_a_step[one step late]} ms in place of "
          "{milliseconds_of_a_step[in the backward]}.",
          "A release of DeepSpeed with it. ZenFlow and SuperOffload, which are there, are relatives, and do not do the "
          "same.",
          f"{READ}; Ren et al. 2021, arXiv 2101.06840, section 5"),
    Claim("ratio 0.3 is 30 %", GROUP, "bytes", "With the offload ratio 0.3, DeepSpeed puts 30 % of the optimizer on "
          "the CPU.", ratio, judge_ratio,
          "That is what the name says, and with many sub-groups it comes true. Here it is {share_measured_here:.1%}, "
          "because the cut may go through a tensor.",
          "A smaller `sub_group_size`. A rank's part that is below one sub-group goes to the CPU as a whole.",
          "deepspeed/runtime/zero/stage3.py, commit edaa722; DeepSpeed#4775"),
    Claim("offload costs 30–50 %", GROUP, "time", "Offload costs 30 to 50 % of the speed, and brings a trillion "
          "parameters from 1024 GPUs to 128.",
          cost_of_offload, judge_cost,
          "There is a batch for which it is right. And {claimed_ranks} GPUs have room for {device_bytes_on_128:gb} "
          "each, if the host has another {host_bytes_on_128:gb} for each of them.",
          "The batch: the link carries the same bytes whatever the batch is. We have found neither figure in a paper."),
)
