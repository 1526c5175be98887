"""A parameter server: rank 0 keeps the parameters, the others are workers that compute gradients (Li et al. 2014).

`gradient(parameters, worker, step)` computes one worker's gradient. The server sends parameters to the worker, and the
worker sends its gradient back. A synchronous server waits for all workers, averages their gradients and then answers
all of them. An asynchronous server answers whichever worker comes first, so that other workers may have changed the
parameters since this worker read them. The gradient of such a worker is stale.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

Gradient = Callable[[torch.Tensor, int, int], torch.Tensor]


def synchronous(parameters: torch.Tensor, gradient: Gradient, steps: int, lr: float) -> torch.Tensor:
    """Train for `steps` rounds, and return the parameters, which are the same on every rank."""
    rank, workers = dist.get_rank(), range(1, dist.get_world_size())
    for step in range(steps):
        if rank == 0:
            gradients = torch.empty(len(workers), parameters.numel())
            for worker in workers:
                dist.recv(gradients[worker - 1], worker)
            parameters = parameters - lr * gradients.mean(0)
            for worker in workers:
                dist.send(parameters, worker)
        else:
            dist.send(gradient(parameters, rank, step), 0)
            parameters = parameters.clone()
            dist.recv(parameters, 0)
    return parameters


def asynchronous(parameters: torch.Tensor, gradient: Gradient, steps: int, lr: float) -> tuple[torch.Tensor, list[int]]:
    """Each worker computes `steps` gradients at its own pace.

    On the server, returns its parameters and the staleness of each update, which is the number of other updates between
    the moment the worker read the parameters and this update. On a worker, returns the last parameters it read and an
    empty list.
    """
    rank, workers = dist.get_rank(), dist.get_world_size() - 1
    if rank:
        for step in range(steps):
            dist.send(gradient(parameters, rank, step), 0)
            parameters = parameters.clone()
            dist.recv(parameters, 0)
        return parameters, []
    parameters, received, staleness = parameters.clone(), torch.empty_like(parameters), []
    read_at = [0] * (workers + 1)  # the number of updates there had been when each worker last read
    for update in range(steps * workers):
        worker = dist.recv(received)  # from whichever worker comes first
        staleness.append(update - read_at[worker])
        parameters -= lr / workers * received
        dist.send(parameters, worker)
        read_at[worker] = update + 1
    return parameters, staleness


def delayed(parameters: torch.Tensor, gradient: Gradient, loss: Callable[[torch.Tensor], float], steps: int, lr: float,
            delay: int) -> list[float]:
    """Staleness in one process, without chance: each gradient is computed from parameters `delay` updates old.

    Returns the loss before each update.
    """
    history, losses = [parameters], []
    for step in range(steps):
        losses.append(loss(history[-1]))
        history.append(history[-1] - lr * gradient(history[max(0, len(history) - 1 - delay)], 0, step))
    return losses
