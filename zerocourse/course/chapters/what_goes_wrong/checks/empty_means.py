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
    """What the answer returns for a gradient of three elements.

    case: {0} targets on the ranks
    mean: rank {rank} has {got}, and {want} is right.
    """
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
        "nobody": {"divisor": lambda total, comm: total},
        "stuck": {"takes_part": lambda count: count > 0},
    })
def mean_gradient(summed, count, comm: Comm, *, divisor=lambda total, comm: total.clamp(min=1), takes_part=lambda count: True):
    """divisor: by which the sum of all ranks is divided.   takes_part: does a rank call the collectives?

    the bug: The bug is still there: each rank divides by its own number of targets, which may be 0, and 0/0 is NaN.
    a mean of means: The NaN is gone, and the weights are still wrong: a rank with four targets counts as much as one with
        none. Add up first, and divide once.
    of those with targets: A mean of the ranks' means gives a rank with one target as much weight as one with three: add up the
        gradients and the counts over the ranks first, and divide once.
    own count: You added the gradients up over the ranks, but you divided by this rank's own count: the counts must be added up
        as well, or each rank goes on with another gradient.
    divided twice: You divided by the number of ranks as well: the count of all ranks is all that there is to divide by.
    count averaged: You divided by the average count of a rank: the gradients are added up, so the counts must be added up too.
    nobody: Where no rank has a target, this is 0/0 again: nobody has learned anything, so the gradient is 0.
    stuck: A rank without targets sends zeros: the others wait for it.
    right: every target has the same weight on every rank, and a rank without targets does no harm.
    """
    if not takes_part(count):
        return torch.zeros_like(summed)
    gradient = comm.all_reduce(summed.clone())
    return gradient / divisor(comm.all_reduce(torch.tensor([float(count)])), comm)
