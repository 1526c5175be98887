"""Schedules on real ranks whose stages sleep: a sleeping stage needs no core, so any number of ranks can be timed on two.

The messages are real ones. Each carries the moment at which it was sent, and its receiver goes on when `transfer` units
more have passed, as if the link were that slow.
"""

import time
from collections.abc import Sequence
from fractions import Fraction
from statistics import median_low

import torch

from ....comm import Comm
from ....launch import Ranks
from ....parallel.pipeline import Costs, Schedule, Timing, one_f_one_b
from ....parallel.pipeline.schedules.actions import Action, Actions
from ....parallel.pipeline.schedules.makespan import OF_KIND, Computed

Row = tuple[str, int, int, float, float]  # kind, stage and micro-batch of an action, its begin and its end in seconds


def slept(schedule: Schedule, unit: float, costs: Costs = Costs()) -> list[Row]:
    """Do this rank's list, and sleep `unit` seconds for each unit that an action costs. Collective.

    Returns the computing actions with their times on the machine's monotonic clock, which all its processes share.
    """
    comm, sends, rows = Comm(), [], []
    comm.all_reduce(torch.zeros(1))  # all begin together
    for action in schedule.actions[comm.rank]:
        if not action.is_transfer:
            begin = time.perf_counter()
            time.sleep(unit * float(costs.of(OF_KIND[action.kind], action.stage)))
            rows.append((*action, begin, time.perf_counter()))
            continue
        name = f"{action.kind[-1]}{action.micro_batch} between stages {' and '.join(map(str, sorted((action.stage, action.other_stage))))}"
        if action.kind.startswith("SEND"):
            sends.append(comm.send(torch.tensor([time.perf_counter()], dtype=torch.float64), schedule.peer(action), name))
        else:
            sent_at = torch.empty(1, dtype=torch.float64)
            comm.recv(sent_at, schedule.peer(action), name).wait()
            arrives = sent_at.item() + unit * float(costs.of("transfer", action.other_stage))
            time.sleep(max(0.0, arrives - time.perf_counter()))
    for handle in sends:
        handle.wait()
    return rows


def measured(ranks: Ranks, schedule: Schedule, unit: float, costs: Costs = Costs(), rounds: int = 5) -> Timing:
    """The round with the median time, in units, to a hundredth: as `simulate` returns it, so that it can be drawn beside it."""
    timings = [timing_of(schedule, ranks.run(slept, schedule, unit, costs), unit) for _ in range(rounds)]
    middle = median_low(timing.makespan for timing in timings)
    return next(timing for timing in timings if timing.makespan == middle)


def timing_of(schedule: Schedule, by_rank: Sequence[Sequence[Row]], unit: float) -> Timing:
    begun = min(row[3] for rows in by_rank for row in rows)

    def units(moment: float) -> Fraction:
        return Fraction(round(100 * (moment - begun) / unit), 100)

    return Timing(schedule, [Computed(rank, Action(*action), units(begin), units(end))
                             for rank, rows in enumerate(by_rank) for *action, begin, end in rows])


def eager_1f1b(ranks: int, micro_batches: int, rank: int) -> Actions:
    """1F1B with twice the warm-up: up to 2(p - rank) - 1 micro-batches in flight, so that a rank has work while messages travel.

    It is what rank 0 does in 1F1B on so many ranks.
    """
    return [action._replace(stage=rank) for action in one_f_one_b(2 * (ranks - rank) - 1, micro_batches, 0)]
