"""The check of 4.8: a training loop that hangs where ranks have different numbers of batches."""

import torch
from torch import nn

from ....checks import Trial, exercise
from ....checks.observers.stage_runs import WatchedComm

EXAMPLES, WIDTH = 4, 6  # of a batch: examples, and numbers in each


class CountingSGD(torch.optim.SGD):
    """SGD with momentum that counts its steps, and keeps the gradients of each."""

    def __init__(self, model: nn.Module):
        super().__init__(model.parameters(), lr=0.1, momentum=0.9)
        self.gradients = []

    def step(self, closure=None):
        grads = [param.grad for group in self.param_groups for param in group["params"]]
        self.gradients.append(sum(float(grad.abs().sum()) for grad in grads if grad is not None))
        return super().step(closure)


def batches_of(rank: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Different ones on every rank."""
    seed = torch.Generator().manual_seed(40 + rank)
    return [tuple(torch.randn(2, EXAMPLES, WIDTH, generator=seed)) for _ in range(count)]


def trained_on(answer, counts):
    """The model after the answer has trained it, where rank r has counts[r] batches."""
    comm = WatchedComm()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, WIDTH))
    optimizer = CountingSGD(model)
    answer(model, optimizer, batches_of(comm.rank, counts[comm.rank]), comm)
    return {"steps": len(optimizer.gradients), "sent": bool(comm.issued),
            "gradients": optimizer.gradients,
            "parameters": torch.cat([param.detach().flatten() for param in model.parameters()])}


def agreed(comm, number, op="max"):
    """The largest number of any rank, or with "sum" all of them together."""
    return int(comm.all_reduce(torch.tensor([number]), op))


def fewest(comm, number):
    return -agreed(comm, -number)


def backward(model, batches, step):
    """The gradients of this step's batch; none where there is no such batch."""
    if step < len(batches):
        x, y = batches[step]
        nn.functional.mse_loss(model(x), y).backward()


def last_one_again(model, batches, step):
    backward(model, batches or batches_of(0, 1), min(step, len(batches) - 1) if batches else 0)


def from_the_start_again(model, batches, step):
    backward(model, batches or batches_of(0, 1), step % len(batches) if batches else 0)


def zeros_as_batch(model, batches, step):
    backward(model, [*batches, *[(torch.zeros(EXAMPLES, WIDTH),) * 2] * (step + 1)], step)


def own_alone(comm, grad):
    """Sends nothing."""


def sum_of_all(comm, grad):
    comm.all_reduce(grad)


def hangs(model, optimizer, batches, comm, *, before=lambda comm: None, after=lambda comm: None):
    """The loop of the exercise."""
    for step in range(len(batches)):
        before(comm)
        optimizer.zero_grad()
        backward(model, batches, step)
        for param in model.parameters():
            comm.all_reduce(param.grad)
            param.grad /= comm.world_size
        optimizer.step()
    after(comm)


def barrier(comm):
    comm.all_reduce(torch.zeros(1))


def on_their_own(model, optimizer, batches, comm):
    """Together as long as all have a batch, and then each alone."""
    together = fewest(comm, len(batches))
    uneven_train(model, optimizer, batches[:together], comm)
    for step in range(together, len(batches)):
        optimizer.zero_grad()
        backward(model, batches, step)
        optimizer.step()


@exercise(
    "4.8", "Fix the hang", minutes=25, difficulty=2, timeout=15,
    replaces=("zerocourse.zero.ddp:*", "zerocourse.zero.shard:shard"),
    trials=[Trial([([2, 2],), ([3, 2],), ([1, 3],), ([0, 2],)], trained_on, worlds=(2,), close=1e-4),
            Trial([([1, 3, 2],), ([3, 1, 1],), ([2, 0, 0],)], trained_on, worlds=(3,), close=1e-4)],
    mistakes={
        "stuck": (hangs, lambda *given: hangs(*given, before=barrier), lambda *given: hangs(*given, after=barrier)),
        "no collective": {"steps": lambda comm, own: own, "present": lambda comm, has: 1, "bring": own_alone},
        "own gradients": {"bring": own_alone, "present": lambda comm, has: 1},
        "stopped early": {"steps": fewest},
        "on their own": on_their_own,
        "all ranks": {"present": lambda comm, has: comm.world_size},
        "never divided": {"present": lambda comm, has: 1},
        "last batch again": {"backward": last_one_again, "present": lambda comm, has: comm.world_size},
        "first batch again": {"backward": from_the_start_again, "present": lambda comm, has: comm.world_size},
        "batch of zeros": {"backward": zeros_as_batch, "present": lambda comm, has: comm.world_size},
        "old gradient": ({"clears": lambda has: has}, {"clears": lambda has: has,
                                                      "present": lambda comm, has: comm.world_size}),
        "left behind": {"updates": lambda has: has},
        "every batch alone": {"steps": lambda comm, own: agreed(comm, own, "sum")},
    })
def uneven_train(model, optimizer, batches, comm, *, steps=agreed, backward=backward, bring=sum_of_all,
                 present=lambda comm, has: agreed(comm, int(has), "sum"), clears=lambda has: True,
                 updates=lambda has: True):
    """Train on all batches of all ranks.
    present(comm, has): by what the sum is divided, where `has` says if this rank has a batch."""
    for step in range(steps(comm, len(batches))):
        has = step < len(batches)
        if clears(has):
            optimizer.zero_grad()
        backward(model, batches, step)
        count = present(comm, has)
        for param in model.parameters():
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            bring(comm, param.grad)
            param.grad /= max(1, count)
        if updates(has):
            optimizer.step()
