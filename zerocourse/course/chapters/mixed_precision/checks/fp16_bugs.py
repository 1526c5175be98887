"""The check of 10.6: find two bugs in a step of fp16."""

import torch

from .....precision import DynamicLossScaler
from ....checks import Trial, exercise

INF, LR = float("inf"), 0.5
GRADIENTS = [  # of each step, unscaled, for two parameters
    ([3.0, 4.0], [0.0]), ([0.3, -0.1], [0.2]), ([INF, 1.0], [1.0]), ([30.0, 0.0], [-40.0]),
    ([float("nan"), 1.0], [1.0]), ([1.0, 1.0], [INF]),
    ([0.1, 0.2], [0.2])]


def steps_in_fp16(answer, initial):
    """A training of two parameters, with three overflows."""
    params = [torch.nn.Parameter(torch.tensor([1.0, -2.0])), torch.nn.Parameter(torch.tensor([0.5]))]
    optimizer = torch.optim.SGD(params, lr=LR)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 0.75**update)
    scaler = DynamicLossScaler(initial, hysteresis=1, window=1)
    seen, rates, scales, left = {}, [], [], 0
    for number, gradients in enumerate(GRADIENTS, 1):
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = torch.tensor(gradient) * scaler.loss_scale
        answer(params, optimizer, schedule, scaler, 1.0)
        seen[f"parameters step {number}"] = [param.detach().clone() for param in params]
        rates.append(optimizer.param_groups[0]["lr"])
        scales.append(scaler.loss_scale)
        left += any(param.grad is not None and bool(param.grad.any()) for param in params)
    return {**seen, "rates": rates, "scales": scales, "left": left}


def unscale(params, scaler):
    for param in params:
        param.grad /= scaler.loss_scale


def clip(params, most):
    return torch.nn.utils.clip_grad_norm_(params, most)


def norm_of(params):
    return torch.stack([param.grad.norm() for param in params]).norm()


@exercise(
    "10.6", "Find the bugs: a step in fp16", minutes=20, difficulty=2, timeout=10,
    trials=[Trial([(1024.0,), (65536.0,)], steps_in_fp16, close=1e-5)],
    mistakes={
        "both bugs": {"order": "clip first", "schedule_waits": False},
        "clip first": {"order": "clip first"},
        "schedule": {"schedule_waits": False},
        "no clipping": {"order": "no clipping"},
        "limit divided": {"order": "limit divided"},
        "each alone": {"order": "each alone"},
        "schedule stands": {"schedules": False},
        "still scaled": {"order": "no unscaling"},
        "unscaled twice": {"order": "twice"},
        "unscaled around": {"order": "around"},
        "never skips": {"skips": lambda norm: False},
        "NaN": {"skips": lambda norm: bool(norm.isinf())},
        "first alone": {"among": 1},
        "new scale": {"update": "first"},
        "scaler not told": {"update": "good alone"},
        "always good": {"update": "always good"},
        "told the opposite": {"update": "opposite"},
        "gradients left": {"clears": lambda skipped: not skipped},
    })
def step_repaired(params, optimizer, schedule, scaler, max_norm, *, order="unscale first", schedule_waits=True,
                  schedules=True, among=None,
                  skips=lambda norm: not norm.isfinite(), update="last", clears=lambda skipped: True):
    """One step, or none."""
    skipped = bool(skips(norm_of(params[:among])))
    if update == "first":
        scaler.update(skipped)
    if not skipped:
        if order in ("clip first", "limit divided"):
            clip(params, max_norm / (scaler.loss_scale if order == "limit divided" else 1))
        if order != "no unscaling":
            unscale(params, scaler)
        if order == "twice":
            unscale(params, scaler)
        if order not in ("clip first", "limit divided", "no clipping"):
            for group in ([[param] for param in params] if order == "each alone" else [params]):
                clip(group, max_norm)
        if order == "around":
            unscale(params, scaler)
        optimizer.step()
    if schedules and (not skipped or not schedule_waits):
        schedule.step()
    if clears(skipped):
        optimizer.zero_grad()
    if update == "last":
        scaler.update(skipped)
    elif update == "always good" or not skipped and update == "good alone":
        scaler.update(False)
    elif update == "opposite":
        scaler.update(not skipped)
