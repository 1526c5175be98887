"""The check of 4.7, data parallel with buckets: a reference whose knobs make the mistakes."""

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from ....checks import Trial, When, exercise
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
    """Averages the gradients of a model over all ranks, in buckets that leave while the backward goes on."""

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
