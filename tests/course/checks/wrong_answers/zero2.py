"""Wrong answers of chapter 06."""

import functools

import torch

from wrong_answers import wrong
from zerocourse.layout.rankmap import Layout

# 6.1 ----------------------------------------------------------------------------------------------------------------

@wrong("6.1", "closed late")
def closes_late(units, bucket_size):
    buckets = []
    for unit in units:
        bucket = []
        for size in unit:
            bucket.append(size)
            if sum(bucket) >= bucket_size:
                buckets.append(bucket)
                bucket = []
        if bucket:
            buckets.append(bucket)
    return buckets


# 6.2 ----------------------------------------------------------------------------------------------------------------

@wrong("6.2", "first first")
def first_first(buckets, arrivals):
    left, found = 0, []
    for bucket in buckets:
        left = max([left] + [arrivals.index(name) + 1 if name in arrivals else len(arrivals) for name in bucket])
        found.append(left)
    return found


# 6.3 ----------------------------------------------------------------------------------------------------------------

@wrong("6.3", "not freed")
def not_freed(params, bucket, layout, world_size):
    def collect(place, param):
        bucket[place].add_(param.grad.flatten(), alpha=1 / world_size)

    for name, param in params.items():
        param.register_post_accumulate_grad_hook(functools.partial(collect, layout.param_slice(name)))


# 6.4 ----------------------------------------------------------------------------------------------------------------

@wrong("6.4", "view")
def keeps_a_view(flat, comm):
    bucket = flat.take_bucket()
    return comm.reduce_scatter(bucket, flat.layout, flat.name, into=bucket[flat.own], done=flat.accumulate)


@wrong("6.4", "dropped late")
def dropped_late(flat, comm):
    def done(total):
        flat.accumulate(total)
        flat.take_bucket()

    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, done=done)


# 6.5 ----------------------------------------------------------------------------------------------------------------

@wrong("6.5", "not the last")
def first_instead_of_last(model, optimizer, micro_batches):
    total = 0.0
    for number, (x, y) in enumerate(micro_batches):
        with model.zero.no_sync() if number else torch.enable_grad():
            loss = model(x, y) / len(micro_batches)
            loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    return total


# 6.6 ----------------------------------------------------------------------------------------------------------------

class _Bucket:
    """A bucket: its members, and what has come in this backward."""

    def __init__(self, number, members, params, world_size):
        self.number, self.members = number, members
        self.layout = Layout.build({str(i): params[i].shape for i in members}, world_size)
        self.row, self.came = None, set()

    @property
    def full(self):
        return len(self.came) == len(self.members)


class _ByHand:
    """A right one out of buckets; each step of the way is a method."""

    def __init__(self, params, bucket_size, comm):
        self.comm, self.buckets, self.waiting, self.handles = comm, [], [], []
        members, used = [], 0
        for i, p in enumerate(params):
            if members and used + p.numel() > bucket_size:
                self.buckets.append(_Bucket(len(self.buckets), members, params, comm.world_size))
                members, used = [], 0
            members.append(i)
            used += p.numel()
        self.buckets.append(_Bucket(len(self.buckets), members, params, comm.world_size))
        self.layouts = [bucket.layout for bucket in self.buckets]
        self.shards = [None] * len(self.buckets)
        self.waiting = list(self.buckets)
        for bucket in self.buckets:
            for i in bucket.members:
                params[i].register_post_accumulate_grad_hook(self.watch(bucket, i))

    def watch(self, bucket, i):
        return lambda p: self.moved(bucket, i, p)

    def moved(self, bucket, i, p):
        if bucket.row is None:
            bucket.row = torch.zeros(bucket.layout.padded)
        bucket.row[bucket.layout.param_slice(str(i))].copy_(p.grad.flatten()).div_(self.comm.world_size)
        p.grad = None
        bucket.came.add(i)
        self.depart()

    def depart(self):
        while self.waiting and self.waiting[-1].full:
            self.reduce(self.waiting.pop())

    def reduce(self, bucket):
        row, bucket.row = bucket.row, None
        if row is None:
            row = torch.zeros(bucket.layout.padded)
        self.handles.append(self.comm.reduce_scatter(row, bucket.layout, f"bucket {bucket.number}",
                                                     done=lambda total: self.arrived(bucket.number, total)))

    def arrived(self, number, total):
        if self.shards[number] is not None:
            total = total + self.shards[number]
        self.shards[number] = total

    def finish(self):
        while self.waiting:
            self.reduce(self.waiting.pop())
        while self.handles:
            self.handles.pop(0).wait()
        for bucket in self.buckets:
            bucket.came.clear()
        self.waiting = list(self.buckets)


@wrong("6.6", "not reset")
class CountsGoOn(_ByHand):
    def finish(self):
        came = [set(bucket.came) for bucket in self.buckets]
        super().finish()
        for bucket, names in zip(self.buckets, came):
            bucket.came |= names


@wrong("6.6", "stuck")
class NoWorkNoCalls(_ByHand):
    def finish(self):
        if len(self.waiting) == len(self.buckets) and not any(bucket.came for bucket in self.buckets):
            return
        super().finish()


# 6.7 ----------------------------------------------------------------------------------------------------------------

@wrong("6.7", "copied late")
def adds_out_of_place(flat, comm):
    bucket = flat.take_bucket()
    if getattr(flat, "received", None) is None:
        flat.received = torch.empty(bucket.numel() // comm.world_size)

    def arrived(total):
        earlier = flat.grad_shard
        flat.grad_shard = total if earlier is None else torch.add(earlier, total)

    return comm.reduce_scatter(bucket, flat.layout, flat.name, into=flat.received, done=arrived)


@wrong("6.7", "own memory")
def as_in_6_4(flat, comm):
    return comm.reduce_scatter(flat.take_bucket(), flat.layout, flat.name, done=flat.accumulate)


# 06.w1 --------------------------------------------------------------------------------------------------------------

@wrong("06.w1", "as soon as it is full")
def whoever_is_full(name, waiting, send):
    for entry in list(waiting):
        entry[1].discard(name)
        if not entry[1]:
            send(entry[0])
            waiting.remove(entry)


@wrong("06.w1", "one at a time")
def if_and_not_while(name, waiting, send):
    for bucket, missing in waiting:
        if name in missing:
            missing.remove(name)
    if waiting and len(waiting[0][1]) == 0:
        send(waiting[0][0])
        del waiting[0]


@wrong("06.w1", "sent again")
def never_taken_out(name, waiting, send):
    for bucket, missing in waiting:
        missing.discard(name)
    if not waiting[0][1]:
        send(waiting[0][0])


@wrong("06.w1", "raised")
def only_looks_at_the_first(name, waiting, send):
    bucket, missing = waiting[0]
    missing.remove(name)
    if not missing:
        waiting.pop(0)
        send(bucket)


# 06.w2 --------------------------------------------------------------------------------------------------------------

@wrong("06.w2", "view")
def slice_of_the_bucket(kept, bucket, own):
    mine = bucket[own]
    if kept is not None:
        mine += kept
    return mine


@wrong("06.w2", "replaced")
def latest_alone(kept, bucket, own):
    return bucket[own].clone()


@wrong("06.w2", "whole bucket")
def sums_of_everything(kept, bucket, own):
    return bucket.clone() if kept is None else kept.add_(bucket)


@wrong("06.w2", "first slice")
def from_the_beginning(kept, bucket, own):
    part = bucket[:own.stop - own.start].clone()
    return part if kept is None else part + kept


@wrong("06.w2", "nothing returned")
def adds_and_forgets(kept, bucket, own):
    part = bucket[own].clone()
    if kept is not None:
        part += kept
