"""Reads off how late each stage of a pipeline applies its gradients, with the meter of `measure.staleness`.

Each rank's stage is a parabola of its own: stage i computes y + x²/2 of what it is given, so its gradient is its x. The
pipeline trains it with real messages, and the meter is shown each rank's own x after each of its updates.
"""

import torch
from torch import nn

from ....comm import Comm
from ....measure.staleness import staleness
from ..pipeline import Pipeline
from .actions import Schedule


class AddsParabola(nn.Module):
    """y + x²/2, float64."""

    def __init__(self, parabola: nn.Module):
        super().__init__()
        self.parabola = parabola

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return y + self.parabola()


class ShowsUpdates:
    """For the meter: an optimizer whose k-th step shows what x was after the pipeline's k-th update.

    The whole training has run before, because ranks whose x diverges stop to ask for steps, and others do not.
    """

    def __init__(self, model: nn.Module, values: list[float]):
        self.model, self.values = model, iter(values)

    def zero_grad(self) -> None:
        self.model.x.grad = None

    @torch.no_grad()
    def step(self) -> None:
        self.model.x.fill_(next(self.values))


def stage_delay(plan: Schedule, weights: str = "stash", comm: Comm | None = None, updates: int = 100) -> int:
    """The delay of this rank's stage in updates: 0, 1, 2, or 3 for three and more. Collective.

    plan: one stage per rank. With STEPs it must have as many as `updates`; without, each batch ends with an update.
    weights: the policy of `WeightVersions`, where there are STEPs.
    """
    comm = Comm() if comm is None else comm

    def make(model: nn.Module, lr: float) -> ShowsUpdates:
        return ShowsUpdates(model, trained(model, lr, plan, weights, comm, updates))

    return staleness(make, updates)


def trained(model: nn.Module, lr: float, plan: Schedule, weights: str, comm: Comm, updates: int) -> list[float]:
    """This rank's x after each update. `model` stays as it is: a copy is trained."""
    own = type(model)()
    own.load_state_dict(model.state_dict())
    seen: list[float] = []
    layers = [AddsParabola(own if stage in plan.stages_of(comm.rank) else type(model)()) for stage in range(plan.stages)]

    def optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
        sgd = torch.optim.SGD(params, lr)
        sgd.register_step_post_hook(lambda *_: seen.append(own.x.item()))
        return sgd

    has_steps = any(action.kind == "STEP" for action in plan.actions[comm.rank])
    pipeline = Pipeline(layers, plan, lambda out, target: out.sum(), comm, count=lambda target: 1, weights=weights,
                        optimizer=optimizer if has_steps else None)
    zeros = [torch.zeros((), dtype=torch.float64)] * plan.micro_batches
    if has_steps:
        pipeline.step(zeros, zeros)
        return seen
    sgd = optimizer(pipeline.parameters())
    for _ in range(updates):
        pipeline.step(zeros, zeros)
        sgd.step()
        sgd.zero_grad()
    return seen
