"""The checks of what chapter 09 asks for itself: 09.w1, the gradient that each of five bugs leaves behind, and 09.w2, whether ranks
hold the same."""

import torch

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.observers.stage_runs import WatchedComm
from ....checks.words import a

# 09.w1 ----------------------------------------------------------------------------------------------------------------

BUGS = "no bug", "summed", "unscaled_loss", "last_micro_batch", "late_micro_batch", "nothing_reduced"


def left_by(bug, gradients, rank):
    """The gradient with which `rank` goes into the update.

    bug: one of
        "no bug": the mean over all ranks and all their micro-batches;
        "summed": the ranks' gradients are added up, and nobody divides by N;
        "unscaled_loss": the micro-batches are added up, and nobody divides by G;
        "last_micro_batch": each micro-batch, divided by G, replaces what was there;
        "late_micro_batch": the last micro-batch comes after the reduction: of it a
            rank adds its own, divided by N and by G, and what the others have is lost;
        "nothing_reduced": every rank goes on with the mean of its own micro-batches.
    gradients: (N, G, size), by rank and micro-batch.
    """
    N, G, _ = gradients.shape
    if bug == "no bug":
        return gradients.mean((0, 1))
    if bug == "summed":
        return gradients.mean(1).sum(0)
    if bug == "unscaled_loss":
        return gradients.mean(0).sum(0)
    if bug == "last_micro_batch":
        return gradients[:, -1].mean(0) / G
    if bug == "late_micro_batch":
        early = gradients[:, :-1].sum(1).mean(0) / G
        return early + gradients[rank, -1] / N / G
    return gradients[rank].mean(0)


def every_bug(answer, ranks, micro_batches):
    """The gradient that each bug leaves on each rank."""
    gradients = torch.randn(ranks, micro_batches, 3, generator=torch.Generator().manual_seed(10 * ranks + micro_batches))
    kept = gradients.clone()
    seen = {bug: torch.stack([torch.as_tensor(answer(bug, gradients, rank)).clone() for rank in range(ranks)]) for bug in BUGS}
    return seen | {"kept": torch.equal(kept, gradients)}


@exercise(
    "09.w1", "What a bug leaves", minutes=12, difficulty=2, answer="left_by", own=left_by,
    trials=[Trial([(2, 1), (2, 4), (3, 2)], every_bug, close=1e-5)],
    mistakes={
        "averaged after all": {"summed": lambda g, rank: g.mean((0, 1))},
        "all added": {"summed": lambda g, rank: g.sum((0, 1))},
        "losses averaged": {"unscaled_loss": lambda g, rank: g.mean((0, 1))},
        "last not divided": {"last_micro_batch": lambda g, rank: g[:, -1].mean(0)},
        "the first": {"last_micro_batch": lambda g, rank: g[:, 0].mean(0) / g.shape[1]},
        "only one's last": {"last_micro_batch": lambda g, rank: g[rank, -1] / g.shape[1]},
        "late in full": {"late_micro_batch": lambda g, rank: g[:, :-1].sum(1).mean(0) / g.shape[1] + g[rank, -1] / g.shape[1]},
        "late of all": {"late_micro_batch": lambda g, rank: g.mean((0, 1))},
        "late lost": {"late_micro_batch": lambda g, rank: g[:, :-1].sum(1).mean(0) / g.shape[1]},
        "of rank 0": {"nothing_reduced": lambda g, rank: g[0].mean(0)},
        "own sum": {"nothing_reduced": lambda g, rank: g[rank].sum(0)},
    })
def leaving(bug, gradients, rank, **changes):
    """A mean of some of the gradients."""
    return changes[bug](gradients, rank) if bug in changes else left_by(bug, gradients, rank)


# 09.w2 ----------------------------------------------------------------------------------------------------------------

def same_on_all(comm, tensor):
    """Do all ranks hold the same numbers? True or False, and the same answer on every rank.

    comm: `comm.broadcast(tensor, "a name")` puts rank 0's numbers into `tensor` on every
        rank, and `comm.all_reduce(tensor)` adds up over the ranks, in place. Both are
        collectives and return the tensor. `comm.world_size` is N.
    tensor: of fp32, of any length; it must not change. A NaN is equal to nothing.
    """
    theirs = comm.broadcast(tensor.clone(), "rank 0's")
    equal = torch.tensor([float(torch.equal(theirs, tensor))])
    return bool(comm.all_reduce(equal) == comm.world_size)


def held_by_ranks(world):
    """(what it is, the numbers of each rank)."""
    same, last = [1.0, 2.0, 3.0], world - 1
    return [("the same", [same] * world), ("rank 1 has others", [same, [4.0, 2.0, 0.5], *[same] * (world - 2)]),
            ("the last rank has them in another order", [*[same] * last, [3.0, 2.0, 1.0]]),
            ("rank 0 has a last digit of its own", [[1.0, 2.0, 3.000001], *[same] * last]),
            ("a NaN on every rank", [[1.0, float("nan"), 3.0]] * world)]


def told(answer, what, numbers):
    """What the answer says on this rank."""
    comm = WatchedComm()
    tensor = torch.tensor(numbers[comm.rank])
    before = tensor.clone()
    said = answer(comm, tensor)
    if not isinstance(said, bool):
        raise Wrong(f"it returned {a(said)}: return True or False", MISUSED)
    return {"same": said, "kept": torch.equal(before.nan_to_num(), tensor.nan_to_num())}


def equal(one, other):
    return torch.equal(one, other)


@exercise(
    "09.w2", "Do all ranks hold the same?", minutes=8, difficulty=1, timeout=15, answer="same_on_all", own=same_on_all,
    trials=[Trial(held_by_ranks, told, worlds=(2, 3))],
    mistakes={
        "own verdict": {"together": lambda comm, verdict: bool(verdict)},
        "one is enough": {"together": lambda comm, verdict: bool(comm.all_reduce(verdict) > 0)},
        "by its sum": {"alike": lambda one, other: bool(one.sum() == other.sum())},
        "nearly": {"alike": lambda one, other: torch.allclose(one, other, atol=1e-3)},
        "overwritten": {"copied": lambda tensor: tensor},
        "equal NaN": {"alike": lambda one, other: torch.equal(one.nan_to_num(), other.nan_to_num())},
    })
def comparing(comm, tensor, *, copied=torch.clone, alike=equal, together=lambda comm, verdict: bool(comm.all_reduce(verdict) == comm.world_size)):
    """Rank 0's numbers, compared on every rank, and the verdicts added up."""
    theirs = comm.broadcast(copied(tensor), "rank 0's")
    return together(comm, torch.tensor([float(alike(theirs, tensor))]))
