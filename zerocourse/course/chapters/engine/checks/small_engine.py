"""The check of 11.5: an engine for one rank, in plain torch, and what it does at each micro-batch."""

from types import SimpleNamespace

import torch
from torch import nn

from ....checks import Trial, exercise
from ....checks.observers.stage_probe import calling

LR = 0.1
CLOSING = {"never": (0, False), "before the backward of number 5": (5, False), "before the backward of number 2": (2, False),
           "after the backward of number 5": (5, True)}  # the micro-batch, and whether its backward is over


class TwoInputs(nn.Linear):
    def forward(self, x, scale):
        return super().forward(x) * scale


class NotedSchedule:
    """Each step makes the rate smaller by a tenth."""

    def __init__(self, optimizer):
        self.optimizer, self.steps = optimizer, 0

    def step(self):
        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.9


def engine_at_work(answer, accumulation, clipping, closes, micro_batches):
    """What is there after each micro-batch."""
    torch.manual_seed(1)
    model, (closed, late) = TwoInputs(3, 2), CLOSING[closes]
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5)
    schedule = NotedSchedule(optimizer)
    engine = answer(model, optimizer, schedule, accumulation, clipping)
    seen = {name: [] for name in ("boundaries", "still boundaries", "steps", "moved", "norms", "scheduled", "left")}
    first = first_norm = None
    for number in range(1, micro_batches + 1):
        x, y = torch.randn(4, 3), torch.randn(4, 2) * (1 + number % 4)  # norms rise and fall
        before = model.weight.detach().clone()
        if number == closed and not late:
            calling(answer, engine.close_window)
        seen["boundaries"].append(bool(calling(answer, engine.is_boundary)))
        loss = (calling(answer, lambda: engine(x, torch.full((4, 1), 0.5))) - y).square().mean()
        calling(answer, lambda: engine.backward(loss))
        seen["still boundaries"].append(bool(calling(answer, engine.is_boundary)))
        if number == closed and late:
            calling(answer, engine.close_window)
        calling(answer, engine.step)
        if not torch.equal(before, model.weight):
            seen["moved"].append(number)
            seen["left"].append(sum(0.0 if each.grad is None else each.grad.abs().sum().item() for each in model.parameters()))
            first, first_norm = (model.weight.detach().clone(), engine.norm) if first is None else (first, first_norm)
        seen["steps"].append(engine.global_steps)
        seen["norms"].append(None if engine.norm is None else float(engine.norm))
        seen["scheduled"].append(schedule.steps)
    return {"boundaries": seen["boundaries"], "still boundaries": seen["still boundaries"],
            "kind": f"a {type(engine.norm).__name__}", "moved": seen["moved"], "steps": seen["steps"],
            "scheduled": seen["scheduled"],
            "first norm": None if first_norm is None else float(first_norm), "norms": seen["norms"],
            "first update": first, "weights": model.weight.detach().clone(), "left": seen["left"]}


@exercise(
    "11.5", "An engine of your own", minutes=45, difficulty=3,
    replaces=("zerocourse.engine.engine:initialize", "zerocourse.engine.engine:Engine.__init__"),
    trials=[Trial([
        (1, 0.0, "never", 3), (3, 0.0, "never", 6), (3, 0.4, "never", 6), (3, 50.0, "never", 6), (3, 0.4, "before the backward of number 5", 8),
        (4, 0.0, "before the backward of number 2", 6), (3, 0.0, "after the backward of number 5", 8)], engine_at_work, close=1e-5)],
    mistakes={
        "every micro-batch": {"updates": lambda boundary: True},
        "not divided": {"share": lambda count, accumulation: 1},
        "decided in backward": {"decides": "backward"},
        "counts micro-batches": {"counted": "micro-batch"},
        "norm at first": {"first": 0.0},
        "short window": ({"mended": lambda accumulation, count: 1},),
        "stays closed": {"opens": False},
        "keeps counting": {"resets": False},
        "last alone": {"cleared": "micro-batch"},
        "never cleared": {"cleared": "never"},
        "counts in backward": {"counts": "backward"},
        "tensor": {"told": lambda norm, clipping: torch.tensor(norm)},
        "schedule each time": {"schedule": "micro-batch"},
        "no schedule": {"schedule": "never"},
        "clipped each time": {"clips": "micro-batch"},
        "clipped norm": {"told": lambda norm, clipping: min(norm, clipping) if clipping else norm},
        "zero clips": {"clips": "always"},
        "not clipped": {"clips": "never"},
        "lengthened": {"clips": "to the limit"},
    })
def MyEngine(model, optimizer, scheduler, accumulation, clipping, *, updates=lambda boundary: boundary,
             share=lambda count, accumulation: accumulation, mended=lambda accumulation, count: accumulation / count, opens=True,
             resets=True, counts="step", cleared="update", schedule="update", clips="update", told=lambda norm, clipping: norm, decides="step",
             counted="update", first=None):
    """An engine for one rank. share: what the loss is divided by."""
    state = SimpleNamespace(count=0, closed=False, boundary=False)
    engine = SimpleNamespace(global_steps=0, norm=first)
    params = list(model.parameters())

    def is_boundary():
        return state.closed or state.count + 1 >= accumulation

    def clip(limit):
        return torch.nn.utils.clip_grad_norm_(params, limit).item()

    def backward(loss):
        if cleared == "micro-batch":
            optimizer.zero_grad()
        (loss / share(state.count, accumulation)).backward()
        state.boundary = is_boundary()
        state.count += counts == "backward"
        if clips == "micro-batch" and clipping:
            clip(clipping)

    def step():
        state.count -= counts == "backward"
        boundary = state.boundary if decides == "backward" else is_boundary()
        state.count += 1
        engine.global_steps += counted == "micro-batch"
        if schedule == "micro-batch":
            scheduler.step()
        if not updates(boundary):
            return
        for param in params:
            param.grad.mul_(mended(accumulation, state.count) if boundary and resets else 1)
        norm = clip(float("inf"))
        if clips == "always" or clips == "update" and clipping:
            clip(clipping)
        if clips == "to the limit" and clipping:
            for param in params:
                param.grad.mul_(clipping / norm)
        engine.norm = told(norm, clipping)
        optimizer.step()
        if cleared == "update":
            optimizer.zero_grad()
        if schedule == "update":
            scheduler.step()
        engine.global_steps += counted == "update"
        state.count = 0 if resets and boundary else state.count
        state.closed = state.closed and not opens

    return Callable(model, engine, vars(engine) | {"is_boundary": is_boundary, "backward": backward, "step": step,
                                                   "close_window": lambda: setattr(state, "closed", True)})


class Callable:
    """The model when it is called; its other attributes are those that it is given."""

    def __init__(self, model, numbers, methods):
        self.model, self.numbers, self.methods = model, numbers, methods

    def __call__(self, *inputs):
        return self.model(*inputs)

    def __getattr__(self, name):
        return getattr(self.numbers, name) if name in ("global_steps", "norm") else self.methods[name]
