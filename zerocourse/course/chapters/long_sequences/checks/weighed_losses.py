"""The check of 19.5: find the bug in the loss of ranks that have different numbers of targets that count."""

import torch

from .....layout.rankmap import Layout
from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.observers.stage_runs import WatchedComm
from ....checks.words import a

NO_LABEL = -100
TARGETS = {  # of each rank, repeated where there are more ranks; -100 does not count
    "all count": [[1, 2, 0, 1], [2, 2, 1, 0], [0, 1, 1, 2]],
    "padding": [[1, 2, 0, 1], [2, NO_LABEL, NO_LABEL, NO_LABEL], [0, 1, NO_LABEL, NO_LABEL]],
    "a rank without any": [[1, 2, 0, NO_LABEL], [NO_LABEL] * 4, [0, 1, 2, 2]],
    "one in all": [[NO_LABEL] * 4, [NO_LABEL, 2, NO_LABEL, NO_LABEL], [NO_LABEL] * 4],
    "none at all": [[NO_LABEL] * 4] * 3,
}


def trained(answer, kind):
    """The mean of the ranks' losses, and of their gradients, as ZeRO takes it."""
    comm = WatchedComm()
    draw = torch.Generator().manual_seed(7 + comm.rank)
    logits = torch.randn(4, 3, generator=draw, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor(TARGETS[kind][comm.rank % 3])
    loss = answer(logits, targets, comm)
    if not torch.is_tensor(loss) or loss.dim():
        raise Wrong(f"it returned {a(loss)}: return a tensor without dimensions", MISUSED)
    if loss.requires_grad:
        loss.backward()
    everybodys = torch.zeros(comm.world_size, dtype=torch.float64)
    everybodys[comm.rank] = loss.detach()
    comm.all_gather(everybodys, Layout.split(comm.world_size, comm.world_size), "the losses that were returned").wait()
    mean = everybodys.mean()
    gradient = (torch.zeros_like(logits) if logits.grad is None else logits.grad) / comm.world_size
    finite = bool(mean.isfinite() and gradient.isfinite().all())
    return {"finite": finite} | ({"loss": mean.item(), "gradient": gradient} if finite else {})


def counted(targets):
    return (targets != NO_LABEL).sum()


@exercise(
    "19.5", "Find the bug: whose token weighs more?", minutes=15, difficulty=1, timeout=15, answer="sequence_loss",
    replaces=("zerocourse.parallel.context.token_loss:*",),
    trials=[Trial([(kind,) for kind in TARGETS], trained, worlds=(2, 3), close=1e-6)],
    mistakes={
        "mean of means": {"count": lambda targets, comm: counted(targets).clamp(min=1), "times": lambda targets, comm: 1},
        "not times N": {"times": lambda targets, comm: 1},
        "times those with targets": {"times": lambda targets, comm: comm.all_reduce(counted(targets).clamp(max=1))},
        "all positions": {"count": lambda targets, comm: comm.all_reduce(torch.tensor(targets.numel()))},
        "added twice": {"total": lambda total, comm: total + (comm.all_reduce(total.detach().clone()) - total.detach())},
        "division by zero": {"least": 0},
        "more than there are": {"least": 2},
    })
def weighed(logits, targets, comm, *, count=lambda targets, comm: comm.all_reduce(counted(targets)), times=lambda targets, comm: comm.world_size,
            total=lambda total, comm: total, least=1):
    """The sum over this rank's targets, over how many count on all ranks, times N."""
    own = torch.nn.functional.cross_entropy(logits, targets, ignore_index=NO_LABEL, reduction="sum")
    return total(own, comm) * times(targets, comm) / count(targets, comm).clamp(min=least)
