"""The checks of what chapter 11 asks for itself: 11.w1, an engine's backward and step, and 11.w2, the key gradient_clipping."""

from types import SimpleNamespace

import torch
from torch import nn

from ....checks import Trial, exercise

# 11.w1 ----------------------------------------------------------------------------------------------------------------

def engine_backward(engine, loss):
    """One micro-batch's gradients, so that those of a whole window are averaged."""
    (loss / engine.accumulation).backward()


def engine_step(engine):
    """At the end of a window update, clear gradients, move the schedule; else only count.

    engine: has `accumulation`, the micro-batches in a window, `micro_steps`, how many
        micro-batches are over, and `global_steps`, how many updates; both begin at 0.
        It has an `optimizer` and a `scheduler`, with the methods that torch's have.
    """
    engine.micro_steps += 1
    if engine.micro_steps % engine.accumulation == 0:
        engine.optimizer.step()
        engine.optimizer.zero_grad()
        engine.scheduler.step()
        engine.global_steps += 1


def loop_of(backward, step, accumulation, micro_batches):
    """What is there after each micro-batch."""
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    engine = SimpleNamespace(model=model, optimizer=optimizer, scheduler=scheduler, accumulation=accumulation, micro_steps=0, global_steps=0)
    seen = {name: [] for name in ("micro", "moved", "updates", "rates", "left")}
    weights = []
    for number in range(1, micro_batches + 1):
        before = model.weight.detach().clone()
        backward(engine, (model(torch.randn(4, 3)) - number).square().mean())
        step(engine)
        if not torch.equal(before, model.weight):
            seen["moved"].append(number)
            weights.append(model.weight.detach().clone())
            seen["left"].append(any(param.grad is not None and bool(param.grad.any()) for param in model.parameters()))
        seen["micro"].append(engine.micro_steps)
        seen["updates"].append(engine.global_steps)
        seen["rates"].append(round(optimizer.param_groups[0]["lr"], 6))
    return {"micro": seen["micro"], "moved": seen["moved"], "updates": seen["updates"], "rates": seen["rates"],
            "weights": torch.stack(weights) if weights else torch.zeros(1), "left": seen["left"]}


@exercise(
    "11.w1", "The engine's loop", minutes=10, difficulty=1, answer=("engine_backward", "engine_step"), own=(engine_backward, engine_step),
    trials=[Trial([(2, 4), (3, 7), (1, 2)], loop_of, close=1e-6)],
    mistakes={
        "not divided": {"share": lambda engine: 1},
        "never cleared": {"cleared": "never"},
        "last alone": {"cleared": "each"},
        "every micro-batch": {"ends": lambda engine: True},
        "early": ({"ends": lambda engine: engine.micro_steps % engine.accumulation == 1 % engine.accumulation}, {"counted": "late"}),
        "schedule each time": {"schedule": "each"},
        "no schedule": {"schedule": "never"},
        "no count": {"counted": "updates never"},
    })
def loop_pair(*, share=lambda engine: engine.accumulation, cleared="update", schedule="update", counted="first",
              ends=lambda engine: engine.micro_steps % engine.accumulation == 0):
    """The two right functions."""
    def backward(engine, loss):
        (loss / share(engine)).backward()

    def step(engine):
        engine.micro_steps += counted != "late"
        if schedule == "each":
            engine.scheduler.step()
        if ends(engine):
            engine.optimizer.step()
            if cleared == "update":
                engine.optimizer.zero_grad()
            if schedule == "update":
                engine.scheduler.step()
            engine.global_steps += counted != "updates never"
        if cleared == "each":
            engine.optimizer.zero_grad()
        engine.micro_steps += counted == "late"

    return backward, step


# 11.w2 ----------------------------------------------------------------------------------------------------------------

def clip(stage, limit):
    """What `gradient_clipping: limit` does before an update.

    stage: `stage.grad_norm()` is the 2-norm of the whole gradient, over all ranks;
        `stage.scale_gradients(factor)` multiplies the gradients of this rank.
    limit: the largest norm that an update may have; 0 means any. To be safe from a division
        by zero, add 1e-6 to the norm that you divide by.
    Returns the norm that the gradient had before.
    """
    norm = stage.grad_norm()
    if limit and norm > limit:
        stage.scale_gradients(limit / (norm + 1e-6))
    return norm


class NotedStage:
    """A stage of one rank, whose gradient is a vector."""

    def __init__(self, gradient):
        self.gradient = torch.tensor(gradient)
        self.asked = 0

    def grad_norm(self):
        self.asked += 1
        return self.gradient.norm()

    def scale_gradients(self, factor):
        self.gradient = self.gradient * factor


def clipped(answer, gradient, limit):
    """The gradient after it, and the norm that was returned."""
    stage = NotedStage(gradient)
    norm = answer(stage, limit)
    return {"norm": None if norm is None else float(norm), "gradient": stage.gradient, "asked": min(stage.asked, 1)}


@exercise(
    "11.w2", "A key that is applied", minutes=6, difficulty=1, answer="clip", own=clip,
    replaces=("zerocourse.zero.ddp:DataParallel.clip_grad_norm_",),
    trials=[Trial([([3.0, 4.0], 2.5), ([3.0, 4.0], 8.0), ([3.0, 4.0], 0.0), ([0.0, 0.0], 1.0), ([0.3, 0.4], 1.0)], clipped, close=1e-5)],
    mistakes={
        "stretched": {"when": lambda norm, limit: limit},
        "zero clips": {"when": lambda norm, limit: norm > limit},
        "never": {"when": lambda norm, limit: False},
        "norm after": {"told": lambda stage, norm: stage.grad_norm()},
        "nothing told": {"told": lambda stage, norm: None},
        "not in proportion": {"factor": lambda norm, limit: 1 / (norm + 1e-6)},
        "upside down": {"factor": lambda norm, limit: norm / limit},
        "the limit": {"factor": lambda norm, limit: limit},
    })
def clipping(stage, limit, *, when=lambda norm, limit: limit and norm > limit, factor=lambda norm, limit: limit / (norm + 1e-6),
             told=lambda stage, norm: norm):
    """The norm before."""
    norm = stage.grad_norm()
    if when(norm, limit):
        stage.scale_gradients(factor(norm, limit))
    return told(stage, norm)
