"""The check of 5.6: an optimizer whose states are sharded, on torch.distributed alone."""

import math

import torch
import torch.distributed as dist
from torch import nn

from ....comm.group import Comm
from ....models.gpt2 import GPT
from ..exercise import exercise
from ..lab import Lab
from ..verdict import Wrong
from . import stage_runs
from .stage_runs import CONFIG
from .stage_probe import calling, near, size_of, storages_under
from .wire import Wire

TENSORS = [(3, 5), (6,), (2, 2)]  # 25 elements
LR, DECAY = 0.1, 0.2
ALL_THERE = [(), (), ()]  # three steps, and no gradient is missing


def tensors_of(rank):
    seed = torch.Generator().manual_seed(50 + rank)
    return [torch.randn(shape, generator=seed) for shape in TENSORS]


def gradients_of(rank, step):
    """As small as Adam's eps: with larger ones its update hardly knows a sum from an average."""
    seed = torch.Generator().manual_seed(500 + 10 * step + rank)
    return [3e-8 * torch.randn(shape, generator=seed) for shape in TENSORS]


def sharded_on_a_rank(answer, missing):
    """One step for each entry of `missing`: the parameters for which the last rank has no gradient."""
    rank, world = dist.get_rank(), dist.get_world_size()
    params = [nn.Parameter(value) for value in tensors_of(rank)]
    optimizer = answer(params, LR, DECAY)
    row = getattr(optimizer, "row", None)
    if not torch.is_tensor(row):
        raise Wrong(f"after `__init__` the attribute `row` is {row!r}: it is the row of all parameters, a tensor")
    base = row.untyped_storage()
    seen = {"row": row.numel(), "views": all(p.untyped_storage()._cdata == base._cdata for p in params),
            "start": [p.detach().clone() for p in params], "after": [], "ops": [], "kept": 0}
    for step, without in enumerate(missing):
        for number, (param, gradient) in enumerate(zip(params, gradients_of(rank, step), strict=True)):
            param.grad = None if rank == world - 1 and number in without else gradient
        with Wire() as wire:
            calling(answer, optimizer.step)
        seen["ops"].append(wire.calls)
        seen["after"].append([p.detach().clone() for p in params])
        seen["kept"] = sum(p.grad.nbytes for p in params if p.grad is not None)
        for param in params:
            param.grad = None
    seen["storages"] = storages_under(vars(optimizer), but=[row, *params])
    return seen


def row_of(tensors):
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def parts_of(row):
    parts = row.split([math.prod(shape) for shape in TENSORS])
    return [part.view(shape) for part, shape in zip(parts, TENSORS, strict=True)]


def data_parallel(world, missing, *, l2=False, divide=True, local=None, only=None):
    """Parameters after each step, by torch's own optimizer on whole tensors; the keywords are misunderstandings.

    missing: as in `sharded_on_a_rank`.   local: divisor; every owner uses its own gradients.
    only: a slice; what is outside it stays as it was.
    """
    params, after, size = [nn.Parameter(value) for value in tensors_of(0)], [], -(-size_of(TENSORS) // world)
    optimizer = (torch.optim.Adam if l2 else torch.optim.AdamW)(params, lr=LR, weight_decay=DECAY)
    for step, without in enumerate(missing):
        of_ranks = [gradients_of(rank, step) for rank in range(world)]
        for number in without:
            of_ranks[-1][number].zero_()
        rows = torch.stack([row_of(tensors) for tensors in of_ranks])
        row = rows.sum(0) / (world if divide else 1)
        if local:
            row = torch.cat([mine[rank * size:(rank + 1) * size] for rank, mine in enumerate(rows)]) / local
        for param, gradient in zip(params, parts_of(row), strict=True):
            param.grad = gradient
        optimizer.step()
        row = row_of(params).detach().clone()
        if only:
            row, new = row_of(tensors_of(0)), row
            row[only] = new[only]
        after.append(parts_of(row))
    return after


class Plain:
    """AdamW on averaged gradients, the same on all ranks. (torch's own would take seconds to load on a new rank.)"""

    def __init__(self, params, lr, decay, comm):
        self.params, self.lr, self.decay, self.comm, self.t = params, lr, decay, comm, 0
        self.averages = [(torch.zeros_like(p), torch.zeros_like(p)) for p in params]

    @torch.no_grad()
    def step(self):
        self.t += 1
        for p, (m, v) in zip(self.params, self.averages, strict=True):
            gradient = self.comm.all_reduce(p.grad).div_(self.comm.world_size)
            m.lerp_(gradient, 0.1)
            v.lerp_(gradient.square(), 0.001)
            p.mul_(1 - self.lr * self.decay)
            p.sub_(self.lr * m / (1 - 0.9**self.t) / ((v / (1 - 0.999**self.t)).sqrt() + 1e-8))


def gpt_on_a_rank(answer, steps=3):
    """Losses of the tiny GPT-2 with the answer, and with AdamW on averaged gradients."""
    comm, losses = Comm(timeout=5.0), []
    for mine in (True, False):
        torch.manual_seed(comm.rank if mine else 0)
        model = GPT(CONFIG)
        params = list(model.parameters())
        optimizer, of_run = answer(params, 0.01, DECAY) if mine else Plain(params, 0.01, DECAY, comm), []
        for tokens_BT in stage_runs.data(comm.rank, steps):
            loss = model(tokens_BT[:, :-1], tokens_BT[:, 1:])
            loss.backward()
            of_run.append(loss.item())
            calling(answer, optimizer.step) if mine else optimizer.step()
            for param in params:
                param.grad = None
        losses.append(of_run)
    return losses


@exercise("5.6", "A sharded optimizer of your own", minutes=60, difficulty=3, answer="ShardedAdamW",
          replaces=("zerocourse:shard", "zerocourse.zero.stage1:*", "zerocourse.comm.group:Comm.reduce_scatter",
                    "zerocourse.comm.group:Comm.all_gather", "torch.distributed.optim:ZeroRedundancyOptimizer.__init__"),
          timeout=15)
def sharded_adamw(lab: Lab):
    seen = {}
    for world in (2, 3):
        seen[world] = lab.run(sharded_on_a_rank, ALL_THERE, world=world)
        _judge_values(lab, seen[world], world)
    for world in (3, 2):  # on two ranks a row of gradients takes as many bytes as both averages of a slice
        _judge_memory(lab, seen[world], world)
    missing = [(2,), (0, 1, 2), (0,)]
    found, right = lab.run(sharded_on_a_rank, missing, world=2), data_parallel(2, missing)
    for step, what in enumerate(("for the last parameter and rank 0 has one", "at all and rank 0 has them",
                                 "for the first parameter and rank 0 has one")):
        if not all(near(a, b) for each in found for a, b in zip(each["after"][step], right[step], strict=True)):
            lab.wrong(f"rank 1 has no gradient {what}: afterwards the parameters are not right. No gradient counts as "
                      "zeros in its place of the row, and the average is still over all ranks.")
    for world in (2, 3):
        for rank, (mine, own) in enumerate(lab.run(gpt_on_a_rank, world=world)):
            if not all(abs(a - b) < stage_runs.CLOSE for a, b in zip(mine, own, strict=True)):
                lab.wrong(f"training GPT-2 on {world} ranks, rank {rank} has the losses {[round(x, 4) for x in mine]}, "
                          f"and {[round(x, 4) for x in own]} are right.")
    return "no package, and GPT-2 trains as in data parallel, with 1/N of the states on each rank."


def _judge_values(lab, found, world):
    numel, size = size_of(TENSORS), -(-size_of(TENSORS) // world)
    case = f"{numel} parameters on {world} ranks"
    for rank, seen in enumerate(found):
        if seen["row"] != size * world:
            lab.wrong(f"{case}: `row` of rank {rank} has {seen['row']} elements, and {size * world} are right: a "
                      "multiple of the number of ranks, the last ones padding.")
        if not all(map(torch.equal, seen["start"], tensors_of(0))):
            kept = all(map(torch.equal, seen["start"], tensors_of(rank)))
            lab.wrong(f"{case}: after `__init__` rank {rank} has other parameters than rank 0 began with. " + (
                "Each rank kept its own: with different seeds the replicas never agree. Broadcast rank 0's row."
                if kept else "They should be rank 0's."))
        if not seen["views"]:
            lab.wrong(f"{case}: the parameters of rank {rank} are no views of `row`: what arrives in the row never "
                      "reaches the model. Set param.data to the part of the row.")
    local = ("You never brought the gradients of the ranks together: each rank updates with its own. Reduce-scatter "
             "them first.")
    models = [
        ("You summed the gradients and never divided by the number of ranks: the average is wanted.",
         {"divide": False}),
        ("That is Adam with L2: in AdamW the decay shrinks the parameter itself, not through the gradient.",
         {"l2": True}),
        (local, {"local": 1}), (local, {"local": world}),
    ]
    right = data_parallel(world, ALL_THERE)
    for rank, seen in enumerate(found):
        def like(**how):
            rows = data_parallel(world, ALL_THERE, **how)
            return all(near(a, b) for got, want in zip(seen["after"], rows, strict=True)
                       for a, b in zip(got, want, strict=True))

        if like():
            continue
        only = ("Only its own slice is new: gather the slices of the others into the row.",
                {"only": slice(rank * size, (rank + 1) * size)})
        why = next((why for why, how in [*models, only] if like(**how)), "")
        still = all(near(a, b) for a, b in zip(seen["after"][-1], tensors_of(0), strict=True))
        why = "Nothing moved: update the row in place." if still else why
        step = next(i for i in range(3) if not all(map(near, seen["after"][i], right[i])))
        pairs = list(zip(row_of(seen["after"][step]).tolist(), row_of(right[step]).tolist(), strict=True))
        number = next(i for i, (a, b) in enumerate(pairs) if not abs(a - b) <= 1e-5 * max(1, abs(b)))
        lab.wrong(f"{case}: after step {step + 1} parameter number {number} of the row is {pairs[number][0]:.6f} on "
                  f"rank {rank}, and {pairs[number][1]:.6f} is right. {why}".rstrip())


def _judge_memory(lab, found, world):
    numel, size = size_of(TENSORS), -(-size_of(TENSORS) // world)
    case = f"{numel} parameters on {world} ranks"
    for rank, seen in enumerate(found):
        held = sum(seen["storages"])
        if held != 8 * size:
            of_slice = 8 * size in seen["storages"] or seen["storages"].count(4 * size) > 1
            whole = held >= 8 * numel and not of_slice
            why = "You kept the averages of the whole row: a rank needs those of its slice." if whole else \
                "Only the two averages of the slice are kept: a row of gradients, or another copy, must not stay."
            lab.wrong(f"{case}: the values are right, but between two steps rank {rank} keeps {held} bytes beside the "
                      f"row, and {8 * size} are right. {why}")
        ops = [name for name, _ in seen["ops"][-1]]
        if "all_reduce" in ops:
            lab.wrong(f"{case}: the values are right, but rank {rank} called all_reduce in a step. That brings every "
                      "rank the whole sum, for twice the traffic: a reduce-scatter brings it its slice.")
        if seen["kept"]:
            lab.wrong(f"{case}: after the step rank {rank} still has {seen['kept']} bytes of gradients: set param.grad "
                      "to None once it is in the row.")
