"""A small model trained with an answer to 4.7, in all the ways in which a gradient may come, late or never.

Everything that leaves a rank is noted, and when: a gradient that is ready, a bucket that leaves, the end of a backward.
"""

import operator

import torch
import torch.distributed as dist
from torch import nn

from ....checks import STUCK, Wrong
from ....checks.observers.stage_probe import calling
from ....checks.observers.wire import Wire, sorted_values

BUCKET = 340  # elements: the first bucket is full to the last, and the last parameter is larger
BOTH, TURNED, LEFT, RIGHT, NEITHER = "left right", "right left", "left", "right", ""  # branches of the model, in order
# What is checked is the last step: what happens, and the micro-batches of each step, each the branches that a rank
# takes, or a pair, rank 0's and all others'.
STEPS = [
    ("a step of one micro-batch", [[BOTH]]),
    ("a second step", [[BOTH], [BOTH]]),
    ("a forward that uses the layers in another order", [[TURNED]]),
    ("a step of three micro-batches", [[BOTH, BOTH, BOTH]]),
    ("a step of two micro-batches, `right` unused in the second", [[BOTH, LEFT]]),
    ("a second step, in which no rank uses `right`", [[BOTH], [LEFT]]),
    ("a step in which rank 0 uses `left`, and the others use `right`", [[(LEFT, RIGHT)]]),
    ("a second step, in which rank 0 uses `right`, and the others use `left`", [[(LEFT, RIGHT)], [(RIGHT, LEFT)]]),
    ("a step in which rank 0 uses no branch, and the others both", [[(NEITHER, BOTH)]]),
    ("a second step, in which rank 0 uses both branches, and the others none", [[(NEITHER, BOTH)], [(BOTH, NEITHER)]])]


class Net(nn.Module):
    """Two branches, of which a forward may use one only, and a frozen layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(24, 16, bias=False)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.left, self.right = nn.Linear(16, 16), nn.Linear(16, 16)
        self.last = nn.Linear(16, 4)

    def forward(self, x, branches):
        h = self.frozen(self.first(x).tanh())
        for branch in branches.split():
            h = h + getattr(self, branch)(h).tanh()
        return self.last(h).square().mean()


def row_of(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def or_zeros(param):
    return torch.zeros_like(param) if param.grad is None else param.grad


def trained(answer, _, steps):
    """What can be seen of the last of these steps with the answer."""
    torch.manual_seed(dist.get_rank())
    model = Net()
    params = trainable(model)
    with Wire(agree=True, keep=True) as wire:
        for param in params:  # before the answer's own hooks
            param.register_post_accumulate_grad_hook(lambda param: wire.note("ready", param=param))
        parallel = answer(model, BUCKET)
        start, frozen = row_of(params), row_of(model.frozen.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for number, micros in enumerate(steps):
            before = row_of(params).sort().values
            wire.log.clear()
            try:
                calling(answer, one_step, parallel, model, number, micros, wire)
            except Wrong as wrong:
                if wrong.code != STUCK or all(isinstance(branches, str) for branches in micros):
                    raise
                answer.error = None
                return {"apart": str(wrong)}
            gradients = row_of(map(or_zeros, params))
            replicas = agree(wire, [param.grad is None for param in params])
            optimizer.step()
            optimizer.zero_grad()
    seen = {"apart": "", "start": start, "frozen": frozen, "weights": torch.equal(sorted_values(wire.log), before),
            **sent(wire.log, params, {param: name for name, param in model.named_parameters()})}
    timing = {name: seen.pop(name) for name in ("waits", "left")}
    return {**seen, "gradients": gradients, **timing, "replicas": replicas}


def one_step(parallel, model, number, micros, wire):
    """Forward and backward of each micro-batch, and `finish`."""
    rank = dist.get_rank()
    for micro, branches in enumerate(micros):
        parallel.sync = micro == len(micros) - 1
        wire.note("backward", sync=parallel.sync)
        x = torch.randn(4, 24, generator=torch.Generator().manual_seed(1000 * rank + 10 * number + micro)) + rank
        model(x, branches if isinstance(branches, str) else branches[min(rank, 1)]).backward()
        wire.note("over")
    parallel.finish()


def agree(wire, value):
    """Is it the same on all ranks?"""
    try:
        wire.meet(str(value))
    except Wrong:
        return False
    return True


def sent(log, params, names):
    """What the log of a step says about what left, and when."""
    seen = {"verbs": "", "early": 0, "sizes": [], "missing": 0, "waits": 0, "left": [], "_bucket": "", "_such": ""}
    buckets, ready, sync, going = buckets_of(params), set(), True, False
    for entry in log:
        if entry["verb"] in ("backward", "over"):
            going = entry["verb"] == "backward"
            ready, sync = (set(), entry["sync"]) if going else (ready, sync)
        elif entry["verb"] == "ready":
            ready.add(entry["param"])
        elif entry["verb"] == "wait":
            seen["waits"] += going
        elif entry["verb"] != "all_reduce":
            seen["verbs"] = entry["verb"]
        else:
            number = len(seen["sizes"])
            missing = [names[param] for bucket in buckets[number:number + 1] for param in bucket if param not in ready]
            if missing and going and not seen["missing"]:
                seen |= {"missing": len(missing), "_bucket": number + 1, "_such": missing[0]}
            seen["early"] += entry["elements"] * (not sync)
            seen["sizes"].append(entry["elements"])
            seen["left"].append(len(ready) if going else "finish")
    seen["unwaited"] = max(0, len(seen["sizes"]) - sum(entry["verb"] == "wait" for entry in log))
    return seen


def trainable(model):
    return [param for param in model.parameters() if param.requires_grad]


def buckets_of(params, limit=BUCKET, fits=operator.le):
    """The parameters of each bucket, the last first. fits(elements, room) -> bool"""
    buckets, room = [], 0
    for param in reversed(params):
        if not buckets or not fits(param.numel(), room):
            buckets.append([])
            room = limit
        buckets[-1].append(param)
        room -= param.numel()
    return buckets
