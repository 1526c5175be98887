"""The check of 4.7: data parallel with buckets, trained in all the ways in which a gradient may come, late or never.

Everything that leaves a rank is noted, and when: a gradient that is ready, a bucket that leaves, the end of a backward.
"""

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from ..exercise import exercise
from ..harness import When
from ..trace import Trial
from ..verdict import STUCK, Wrong
from .stage_probe import calling
from .wire import Wire, sorted_values

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
    """What can be seen of the last of these steps with the answer.

    case: {0}, on {world} ranks
    start: before the first step the parameters of rank {rank} have
    frozen: before the first step the frozen parameters of rank {rank} have
    weights: what left rank {rank} are the parameters and not the gradients.
    verbs: rank {rank} called {got}.
    early: {got} elements left rank {rank} during a backward with `sync = False`.
    sizes: the all-reduces of rank {rank} had {got} elements, and the buckets are {want}: each takes whole parameters,
        the last of them first, as long as it has no more than 340 elements.
    missing: bucket {_bucket} left rank {rank} when {got} of its gradients, such as that of '{_such}', had not arrived in
        this backward.
    gradients: in one row the gradients of rank {rank} after `finish` have
    waits: the gradients are right, but the backward of rank {rank} stood still {got} times to wait for an all-reduce.
    left: the gradients are right, but the buckets of rank {rank} left when so many gradients were there: {got}. It
        should be {want}, where `finish` is for those that leave when the backward is over.
    replicas: the gradients are right, but after the step the parameters of rank {rank} are not those of rank 0. Are the
        gradients of a parameter that nobody used zeros on one rank, and `None` on another?
    """
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
            calling(answer, one_step, parallel, model, number, micros, wire)
            gradients = row_of(map(or_zeros, params))
            optimizer.step()
            optimizer.zero_grad()
    seen = {"start": start, "frozen": frozen, "weights": torch.equal(sorted_values(wire.log), before),
            **sent(wire.log, params, {param: name for name, param in model.named_parameters()})}
    late, of_rank_0 = {name: seen.pop(name) for name in ("waits", "left")}, row_of(params)
    dist.broadcast(of_rank_0, 0)
    return {**seen, "gradients": gradients, **late, "replicas": torch.allclose(row_of(params), of_rank_0)}


def one_step(parallel, model, number, micros, wire):
    """Forward and backward of each micro-batch, and `finish`."""
    rank = dist.get_rank()
    for micro, branches in enumerate(micros):
        parallel.sync = micro == len(micros) - 1
        wire.note("backward", sync=parallel.sync)
        x = torch.randn(4, 24, generator=torch.Generator().manual_seed(1000 * rank + 10 * number + micro)) + rank
        try:
            model(x, branches if isinstance(branches, str) else branches[min(rank, 1)]).backward()
            wire.note("over")
            if parallel.sync:
                parallel.finish()
        except Wrong as wrong:
            alike = wrong.code != STUCK or isinstance(branches, str)
            raise wrong if alike else Wrong(str(wrong), "left behind") from None


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


# Knobs of the reference -----------------------------------------------------------------------------------------------

def in_order(self) -> Iterator[int]:
    """The buckets that may leave: full ones, as long as all before them have left."""
    return itertools.takewhile(lambda number: self.here.issuperset(self.buckets[number]), not_left(self))


def not_left(self) -> list[int]:
    return [number for number in range(len(self.buckets)) if number not in self.left]


def whoever_is_full(self) -> list[int]:
    return [number for number in not_left(self) if self.here.issuperset(self.buckets[number])]


def keep(self, param):
    """Put aside what came in an earlier micro-batch."""
    self.kept[param], param.grad = self.kept.get(param, 0) + param.grad, None


def wait_at_once(row):
    work = dist.all_reduce(row, async_op=True)
    work.wait()
    return work


def divided_by(divisor):
    return {"divisor": divisor}


def writing(gradient):
    return {"gradient": gradient}


def seen_alone(self, param):
    return param.grad if param in self.here else torch.zeros_like(param)


@exercise(
    "4.7", "Data parallel with buckets", minutes=75, difficulty=3, answer="DataParallel",
    replaces=("zerocourse.zero.ddp:*", "zerocourse.zero.shard:shard", "zerocourse.comm.group:Comm.reduce_scatter",
              "zerocourse.comm.group:Comm.all_gather", "zerocourse.comm.group:Comm.all_reduce",
              "zerocourse.comm.group:Comm.broadcast"),
    trials=[Trial([step], trained, worlds=(2, 3)) for step in STEPS],
    mistakes={
        "start apart": {"shared": lambda model: ()},
        "frozen apart": {"shared": trainable},
        "parameters": ({"part": lambda self, param: param.detach()}, When("weights")),
        "another collective": ({"reduce": lambda row: dist.broadcast(row, 0, async_op=True)}, When("verbs")),
        "always sends": ({"counts": lambda self: True}, When("early")),
        "nothing sent": ({"next": lambda self: (), "rest": lambda self: ()}, When("sizes", lambda got, want: not got)),
        "each by itself": {"fits": lambda numel, room: False},
        "one row": {"fits": lambda numel, room: True},
        "first ones first": {"order": lambda model: trainable(model)[::-1]},
        "frozen too": {"order": lambda model: [*model.parameters()]},
        "exactly full": {"fits": operator.lt},
        "too full": {"fits": lambda numel, room: room > 0},
        "whoever is full": {"next": whoever_is_full},
        "only full ones": {"rest": lambda self: ()},
        "again": ({"rest": lambda self: range(len(self.buckets))},
                  When("sizes", lambda got, want: sum(got) > sum(want) and sum(got) % sum(want) == 0)),
        "asked who has one": (divided_by(lambda self: dist.all_reduce(torch.ones(1)) or dist.get_world_size()),
                              When("sizes", lambda got, want: 0 < sum(got) - sum(want) < 8)),
        "early ones count": {"piles": lambda self, param: self.here.add(param)},
        "never forgotten": {"forget": lambda self: None},
        "summed": divided_by(lambda self: 1),
        "halved": divided_by(lambda self: 2),
        "divided twice": divided_by(lambda self: dist.get_world_size() ** 2),
        "micro-batches too": divided_by(lambda self: dist.get_world_size() * max(self.arrivals.values())),
        "not written": writing(lambda self, param, part: param.grad),
        "own divided": writing(lambda self, param, part: or_zeros(param) / dist.get_world_size()),
        "last micro-batch": {"piles": lambda self, param: setattr(param, "grad", None)},
        "last alone averaged": {"piles": keep, **writing(lambda self, param, part: part + self.kept.pop(param, 0))},
        "left out": ({"part": seen_alone}, {"part": seen_alone, **writing(
            lambda self, param, part: part if param in self.here else param.grad)}),
        "None taken": {"part": lambda self, param: param.grad},
        "step before": {"part": lambda self, param: self.kept.get(param, or_zeros(param)) if param.grad is None else
                        param.grad, **writing(lambda self, param, part: self.kept.setdefault(param, part).copy_(part))},
        "only who has one": writing(lambda self, param, part: None if param.grad is None else part),
        "left behind": {"rest": lambda self: [number for number in not_left(self) if any(
            param.grad is not None for param in self.buckets[number])]},
        "waits": ({"reduce": wait_at_once}, {"reduce": dist.all_reduce}, When("waits")),
        "at the end": {"next": lambda self: ()},
        "one a hook": {"next": lambda self: itertools.islice(in_order(self), 1)},
    })
@dataclass(eq=False)
class DataParallel:
    """Averages the gradients of a model over all ranks, in buckets that leave while the backward goes on.

    start apart: The ranks start with different parameters: send those of rank 0 to all, else the replicas never agree,
        however well the gradients are averaged.
    frozen apart: You sent the trainable parameters alone: the forward uses frozen ones too, and so every rank needs
        those of rank 0.
    parameters: The hook gets the parameter, and its gradient is `param.grad`.
    another collective: One all-reduce for each bucket is all that is needed.
    always sends: Only the last micro-batch of a step sends, so that a step's traffic does not grow with the
        accumulation.
    nothing sent: Nothing was sent: every rank keeps its own gradients.
    each by itself: You sent each parameter by itself: many small messages, where a bucket collects several.
    one row: You sent all gradients as one row: nothing can leave before the last gradient is there.
    first ones first: You filled the buckets in the order of the forward: the backward makes the last parameters'
        gradients first.
    frozen too: You gave frozen parameters a place in the buckets: they have no gradient.
    exactly full: A bucket may be full to the last element: begin the next only when a parameter does not fit, which is
        when it has more elements than there is room.
    too full: You closed a bucket when it was over the limit: close it before it grows larger.
    whoever is full: A bucket may leave only when all buckets before it have left, though it is full: another rank may
        have other full buckets, and all call the same all-reduces in the same order.
    only full ones: Some buckets never left: one in which a gradient is missing never becomes full, so `finish` has to
        send it, with zeros for what is missing.
    again: Gradients left more than once: what left in the backward does not leave again in `finish`.
    asked who has one: You sent more than the gradients. If that is to divide by the number of ranks that had one:
        divide by the number of ranks, the others count as zeros.
    early ones count: What arrived with `sync = False` does not count: only what arrives in the last backward says that
        a gradient is complete.
    never forgotten: What arrived in an earlier step does not count: `finish` has to forget it.
    summed: You summed the gradients and never divided by the number of ranks: that acts like a learning rate {world}
        times as large.
    halved: You divided by 2, however many ranks there are.
    divided twice: You divided by the number of ranks twice.
    micro-batches too: You divided by the number of micro-batches too: whoever wants their average scales the loss.
    not written: The average was never written back: these are this rank's own gradients.
    own divided: These are this rank's own gradients, divided by the number of ranks: the sum never came back.
    last micro-batch: Only the last micro-batch was averaged: what the earlier ones left in `p.grad` belongs to it.
    last alone averaged: Only the last micro-batch was averaged, and what this rank had from earlier ones was added to
        it as it was: all of `p.grad` is to be averaged.
    left out: A parameter without a gradient in the last micro-batch was left out: what earlier ones left in its
        `p.grad` has to be averaged too.
    None taken: Where a parameter had no gradient, its `grad` is `None`: zeros stand for it in the bucket.
    step before: Where a parameter had no gradient, that of the step before was sent again: its place in the bucket has
        to be zero.
    only who has one: A parameter that had no gradient on this rank got none: the other ranks' average is for it too,
        else the replicas part.
    left behind: In each step all buckets leave, also one for which this rank has no gradient at all: another rank has
        gradients for it. And a bucket may leave only when all buckets before it have left, though it is full.
    waits: Start it with `async_op=True`, keep what it returns, and wait in `finish`: waiting at once looks
        asynchronous, and nothing overlaps.
    at the end: The first bucket left when the backward was over: it should leave from the hook, as soon as all its
        gradients are there, so that it travels meanwhile.
    one a hook: After a bucket has left, look at the next again, with `while` and not with `if`: those behind it may be
        full already.
    right: the same gradients as one process on the whole batch, with accumulation and with unused parameters, and the
        buckets left while the backward went on.
    """

    model: nn.Module
    limit: int
    shared: Callable = nn.Module.parameters  # what rank 0 sends to all
    order: Callable = trainable  # of what is in the buckets, the last one first
    fits: Callable = operator.le
    counts: Callable = lambda self: self.sync
    piles: Callable = lambda self, param: None  # what is done with a gradient that does not count
    next: Callable = in_order
    part: Callable = lambda self, param: or_zeros(param)
    reduce: Callable = lambda row: dist.all_reduce(row, async_op=True)
    divisor: Callable = lambda self: dist.get_world_size()
    gradient: Callable = lambda self, param, part: part  # what becomes `param.grad`, of this part of the average
    rest: Callable = not_left  # what leaves in `finish`
    forget: Callable = lambda self: self.here.clear()

    def __post_init__(self):
        for param in self.shared(self.model):
            dist.broadcast(param.data, 0)
        self.sync, self.here, self.left, self.arrivals, self.kept = True, set(), {}, Counter(), {}
        self.buckets = buckets_of(self.order(self.model), self.limit, self.fits)
        for param in trainable(self.model):
            param.register_post_accumulate_grad_hook(self.arrived)

    def arrived(self, param):
        self.arrivals[param] += 1
        if not self.counts(self):
            return self.piles(self, param)
        self.here.add(param)
        self.send(self.next(self))

    def send(self, numbers):
        for number in numbers:
            row = torch.cat([self.part(self, param).flatten() for param in self.buckets[number]])
            self.left[number] = row, self.reduce(row)

    def finish(self):
        self.send(self.rest(self))
        for number, (row, work) in self.left.items():
            if work:
                work.wait()
            bucket, average = self.buckets[number], row / self.divisor(self)
            for param, part in zip(bucket, average.split([param.numel() for param in bucket]), strict=True):
                param.grad = self.gradient(self, param, part.view_as(param))
        self.left.clear()
        self.arrivals.clear()
        self.forget(self)
