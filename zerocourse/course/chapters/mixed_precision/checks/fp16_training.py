"""The check of 10.8: training in fp16 from nothing, with masters, a loss scale and skipped steps."""

from types import SimpleNamespace

import torch
from torch import nn

from ....checks import Trial, exercise
from ....checks.observers.stage_runs import WatchedComm

FREE = 1e9  # a norm that no gradient has here
# What it shows; learning rate, largest norm, first loss scale, window; size of the gradients in each step; overflows.
CASES = [("gradients of usual size", 0.5, FREE, 256.0, 100, [1.0] * 2, ()),
         ("gradients that are clipped", 0.5, 0.25, 256.0, 100, [1.0] * 2, ()),
         ("an overflow on the last rank in step 1", 0.5, FREE, 256.0, 3, [1.0] * 5, (1,)),
         ("two overflows on the last rank", 0.5, 0.5, 256.0, 2, [1.0] * 6, (3, 4)),
         ("gradients near 1e-8", 1e8, FREE, 65536.0, 100, [1e-8], ()),
         ("gradients of 32,768 times 1 on every rank, whose sum fp16 cannot hold", 0.1, FREE, 32768.0, 100, [0.0] * 2, ()),
         ("updates of less than half a gap", 4e-4, FREE, 256.0, 100, [0.0] * 8, ())]  # 0: all gradients are 1


def trained_on_a_rank(answer, _, lr, max_norm, scale, window, sizes, overflows):
    """Steps of two parameters on gradients that differ from rank to rank."""
    comm = WatchedComm()
    start = torch.linspace(1.1, 1.8, 8)
    params = [nn.Parameter(start[:4].clone()), nn.Parameter(start[4:].view(2, 2).clone())]
    trainer = answer(params, lr, max_norm, scale, window, comm)
    seen = {"scaled": float(trainer.scaled(torch.tensor(300.0, dtype=torch.float16))),
            "dtypes": [str(param.dtype).removeprefix("torch.") for param in params]}
    made, scales, left, weights = [], [], False, {}
    for step, size in enumerate(sizes):
        loss = sum((param.float() * x).sum() for param, x in zip(params, gradients(step, comm.rank, size), strict=True))
        if step in overflows and comm.rank == comm.world_size - 1:
            loss = loss + 1e9 * params[0][0].float()
        scales.append(float(trainer.scale))
        trainer.scaled(loss).backward()
        made.append(trainer.step())
        left |= any(param.grad is not None and bool(param.grad.any()) for param in params)
        for param in params:
            param.grad = None
        weights[f"weights step {step}"] = [param.detach().double() for param in params]
    return {**seen, "made": made, "scales": scales, **weights, "left": left}


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


def clip(grads, most):
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    return [grad * torch.clamp(most / (norm + 1e-6), max=1.0) for grad in grads]


def publish(param, master):
    param.data.copy_(master)


def rounded_back(param, master):
    param.data.copy_(master)
    master.copy_(param.data)


KNOBS = {
    "master": lambda given, rounded: given,
    "wide": lambda grad: grad.float(),
    "scaled": lambda loss, scale: loss.float() * scale,
    "reduce": lambda grad, comm: comm.all_reduce(grad),
    "average": lambda ranks: ranks,
    "own_overflow": False,
    "overflows": lambda grads: not all(grad.isfinite().all() for grad in grads),
    "unscale": lambda grad, scale: grad / scale,
    "clips": "after",
    "rate": lambda lr: lr,
    "publish": publish,
    "falls": 2.0,
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
        "fp32 too late": {"scaled": lambda loss, scale: (loss * scale).float()},
        "loss in fp16": {"scaled": lambda loss, scale: loss.half() * scale},
        "not scaled": {"scaled": lambda loss, scale: loss.float()},
        "still scaled": {"unscale": lambda grad, scale: grad},
        "unscaled in fp16": {"unscale": lambda grad, scale: (grad / scale).half().float()},
        "clipped first": {"clips": "before"},
        "no clipping": {"clips": "never"},
        "never skips": {"overflows": lambda grads: False},
        "scale stays": {"falls": 1.0},
        "window goes on": {"interrupts": False},
        "rises on": {"begins_again": False, "rises": lambda good, window: good >= window},
        "never rises": {"rises": lambda good, window: False},
        "no masters": {"publish": rounded_back},
        "from rounded": {"master": lambda given, rounded: rounded.float()},
        "not shown": {"publish": lambda param, master: None},
        "uphill": {"rate": lambda lr: -lr},
        "not told": ({"told": lambda made: None}, {"told": lambda made: not made}),
        "gradients left": ({"frees": lambda made: False}, {"frees": lambda made: made}),
        "stuck": {"own_overflow": True},
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
        made = self.update([self.knob.wide(param.grad) for param in self.params])
        for param in self.params:
            if self.knob.frees(made):
                param.grad = None
        return self.knob.told(made)

    def update(self, grads):
        if self.knob.own_overflow and self.knob.overflows(grads):
            return self.rescale(False)
        grads = [self.knob.reduce(grad, self.comm) / self.knob.average(self.comm.world_size) for grad in grads]
        if self.knob.overflows(grads):
            return self.rescale(False)
        if self.knob.clips == "before":
            grads = clip(grads, self.max_norm)
        grads = [self.knob.unscale(grad, self.scale) for grad in grads]
        if self.knob.clips == "after":
            grads = clip(grads, self.max_norm)
        for param, master, grad in zip(self.params, self.masters, grads, strict=True):
            master -= self.knob.rate(self.lr) * grad
            self.knob.publish(param, master)
        return self.rescale(True)

    def rescale(self, made):
        self.good = self.good + made if made or not self.knob.interrupts else 0
        if not made:
            self.scale /= self.knob.falls
        elif self.knob.rises(self.good, self.window):
            self.scale, self.good = 2 * self.scale, 0 if self.knob.begins_again else self.good
        return made
