"""The checks of what chapter 17 asks for itself: 17.w1, GPipe as a list, and 17.w2, a stage that sends and receives."""

import torch
import torch.nn.functional as F
from torch import nn

from ....checks import Trial, exercise
from ....checks.observers.stage_runs import WatchedComm
from .written_lists import looked_at

# 17.w1 ----------------------------------------------------------------------------------------------------------------

def gpipe_list(ranks, micro_batches, rank):
    """What this rank does in GPipe, in order: a list of ("F", k) and ("B", k), the forward
    and the backward of micro-batch k, counted from 0. All forwards come first, and both
    kinds go in the order of the micro-batches. Sends and receives are added for you.
    """
    return [(kind, k) for kind in ("F", "B") for k in range(micro_batches)]


@exercise(
    "17.w1", "GPipe as a list", minutes=5, difficulty=1, answer="gpipe_list", own=gpipe_list,
    replaces=("zerocourse.parallel.pipeline.schedules.synchronous:gpipe",),
    trials=[Trial([(4, 8), (2, 4), (3, 2), (1, 3)], looked_at)],
    mistakes={
        "one by one": {"order": lambda m: [(kind, k) for k in range(m) for kind in "FB"]},
        "last one first": {"order": lambda m: [*(("F", k) for k in range(m)), *(("B", k) for k in reversed(range(m)))]},
        "from 1": {"order": lambda m: [(kind, k + 1) for kind in "FB" for k in range(m)]},
        "one too few": {"order": lambda m: [(kind, k) for kind in "FB" for k in range(m - 1)]},
        "no backward": {"order": lambda m: [("F", k) for k in range(m)]},
    })
def listed(ranks, micro_batches, rank, *, order=lambda m: [(kind, k) for kind in "FB" for k in range(m)]):
    """The same on every rank."""
    return order(micro_batches)


# 17.w2 ----------------------------------------------------------------------------------------------------------------

def stage_step(comm, stage, x, target, loss):
    """One micro-batch through this rank's stage, forward and backward, with real messages.

    comm: `comm.send(tensor, to, name).wait()` sends to rank `to`, and
        `comm.recv(tensor, source, name).wait()` fills `tensor` with what rank `source`
        sends under the same name. It has `rank` and `world_size`.
    stage: the module of this rank. Its output has the shape of its input.
    x: the input of rank 0. The others need its shape only, and receive their own input.
    target, loss: for the last rank, whose loss is `loss(output, target)`.
    Returns the loss on the last rank, and None on the others.
    """
    first, last = comm.rank == 0, comm.rank == comm.world_size - 1
    if not first:
        x = torch.empty_like(x)
        comm.recv(x, comm.rank - 1, "activation").wait()
        x.requires_grad_()
    out = stage(x)
    if last:
        error = loss(out, target)
        error.backward()
    else:
        comm.send(out.detach(), comm.rank + 1, "activation").wait()
        gradient = torch.empty_like(out)
        comm.recv(gradient, comm.rank + 1, "gradient").wait()
        out.backward(gradient)
    if not first:
        comm.send(x.grad, comm.rank - 1, "gradient").wait()
    return error.detach() if last else None


def two_batches(answer, rows):
    """The losses and the gradients that this rank has after two micro-batches."""
    comm = WatchedComm()
    torch.manual_seed(3)
    stage = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(comm.world_size)][comm.rank]
    losses = []
    for _ in range(2):
        x, target = torch.randn(rows, 4), torch.randn(rows, 4)
        error = answer(comm, stage, x, target, F.mse_loss)
        losses.append(None if error is None else round(float(error), 5))
    gradients = [torch.zeros_like(param) if param.grad is None else param.grad for param in stage.parameters()]
    return {"losses": losses, "gradients": torch.cat([each.flatten() for each in gradients])}


@exercise(
    "17.w2", "A stage that sends and receives", minutes=14, difficulty=2, timeout=15, answer="stage_step", own=stage_step,
    trials=[Trial([(3,)], two_batches, worlds=(2, 3), close=1e-5)],
    mistakes={
        "a gradient of ones": {"received": lambda gradient, out: torch.ones_like(out)},
        "own input": {"sends": lambda x, out: x.detach()},
        "handed on": {"returned": lambda x, gradient: gradient},
        "weights cleared": {"before": lambda stage: stage.zero_grad()},
    })
def stepping(comm, stage, x, target, loss, *, received=lambda gradient, out: gradient, sends=lambda x, out: out.detach(),
             returned=lambda x, gradient: x.grad, before=lambda stage: None):
    """The loss on the last rank."""
    before(stage)
    first, last = comm.rank == 0, comm.rank == comm.world_size - 1
    gradient = torch.zeros_like(x)
    if not first:
        x = torch.empty_like(x)
        comm.recv(x, comm.rank - 1, "activation").wait()
    x = x.requires_grad_(not first)
    out = stage(x)
    if last:
        error = loss(out, target)
        error.backward()
    else:
        comm.send(sends(x, out), comm.rank + 1, "activation").wait()
        comm.recv(gradient, comm.rank + 1, "gradient").wait()
        out.backward(received(gradient, out))
    if not first:
        comm.send(x.grad if last else returned(x, gradient), comm.rank - 1, "gradient").wait()
    return error.detach() if last else None
