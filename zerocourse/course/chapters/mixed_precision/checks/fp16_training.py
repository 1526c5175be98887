"""The check of 10.8: training in fp16 from nothing, with masters, a loss scale and skipped steps."""

from types import SimpleNamespace

import torch
from torch import nn

from ....checks import Trial, exercise
from ....checks.observers.stage_runs import WatchedComm

FREE = 1e9  # a norm that no gradient has here
# What it shows; learning rate, largest norm, first loss scale, window; size of the gradients in each step; overflows, each of them
# by its step, rank, parameter, and what is added to the gradient.
CASES = [("gradients of usual size", 0.5, FREE, 256.0, 100, [1.0] * 2, ()),
         ("gradients that are clipped", 0.5, 0.25, 256.0, 100, [1.0] * 2, ()),
         ("an overflow on the last rank in step 1", 0.5, FREE, 256.0, 3, [1.0] * 6, ((1, -1, 0, 1e9),)),
         ("an overflow of two parameters in step 4, and one of the second alone in step 5", 0.5, 0.5, 256.0, 2, [1.0] * 7,
          ((4, -1, 0, 1e9), (4, -1, 1, 1e9), (5, -1, 1, 1e9))),
         ("inf on one rank and -inf on another, whose sum is NaN", 0.5, FREE, 256.0, 100, [1.0] * 2, ((0, -1, 0, 1e9), (0, 0, 0, -1e9))),
         ("gradients near 3e-11", 3e10, FREE, 65536.0, 100, [3e-11], ()),
         ("gradients of 32,768 times 1 on every rank, whose sum fp16 cannot hold", 0.1, FREE, 32768.0, 100, [0.0] * 2, ()),
         ("updates of less than half a gap", 4e-4, FREE, 256.0, 100, [0.0] * 8, ())]  # 0: all gradients are 1


def trained_on_a_rank(answer, _, lr, max_norm, scale, window, sizes, overflows):
    """Steps of two parameters on gradients that differ from rank to rank."""
    comm = WatchedComm()
    start = torch.linspace(1.1, 1.8, 8)
    params = [nn.Parameter(start[:4].clone()), nn.Parameter(start[4:].view(2, 2).clone())]
    trainer = answer(params, lr, max_norm, scale, window, comm)
    seen = {"scaled": float(trainer.scaled(torch.tensor(300.0, dtype=torch.float16))),
            "dtypes": dtypes(params), "dtypes afterwards": None}
    made, scales, left, weights = [], [], False, {}
    for step, size in enumerate(sizes):
        loss = sum((param.float() * x).sum() for param, x in zip(params, gradients(step, comm.rank, size), strict=True))
        for when, rank, which, factor in overflows:
            if when == step and rank % comm.world_size == comm.rank:
                loss = loss + factor * params[which].flatten()[0].float()
        scales.append(float(trainer.scale))
        trainer.scaled(loss).backward()
        made.append(trainer.step())
        left |= any(param.grad is not None and bool(param.grad.any()) for param in params)
        for param in params:
            param.grad = None
        weights[f"weights step {step}"] = [param.detach().double() for param in params]
    return {**seen, "dtypes afterwards": dtypes(params), "made": made, "scales": scales, **weights, "left": left}


def dtypes(params):
    return [str(param.dtype).removeprefix("torch.") for param in params]


def digits_kept(answer, weight, gradient):
    """A weight between two numbers of fp16, and a step after which it lies nearer to the upper one; in gaps above 1."""
    param = nn.Parameter(torch.full((2,), weight))
    trainer = answer([param], 1.0, FREE, 1.0, 100, WatchedComm())
    trainer.scaled(gradient * param.float().sum()).backward()
    trainer.step()
    return {"gaps": (param.detach().double() - 1) * 1024}


def gradients(step, rank, size):
    if not size:
        return torch.ones(4), torch.ones(2, 2)
    values = size * torch.randn(8, generator=torch.Generator().manual_seed(100 * step + rank))
    return values[:4], values[4:].view(2, 2)


def clip(grads, most, norm=lambda norms: norms.norm()):
    factor = most / (norm(torch.stack([grad.norm() for grad in grads])) + 1e-6)
    return [grad * torch.clamp(factor, max=1.0) for grad in grads]


def each_alone(grads, most):
    return [clip([grad], most)[0] for grad in grads]


def not_finite(grad):
    return not grad.isfinite().all()


def publish(param, master):
    param.data.copy_(master)


def rounded_back(param, master):
    param.data.copy_(master)
    master.copy_(param.data)


KNOBS = {
    "master": lambda given, rounded: given,
    "wide": lambda grad, ranks: grad.float(),
    "scaled": lambda loss, scale: loss.float() * scale,
    "reduce": lambda grad, comm: comm.all_reduce(grad),
    "average": lambda ranks: ranks,
    "own_overflow": None,
    "overflows": lambda grads: sum(map(not_finite, grads)),
    "unscale": lambda grad, scale: grad / scale,
    "clips": "after",
    "clip": clip,
    "rate": lambda lr: lr,
    "publish": publish,
    "falls": lambda overflows: 2.0,
    "interrupts": True,
    "begins_again": True,
    "rises": lambda good, window: good == window,
    "frees": lambda made: True,
    "told": lambda made: made,
}


@exercise(
    "10.8", "A training in fp16 of your own", minutes=60, difficulty=3, timeout=15,
    replaces=("zerocourse:shard", "zerocourse.precision.loss_scaler:DynamicLossScaler.update",
              "torch.amp:GradScaler.__init__"),
    trials=[Trial(CASES, trained_on_a_rank, worlds=(2, 3), close=2e-3),
            Trial([(1.00045, -0.0001)], digits_kept, worlds=(2,))],
    mistakes={
        "own gradients": {"reduce": lambda grad, comm: grad, "average": lambda ranks: 1},
        "summed": {"average": lambda ranks: 1},
        "summed in fp16": {"reduce": lambda grad, comm: comm.all_reduce(grad.half()).float()},
        "divided twice": {"average": lambda ranks: ranks**2},
        "averaged in fp16": {"wide": lambda grad, ranks: (grad / ranks).float() * ranks},
        "fp32 too late": {"scaled": lambda loss, scale: (loss * scale).float()},
        "loss in fp16": {"scaled": lambda loss, scale: loss.half() * scale},
        "not scaled": {"scaled": lambda loss, scale: loss.float()},
        "still scaled": {"unscale": lambda grad, scale: grad},
        "unscaled in fp16": {"unscale": lambda grad, scale: (grad / scale).half().float()},
        "clipped first": {"clips": "before"},
        "no clipping": {"clips": "never"},
        "each alone": {"clip": each_alone},
        "norms added up": {"clip": lambda grads, most: clip(grads, most, torch.sum)},
        "never skips": {"overflows": lambda grads: 0},
        "own overflow": {"own_overflow": "decides"},
        "first alone": {"overflows": lambda grads: not_finite(grads[0])},
        "NaN": {"overflows": lambda grads: sum(bool(grad.isinf().any()) for grad in grads)},
        "scale stays": {"falls": lambda overflows: 1.0},
        "halved for each": {"falls": lambda overflows: 2.0**overflows},
        "window goes on": {"interrupts": False},
        "rises on": {"begins_again": False, "rises": lambda good, window: good >= window},
        "rises once": {"begins_again": False},
        "late": {"rises": lambda good, window: good > window},
        "never rises": {"rises": lambda good, window: False},
        "no masters": {"publish": rounded_back},
        "from rounded": {"master": lambda given, rounded: rounded.float()},
        "not shown": {"publish": lambda param, master: None},
        "shown in fp32": {"publish": lambda param, master: setattr(param, "data", master.clone())},
        "uphill": {"rate": lambda lr: -lr},
        "not told": ({"told": lambda made: None}, {"told": lambda made: not made}),
        "gradients left": ({"frees": lambda made: False}, {"frees": lambda made: made}),
        "stuck": {"own_overflow": "leaves"},
    })
class Fp16SGD:
    """The right class; each knob takes the place of one of KNOBS."""

    def __init__(self, params, lr, max_norm, scale, window, comm, **knobs):
        self.knob, self.params, self.comm, self.scale = SimpleNamespace(**KNOBS | knobs), params, comm, scale
        self.lr, self.max_norm, self.window, self.good = lr, max_norm, window, 0
        self.masters = [self.knob.master(param.data.clone(), param.data.half()) for param in params]
        for param in params:
            param.data = param.data.half()

    def scaled(self, loss):
        return self.knob.scaled(loss, self.scale)

    def step(self):
        made = self.update([self.knob.wide(param.grad, self.comm.world_size) for param in self.params])
        for param in self.params:
            if self.knob.frees(made):
                param.grad = None
        return self.knob.told(made)

    def update(self, grads):
        own = self.knob.overflows(grads)
        if own and self.knob.own_overflow == "leaves":
            return self.rescale(own)
        grads = [self.knob.reduce(grad, self.comm) / self.knob.average(self.comm.world_size) for grad in grads]
        if overflows := own if self.knob.own_overflow else self.knob.overflows(grads):
            return self.rescale(overflows)
        if self.knob.clips == "before":
            grads = self.knob.clip(grads, self.max_norm)
        grads = [self.knob.unscale(grad, self.scale) for grad in grads]
        if self.knob.clips == "after":
            grads = self.knob.clip(grads, self.max_norm)
        for param, master, grad in zip(self.params, self.masters, grads, strict=True):
            master -= self.knob.rate(self.lr) * grad
            self.knob.publish(param, master)
        return self.rescale(0)

    def rescale(self, overflows):
        made = not overflows
        self.good = self.good + made if made or not self.knob.interrupts else 0
        if not made:
            self.scale /= self.knob.falls(overflows)
        elif self.knob.rises(self.good, self.window):
            self.scale, self.good = 2 * self.scale, 0 if self.knob.begins_again else self.good
        return made
