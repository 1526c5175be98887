"""The check of 5.6: an optimizer whose states are sharded, on torch.distributed alone."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from .....models.gpt2 import GPT
from ....checks import Trial, When, Wrong, exercise
from ....checks.observers import stage_runs
from ....checks.observers.stage_probe import calling, storages_under
from ....checks.observers.stage_runs import CONFIG
from ....checks.observers.wire import Wire
from ....trials.watched_training import train_step

LR, DECAY = 0.1, 0.2
TENSORS = [(3, 5), (6,), (2, 2)]  # 25 elements, which need padding on 2 and on 3 ranks
EVEN = [(3, 5), (5,), (2, 2)]  # 24, which need none
NOT_ALL = ", of which the last has no gradient for the last parameter, then none at all, then none for the first"
SECONDS = 1.5  # that a collective waits for another rank

reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # torch 2.13 has new names
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def sharded_on_a_rank(answer, shapes, missing, _):
    """Three steps, and for each the parameters for which the last rank has no gradient."""
    rank, last = dist.get_rank(), dist.get_rank() == dist.get_world_size() - 1
    params = [nn.Parameter(tensor) for tensor in random_tensors(shapes, 50 + rank)]
    with Wire(agree=True, timeout=SECONDS):
        optimizer = answer(params, LR, DECAY)
    row = getattr(optimizer, "row", None)
    if not torch.is_tensor(row):
        raise Wrong(f"after `__init__` the attribute `row` is {row!r:.100}: it is the row of all parameters, a tensor")

    def values():
        return torch.cat([param.detach().reshape(-1) for param in params])

    base = row.untyped_storage()._cdata
    seen = {"row": row.numel(), "start": values(),
            "views": all(param.untyped_storage()._cdata == base for param in params)}
    for step, without in enumerate(missing):
        for number, gradient in enumerate(random_tensors(shapes, 500 + 10 * step + rank)):
            # As small as Adam's eps: with larger ones its update hardly knows a sum from an average.
            params[number].grad = None if last and number in without else 3e-8 * gradient
        with Wire(agree=True, timeout=SECONDS) as wire:
            calling(answer, optimizer.step)
        seen[f"step {step + 1}"] = values()
        left = sum(param.grad.nbytes for param in params if param.grad is not None)
        for param in params:
            param.grad = None
    return {**seen, "held": sum(storages_under(vars(optimizer), but=[row, *params])),
            "all_reduce": "all_reduce" in wire.verbs, "gradients": left}


def random_tensors(shapes, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def gpt_on_a_rank(answer, steps=3):
    """Losses of the tiny GPT-2."""
    torch.manual_seed(dist.get_rank())
    model = GPT(CONFIG)
    with Wire(agree=True, timeout=SECONDS):
        optimizer = answer(list(model.parameters()), 0.01, DECAY)

    def step():
        with Wire(agree=True, timeout=SECONDS):
            calling(answer, optimizer.step)

    watched = SimpleNamespace(step=step, zero_grad=model.zero_grad)
    batches = stage_runs.data(dist.get_rank(), steps)
    return {"losses": torch.tensor([train_step(model, watched, [tokens_BT]) for tokens_BT in batches])}


def all_reduced(row, own):
    dist.all_reduce(row)
    return row[own].clone()


def scattered(row, own):
    mine = torch.empty(own.stop - own.start)
    reduce_scatter(mine, row)
    return mine


def gathered(row, own):
    all_gather(row, row[own].clone())


KNOBS = {
    "size": lambda numel, ranks: -(-numel // ranks),
    "owner": lambda rank: rank,
    "begin": lambda row: dist.broadcast(row, 0),
    "view": lambda part: part,
    "optimizer": torch.optim.AdamW,
    "options": lambda options: options,
    "nothing": lambda param: torch.zeros(param.numel()),
    "free": lambda param: setattr(param, "grad", None),
    "reduce": scattered,
    "average": lambda ranks: ranks,
    "gather": gathered,
    "gather_first": False,
    "begins_anew": False,
    "whole": False,
    "keeps": False,
    "skips": False,
}


@exercise(
    "5.6", "A sharded optimizer of your own", minutes=60, difficulty=3, timeout=15,
    replaces=("zerocourse:shard", "zerocourse.zero.stage1:*", "zerocourse.comm.group:Comm.reduce_scatter",
              "zerocourse.comm.group:Comm.all_gather", "torch.distributed.optim:ZeroRedundancyOptimizer.__init__"),
    trials=[
        Trial([(TENSORS, [(), (), ()], ""), (EVEN, [(2,), (0, 1, 2), (0,)], NOT_ALL)], sharded_on_a_rank,
              worlds=(3, 2)),  # on 2 ranks a row of gradients takes as many bytes as both averages of a slice
        Trial(observe=gpt_on_a_rank, worlds=(2, 3), close=stage_runs.CLOSE)],
    mistakes={
        "no padding": {"size": lambda numel, ranks: numel // ranks + 1},
        "replicas": {"begin": lambda row: None},
        "no views": {"view": torch.clone},
        "summed": {"average": lambda ranks: 1},
        "divided twice": {"average": lambda ranks: ranks**2},
        "l2": {"optimizer": torch.optim.Adam},
        "no decay": ({"options": lambda options: {**options, "weight_decay": 0.0}},
                     {"options": lambda options: {"lr": options["lr"]}}),
        "no rate": {"options": lambda options: {"weight_decay": options["weight_decay"]}},
        "local": ({"reduce": lambda row, own: row[own].clone()},
                  {"reduce": lambda row, own: row[own].clone(), "average": lambda ranks: 1}),
        "no gather": {"gather": lambda row, own: None},
        "gathered first": {"gather_first": True},
        "slice of rank 0": {"owner": lambda rank: 0},
        "nothing moved": {"options": lambda options: {"lr": 0.0}},
        "begins anew": {"begins_anew": True},
        "moves up": {"nothing": lambda param: torch.zeros(0)},
        "whole row": ({"whole": True}, When("held", lambda got, want: got > 2.5 * want)),
        "more kept": ({"keeps": True}, When("held")),
        "all_reduce": ({"reduce": all_reduced}, When("all_reduce")),
        "gradients left": ({"free": lambda param: None}, {"free": lambda param: param.grad.zero_()}, When("gradients")),
        "stuck": {"skips": True},
    })
class ShardedAdamW:
    """The right class, on torch's own optimizer of a slice; each knob takes the place of one of KNOBS."""

    def __init__(self, params, lr, weight_decay, **knobs):
        self.knob, self.params, self.ranks = SimpleNamespace(**KNOBS | knobs), params, dist.get_world_size()
        sizes = [param.numel() for param in params]
        size, owner = self.knob.size(sum(sizes), self.ranks), self.knob.owner(dist.get_rank())
        self.own, self.row = slice(owner * size, (owner + 1) * size), torch.zeros(self.ranks * size)
        parts = self.row.split([*sizes, len(self.row) - sum(sizes)])
        for param, part in zip(params, parts, strict=False):  # the last part is padding
            part.copy_(param.data.reshape(-1))
        self.knob.begin(self.row)
        for param, part in zip(params, parts, strict=False):
            param.data = self.knob.view(part.view(param.shape))
        self.piece = nn.Parameter(self.row if self.knob.whole else self.row[self.own])
        self.options = self.knob.options({"lr": lr, "weight_decay": weight_decay})
        self.inner = self.knob.optimizer([self.piece], **self.options)

    def step(self):
        given = [param for param in self.params if param.grad is not None]
        if self.knob.skips and len(given) < len(self.params):
            return
        flat = torch.cat([self.knob.nothing(param) if param.grad is None else param.grad.reshape(-1)
                          for param in self.params])
        row = torch.zeros_like(self.row)
        row[:len(flat)] = flat
        for param in given:
            self.knob.free(param)
        mine = self.knob.reduce(row, self.own) / self.knob.average(self.ranks)
        if self.knob.gather_first:
            self.knob.gather(self.row, self.own)
        if self.knob.begins_anew:
            self.inner = self.knob.optimizer([self.piece], **self.options)
        self.piece.grad = torch.zeros_like(self.piece)
        (self.piece.grad[self.own] if self.knob.whole else self.piece.grad).copy_(mine)
        self.inner.step()
        self.piece.grad = None
        if not self.knob.gather_first:
            self.knob.gather(self.row, self.own)
        if self.knob.keeps:
            self.last = row
