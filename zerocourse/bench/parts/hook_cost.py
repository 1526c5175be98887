"""What our Python costs in a step: hooks, bookkeeping and small copies, measured where nothing else takes time.

In a world of one rank no byte is sent, and a model of tiny tensors computes next to nothing. The time
that a step takes longer under a stage than without it is then the cost of the stage. It is a sum of three costs: one
per step, one per unit and one per parameter.
"""

import gc
import statistics
import time

import numpy as np
import torch
from torch import Tensor, nn

from ...zero.extras import shard
from ..modes import adamw
from ..settings import BenchSettings

SIZES = ((2, 4), (8, 4), (2, 16), (8, 16))  # units, and parameters per unit
REPEATS = 15


class TinyBlock(nn.Module):
    """As many tiny parameters as asked for, each used once."""

    def __init__(self, params: int):
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(4)) for _ in range(params))

    def forward(self, x_4: Tensor) -> Tensor:
        for scale in self.scales:
            x_4 = x_4 * scale
        return x_4


class Tower(nn.Module):
    def __init__(self, units: int, params: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))  # the root's own
        self.h = nn.ModuleList(TinyBlock(params) for _ in range(units))

    def forward(self, x_4: Tensor) -> Tensor:
        x_4 = x_4 * self.scale
        for block in self.h:
            x_4 = block(x_4)
        return x_4.sum()


def hook_costs(settings: BenchSettings) -> dict[str, dict[str, float]]:
    """{stage: microseconds {"a_step", "a_unit", "a_parameter"}, and "example": of 12 units of 12 parameters}."""
    torch.set_num_threads(1)
    costs = {}
    for stage in range(4):
        rows = [(1.0, units, units * params) for units, params in SIZES]
        extra = [extra_seconds(stage, units, params) for units, params in SIZES]
        solved = np.linalg.lstsq(np.array(rows), np.array(extra), rcond=None)[0]
        step, unit, param = (1e6 * float(cost) for cost in solved)
        costs[f"zero{stage}" if stage else "ddp"] = {"a_step": step, "a_unit": unit, "a_parameter": param,
                                                     "example": step + 12 * unit + 144 * param}
    return costs


def extra_seconds(stage: int, units: int, params: int) -> float:
    """The median step with the stage less the median step without it; the two run in turn.

    Of processor time of this thread, in which all of it happens here: a busy machine then adds little.
    """
    plain, ours = Tower(units, params), Tower(units, params)
    runs = [(plain, adamw(plain.parameters(), 1e-6)), shard(ours, adamw(ours.parameters(), 1e-6), stage)]
    seconds = ([], [])
    gc.collect()
    for _ in range(REPEATS):
        for (model, optimizer), taken in zip(runs, seconds, strict=True):
            x_4 = torch.ones(4)
            began = time.thread_time()
            model(x_4).backward()
            optimizer.step()
            optimizer.zero_grad()
            taken.append(time.thread_time() - began)
    without, with_it = (statistics.median(taken[3:]) for taken in seconds)  # the first steps set things up
    return with_it - without
