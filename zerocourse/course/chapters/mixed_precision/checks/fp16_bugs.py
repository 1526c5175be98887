"""The check of 10.6: find two bugs in a step of fp16."""

import torch

from .....precision import DynamicLossScaler
from ....checks import Trial, exercise

INF, LR = float("inf"), 0.5
GRADIENTS = [  # of each step, unscaled, for two parameters
    ([3.0, 4.0], [0.0]), ([0.3, -0.1], [0.2]), ([INF, 1.0], [1.0]), ([30.0, 0.0], [-40.0]),
    ([1.0, 1.0], [float("nan")]),
    ([0.1, 0.2], [0.2])]


def steps_in_fp16(answer, initial):
    """A training of two parameters, with two overflows.

    case: with a loss scale of {0} at first
    parameters *: after {what} the parameters are {got}, and {want} are right.
    rates: the parameters were right so far, but after each step the learning rate was {got}, and {want} is right.
    scales: after each step the loss scale was {got}, and {want} is right.
    left: gradients are left after a step.
    """
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
        "new scale": {"update": "first"},
        "scaler not told": {"update": "good alone"},
        "always good": {"update": "always good"},
        "told the opposite": {"update": "opposite"},
        "gradients left": {"clears": lambda skipped: not skipped},
    })
def step_repaired(params, optimizer, schedule, scaler, max_norm, *, order="unscale first", schedule_waits=True,
                  schedules=True,
                  skips=lambda norm: not norm.isfinite(), update="last", clears=lambda skipped: True):
    """One step, or none.

    both bugs: Both bugs are still there. One is in the order of two lines, and one concerns a skipped step.
    clip first: One bug is still there: you clip gradients that are still scaled. Their norm is thousands of times too
        large, so all are cut down, and unscaling makes them tiny.
    schedule: One bug is still there: the schedule moves in a step that was skipped.
    no clipping: You do not clip any more: unscale first, and then clip.
    limit divided: You divide the limit by the loss scale: gradients that are still scaled need a limit that is multiplied
        by it.
    each alone: You clip each parameter alone: `max_norm` is for the norm of all gradients together.
    schedule stands: The schedule does not move any more: it has to in every step that is made.
    still scaled: You do not unscale any more: the optimizer steps with gradients that are too large.
    unscaled twice: You unscaled twice.
    unscaled around: You divide by the loss scale before you clip, and a second time before the step.
    never skips: You step with infinite gradients: such a step must be skipped.
    NaN: You skip for infinities alone: a NaN is an overflow as well.
    new scale: You update the scaler before you unscale: these gradients have the scale of the step before.
    scaler not told: You told the scaler of good steps alone: it must know of overflows, or it never falls.
    always good: You told the scaler that there was no overflow.
    told the opposite: You told the scaler the opposite: `update` wants True for an overflow.
    gradients left: You leave the gradients of a skipped step, and the next backward adds to them.
    right: it clips what is unscaled, and in a skipped step nothing moves but the scale.
    """
    skipped = bool(skips(norm_of(params)))
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
