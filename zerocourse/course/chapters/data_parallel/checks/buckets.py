"""The check of 4.7, data parallel with buckets: a reference whose knobs make the mistakes."""

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from ....checks.exercise import exercise
from ....checks.harness import When
from ....checks.trace import Trial
from .bucket_runs import STEPS, buckets_of, or_zeros, trainable, trained


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
        "each by itself": {"fits": lambda numel, room: False},
        "one row": {"fits": lambda numel, room: True},
        "first ones first": {"order": lambda model: trainable(model)[::-1]},
        "frozen too": {"order": lambda model: [*model.parameters()]},
        "exactly full": {"fits": operator.lt},
        "too full": ({"fits": lambda numel, room: room > 0}, {"fits": lambda numel, room: room >= 0}),
        "whoever is full": {"next": whoever_is_full},
        "finish turned": {"rest": lambda self: not_left(self)[::-1]},
        "without gaps": {"members": lambda bucket: [param for param in bucket if param.grad is not None]},
        "first step alone": {"forget": lambda self: self.here.clear()},
        "only full ones": {"rest": lambda self: ()},
        "nothing sent": {"next": lambda self: (), "rest": lambda self: ()},
        "again": ({"rest": lambda self: range(len(self.buckets))},
                  When("sizes", lambda got, want: sum(got) > sum(want) and sum(got) % sum(want) == 0)),
        "asked who has one": (divided_by(lambda self: dist.all_reduce(torch.ones(1)) or dist.get_world_size()),
                              When("sizes", lambda got, want: 0 < sum(got) - sum(want) < 8)),
        "early ones count": {"piles": lambda self, param: self.here.add(param)},
        "never forgotten": {"forget": lambda self: self.left.clear()},
        "not waited": ({"reduce": lambda row: dist.all_reduce(row, async_op=True) and None}, When("unwaited")),
        "summed": divided_by(lambda self: 1),
        "halved": divided_by(lambda self: 2),
        "divided twice": divided_by(lambda self: dist.get_world_size() ** 2),
        "micro-batches too": divided_by(lambda self: dist.get_world_size() * max(self.arrivals.values())),
        "not written": writing(lambda self, param, part: param.grad),
        "added": writing(lambda self, param, part: or_zeros(param) + part),
        "own divided": writing(lambda self, param, part: or_zeros(param) / dist.get_world_size()),
        "last micro-batch": {"piles": lambda self, param: setattr(param, "grad", None)},
        "last alone averaged": {"piles": keep, **writing(lambda self, param, part: part + self.kept.pop(param, 0))},
        "left out": ({"part": seen_alone}, {"part": seen_alone, **writing(
            lambda self, param, part: part if param in self.here else param.grad)}),
        "None taken": {"part": lambda self, param: param.grad},
        "step before": {"part": lambda self, param: self.kept.get(param, or_zeros(param)) if param.grad is None else
                        param.grad, **writing(lambda self, param, part: self.kept.setdefault(param, part).copy_(part))},
        "only who has one": writing(lambda self, param, part: None if param.grad is None else part),
        "left behind": ({"rest": lambda self: [number for number in not_left(self) if any(
            param.grad is not None for param in self.buckets[number])]}, When("apart")),
        "None on one": (writing(lambda self, param, part: part if part.any() or dist.get_rank() else None),
                        When("replicas")),
        "waits": ({"reduce": wait_at_once}, {"reduce": dist.all_reduce}, When("waits")),
        "at the end": {"next": lambda self: ()},
        "one a hook": {"next": lambda self: itertools.islice(in_order(self), 1)},
        "late": ({"next": lambda self: [number for number in in_order(self) if number + 1 < len(self.buckets)]},
                 When("left")),
    })
@dataclass(eq=False)
class Bucketed:
    """Averages the gradients of a model over all ranks, in buckets that leave while the backward goes on.

    start apart: The ranks start with different parameters: send those of rank 0 to all, else the replicas never agree,
        however well the gradients are averaged.
    frozen apart: You sent the trainable parameters alone: the forward uses frozen ones too, and so every rank needs
        those of rank 0.
    parameters: The hook gets the parameter, and its gradient is `param.grad`.
    another collective: One all-reduce for each bucket is all that is needed.
    always sends: Only the last micro-batch of a step sends, so that a step's traffic does not grow with the
        accumulation.
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
    finish turned: `finish` sends what is left in the order of the buckets too.
    without gaps: What has no gradient has its place in the row all the same, with zeros: another rank may have a
        gradient for it.
    first step alone: Nothing leaves in the second step: `finish` has to make everything ready for the next.
    only full ones: Some buckets never left: one in which a gradient is missing never becomes full, so `finish` has to
        send it, with zeros for what is missing.
    nothing sent: Nothing was sent: every rank keeps its own gradients.
    again: Gradients left more than once: what left in the backward does not leave again in `finish`.
    asked who has one: You sent more than the gradients. If that is to divide by the number of ranks that had one:
        divide by the number of ranks, the others count as zeros.
    early ones count: What arrived with `sync = False` does not count: only what arrives in the last backward says that
        a gradient is complete.
    never forgotten: What arrived in an earlier step does not count: `finish` has to forget it.
    not waited: Nobody knows what is in the row before the all-reduce is done: wait for each in `finish`, before its
        average is written.
    summed: You summed the gradients and never divided by the number of ranks: that acts like a learning rate {world}
        times as large.
    halved: You divided by 2, however many ranks there are.
    divided twice: You divided by the number of ranks twice.
    micro-batches too: You divided by the number of micro-batches too: whoever wants their average scales the loss.
    not written: The average was never written back: these are this rank's own gradients.
    added: You added the average to what was in `p.grad`: it takes its place.
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
    None on one: An optimizer with momentum moves it on the one alone: leave it alike on all ranks.
    waits: Start it with `async_op=True`, keep what it returns, and wait in `finish`: waiting at once looks
        asynchronous, and nothing overlaps.
    at the end: The first bucket left when the backward was over: it should leave from the hook, as soon as all its
        gradients are there, so that it travels meanwhile.
    one a hook: After a bucket has left, look at the next again, with `while` and not with `if`: those behind it may be
        full already.
    late: Each bucket should leave from the hook, as soon as all its gradients are there and those before it have left.
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
    members: Callable = list  # of a bucket: what is sent
    forget: Callable = lambda self: (self.here.clear(), self.left.clear())

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
            row = torch.cat([self.part(self, param).flatten() for param in self.members(self.buckets[number])])
            self.left[number] = row, self.reduce(row)

    def finish(self):
        self.send(self.rest(self))
        for number, (row, work) in self.left.items():
            if work:
                work.wait()
            bucket, average = self.members(self.buckets[number]), row / self.divisor(self)
            for param, part in zip(bucket, average.split([param.numel() for param in bucket]), strict=True):
                param.grad = self.gradient(self, param, part.view_as(param))
        self.arrivals.clear()
        self.forget(self)
