"""The check of 9.4: find the bug in a mean over targets of which a rank may have none."""

import torch

from .....comm.group import Comm
from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.observers.stage_runs import WatchedComm
from ....checks.words import a


def counts_of_ranks(world):
    """(targets that count on each rank, a factor of the gradients)."""
    return [([2, 2, 2][:world], 1.0), ([3, 1, 2][:world], 1.0), ([4, 0, 2][:world], 2.0), ([0, 5, 0][:world], 1.0),
            ([0, 0, 0][:world], 1.0)]


def averaged_on_a_rank(answer, counts, factor):
    """What the answer returns for a gradient of three elements."""
    comm = WatchedComm()
    mine = counts[comm.rank]
    summed = factor * mine * torch.tensor([1.0, -2.0, 6.0]) * (1 + comm.rank)
    mean = answer(summed, mine, comm)
    if not torch.is_tensor(mean):
        raise Wrong(f"it returned {a(mean)}: return a tensor as long as `summed`", MISUSED)
    return {"mean": mean}


def own_mean(summed, count, comm):
    return comm.all_reduce(summed / count) / comm.world_size


def own_mean_or_zero(summed, count, comm):
    return comm.all_reduce(summed / max(count, 1)) / comm.world_size


def of_those_with_targets(summed, count, comm):
    those = comm.all_reduce(torch.tensor([float(count > 0)]))
    return comm.all_reduce(summed / max(count, 1)) / those.clamp(min=1)


def own_count(summed, count, comm):
    return comm.all_reduce(summed.clone()) / max(count, 1)


@exercise(
    "9.4", "Find the bug: a mean over nothing", minutes=20, difficulty=2, timeout=15,
    trials=[Trial(counts_of_ranks, averaged_on_a_rank, worlds=(2, 3), close=1e-6)],
    mistakes={
        "the bug": own_mean,
        "a mean of means": own_mean_or_zero,
        "of those with targets": of_those_with_targets,
        "own count": own_count,
        "divided twice": {"divisor": lambda total, comm: total.clamp(min=1) * comm.world_size},
        "count averaged": {"divisor": lambda total, comm: (total / comm.world_size).clamp(min=1)},
        "largest count": {"of_counts": "max"},
        "nobody": {"divisor": lambda total, comm: total},
        "stuck": {"takes_part": lambda count: count > 0},
    })
def mean_gradient(summed, count, comm: Comm, *, divisor=lambda total, comm: total.clamp(min=1), takes_part=lambda count: True,
                  of_counts="sum"):
    """divisor: by which the sum of all ranks is divided.   takes_part: does a rank call the collectives?   of_counts: what becomes
    of the ranks' counts."""
    if not takes_part(count):
        return torch.zeros_like(summed)
    gradient = comm.all_reduce(summed.clone())
    return gradient / divisor(comm.all_reduce(torch.tensor([float(count)]), of_counts), comm)
