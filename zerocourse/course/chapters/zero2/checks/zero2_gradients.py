"""The check of 6.6: hooks, buckets and shards from scratch, with unused parameters and other orders."""

import operator
from collections import Counter
from functools import partial
from types import SimpleNamespace

import torch
from torch import nn

from .....layout.rankmap import Layout
from .....models.gpt2 import GPT
from .....zero.buffers.unit import split_into_buffers
from ....checks import Trial, When, Wrong, exercise
from ....checks.observers import stage_runs
from ....checks.observers.stage_probe import bytes_under, calling, numbers
from ....checks.observers.stage_runs import CONFIG, WatchedComm
from ....trials.watched_training import next_tokens, phases
from ...zero1.checks.zero1_ops import STAGE_1

SIZES = [4, 6, 3, 2, 1, 7]  # in buckets that differ in their elements, with padding for 2 and for 3 ranks too
BUCKET = 10
USES = {  # rank -> the parameters that it uses, in the order of its forward
    "every parameter is used": lambda rank: range(6),
    "parameter 5 is unused on rank 1": lambda rank: range(5 if rank == 1 else 6),
    "parameter 3 is unused everywhere": lambda rank: [0, 1, 2, 4, 5],
    "rank 1 uses the parameters in another order": lambda rank: [5, 4, 3, 2, 1, 0] if rank == 1 else range(6),
    "rank 1 uses no parameter at all": lambda rank: [] if rank == 1 else range(6),
}


def bucketed_on_a_rank(answer, case, micros):
    """What is there after some micro-batches, and what the last of them sent."""
    comm, uses, most = WatchedComm(), USES[case], []
    params = [nn.Parameter(torch.ones(size)) for size in SIZES]
    gradients = answer(params, BUCKET, comm)
    layouts = getattr(gradients, "layouts", None)
    if not isinstance(layouts, list) or not all(isinstance(layout, Layout) for layout in layouts):
        raise Wrong(f"after `__init__` the attribute `layouts` is {layouts!r:.100}: it is a list with the Layout of "
                    "each bucket")

    def look(_):
        loose = sum(param.grad.nbytes for param in params if param.grad is not None)
        most.append(bytes_under(vars(gradients), but=params) + loose)

    for param in params:
        param.register_post_accumulate_grad_hook(look)  # comes after the answer's own
    for micro in range(micros):
        comm.phase, total = "backward", torch.zeros(())
        comm.calls.clear(), comm.elements.clear(), comm.issued.clear(), most.clear()
        for index in uses(comm.rank):
            total = total + (params[index] * (numbers(SIZES[index], comm.rank) * (micro + 1) + index)).sum()
        if total.requires_grad:
            total.backward()
        comm.phase = "finish"
        calling(answer, gradients.finish)
        under_way = comm.wait_for_forgotten()
    shards, late = getattr(gradients, "shards", None) or [], sum(phase == "finish" for phase, *_ in comm.calls)
    enough = 4 * sum(layout.bounds[1] for layout in layouts) + 4 * max(layout.padded for layout in layouts)
    return {"layouts": [list(layout.shapes) for layout in layouts], "gathered": comm.elements["all_gather"],
            "calls": len(comm.calls), "under way": under_way,
            "loose": sum(param.grad is not None for param in params), "shards": len(shards),
            **{f"shard {number}": shard.clone() if torch.is_tensor(shard) else shard
               for number, shard in enumerate(shards)},
            "order": [elements for _, _, elements, _ in comm.issued],
            "late": late if len(uses(comm.rank)) == len(SIZES) else 0,
            "held": bytes_under(vars(gradients), but=params),
            "most": max(most) > enough if case.startswith("every") else False,
            "_order": [unit for *_, unit in comm.calls], "_most": max(most, default=0), "_enough": enough}


def gpt_on_a_rank(answer, steps=3, micros=2):
    """The tiny GPT-2 trained with the answer's shards, and AdamW on slices."""
    comm, losses = WatchedComm(), []
    torch.manual_seed(0)
    model = GPT(CONFIG)
    params = list(model.parameters())
    gradients = answer(params, 2000, comm)
    layouts = gradients.layouts
    rows = [torch.zeros(layout.padded) for layout in layouts]
    for row, layout in zip(rows, layouts, strict=True):
        for name in layout.shapes:
            row[layout.param_slice(name)] = params[int(name)].data.reshape(-1)
            params[int(name)].data = row[layout.param_slice(name)].view(params[int(name)].shape)
    slices = [nn.Parameter(row[layout.slice(comm.rank)]) for row, layout in zip(rows, layouts, strict=True)]
    optimizer = torch.optim.AdamW(slices, lr=0.01)
    for tokens in stage_runs.data(comm.rank, steps * micros).split(micros):
        for ended, begins in phases(model, optimizer, tokens, losses, lambda *batch: next_tokens(*batch) / micros):
            if ended == "backward":
                calling(answer, gradients.finish)
            if begins == "step":
                for part, gradient in zip(slices, gradients.shards, strict=True):
                    part.grad = gradient
        for row, layout in zip(rows, layouts, strict=True):
            comm.all_gather(row, layout, str(layout.numel)).wait()
        gradients.shards = [None] * len(layouts)
    return {"losses": micros * torch.tensor(losses)}


def also_gathered(gradients):
    for number, layout in enumerate(gradients.layouts):
        gradients.comm.all_gather(torch.zeros(layout.padded), layout, f"sum {number}").wait()


def named_anew(buckets):
    return [dict(zip(map(str, range(len(bucket))), bucket.values(), strict=True)) for bucket in buckets]


KNOBS = {
    "cut": lambda buckets: buckets,
    "divisor": lambda world_size: world_size,
    "free": lambda param: setattr(param, "grad", None),
    "opens": lambda number, came, buckets: [number],  # which buckets are made when a gradient comes
    "turn": lambda waiting, number: max(waiting, default=None),  # which of those that wait may leave, after a gradient
    "full": operator.eq,
    "at_once": 99,  # as many may leave after a gradient
    "at_the_end": lambda waiting, came: waiting[::-1],
    "reduces": True,
    "into": lambda row, own: None,
    "kept": lambda total, mine: total,
    "add": operator.add,
    "keeps_rows": False,
    "keeps_sums": False,
    "waits": lambda handles: handles,
    "ends": lambda gradients: None,
    "resets": ("rows", "came", "waiting"),
    "made_before": False,
}


@exercise(
    "6.6", "Gradients that never pile up", minutes=60, difficulty=3, timeout=15,
    replaces=("zerocourse:shard", "zerocourse.zero.stage2:*", *STAGE_1),
    trials=[
        Trial(lambda world: [(case, micros) for case in list(USES)[:5 if world == 2 else 1] for micros in (1, 2)],
              bucketed_on_a_rank, worlds=(2, 3)),
        Trial(observe=gpt_on_a_rank, worlds=(2,), close=stage_runs.CLOSE)],
    mistakes={
        "names": {"cut": named_anew},
        "last bucket first": {"cut": lambda buckets: buckets[::-1]},
        "gathered": ({"ends": also_gathered}, When("gathered")),
        "no collective": {"reduces": False},
        "not reset": ({"resets": ()}, {"resets": ("rows", "waiting")},
                      {"resets": ("rows", "waiting"), "full": operator.ge}),
        "under way": ({"waits": lambda handles: []}, {"waits": lambda handles: handles[-1:]}, When("under way")),
        "summed": {"divisor": lambda world_size: 1},
        "divided twice": {"divisor": lambda world_size: world_size**2},
        "averaged": {"add": lambda old, new: (old + new) / 2},
        "last alone": {"add": lambda old, new: new},
        "first alone": {"add": lambda old, new: old},
        "own gradient": {"kept": lambda total, mine: mine},
        "counted again": {"keeps_rows": True},
        "not freed": ({"free": lambda param: None}, {"free": lambda param: param.grad.zero_()}, When("loose")),
        "order": ({"turn": lambda waiting, number: number if number in waiting else None},
                  {"at_the_end": lambda waiting, came: list(waiting)}, When("order")),
        "all at the end": {"at_once": 0},
        "one at a time": {"at_once": 1},
        "made early": ({"made_before": True},
                       {"opens": lambda number, came, buckets: () if came else range(len(buckets))}, When("most")),
        "bucket kept": ({"into": lambda row, own: row[own]}, When("held", operator.gt)),
        "sum goes on": {"keeps_sums": True},
        "stuck": ({"at_the_end": lambda waiting, came: [number for number in waiting[::-1] if came[number]]},
                  {"at_the_end": lambda waiting, came: waiting[::-1] if came else []}),
    })
class ShardedGradients:
    """The right class; each knob takes the place of one of KNOBS."""

    def __init__(self, params, bucket_size, comm, **knobs):
        self.knob, self.comm, self.handles, self.sums = SimpleNamespace(**KNOBS | knobs), comm, [], {}
        buckets = self.knob.cut(split_into_buffers({str(i): param for i, param in enumerate(params)}, bucket_size))
        self.layouts = [Layout.build({name: param.shape for name, param in bucket.items()}, comm.world_size)
                        for bucket in buckets]
        self.shards = [None] * len(buckets)
        self.begin(("rows", "came", "waiting"))
        for number, bucket in enumerate(buckets):
            for name, param in bucket.items():
                param.register_post_accumulate_grad_hook(partial(self.arrive, number, name))

    def begin(self, parts):
        """For the next backward."""
        new = {"rows": {}, "came": Counter(), "waiting": list(range(len(self.layouts)))}
        vars(self).update((part, new[part]) for part in parts)
        self.make(new["waiting"] if self.knob.made_before else ())

    def make(self, numbers):
        for number in numbers:
            if number not in self.rows:
                self.rows[number] = torch.zeros(self.layouts[number].padded)

    def arrive(self, number, name, param):
        self.make(self.knob.opens(number, self.came, self.layouts))
        gradient = param.grad.reshape(-1) / self.knob.divisor(self.comm.world_size)
        self.rows[number][self.layouts[number].param_slice(name)] += gradient
        self.knob.free(param)
        self.came[number] += 1
        for _ in range(self.knob.at_once):
            turn = self.knob.turn(self.waiting, number)
            if turn is None or not self.knob.full(self.came[turn], len(self.layouts[turn].shapes)):
                break
            self.leave(turn)

    def leave(self, number):
        layout = self.layouts[number]
        self.waiting.remove(number)
        self.make([number])
        row = self.rows[number].clone() if self.knob.keeps_rows else self.rows.pop(number)
        own = layout.slice(self.comm.rank)
        mine, into = row[own].clone(), self.knob.into(row, own)

        def arrived(total):
            old = self.sums.get(number) if self.knob.keeps_sums else self.shards[number]
            new = self.knob.kept(total, mine)
            self.shards[number] = self.sums[number] = new if old is None else self.knob.add(old, new)

        if not self.knob.reduces:
            return arrived(mine)
        self.handles.append(self.comm.reduce_scatter(row, layout, f"bucket {number}", into, arrived))

    def finish(self):
        for number in self.knob.at_the_end(self.waiting, self.came):
            self.leave(number)
        for handle in self.knob.waits(self.handles):
            handle.wait()
        self.knob.ends(self)
        self.handles = []
        self.begin(self.knob.resets)
