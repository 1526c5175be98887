"""Wrong answers of chapter 06."""

import functools

import torch

from wrong_answers import wrong
from zerocourse.layout.rankmap import Layout

# 6.1 ----------------------------------------------------------------------------------------------------------------

@wrong("6.1", "across the end of a unit")
def across_units(units, bucket_size):
    buckets, bucket = [], []
    for size in (size for unit in units for size in unit):
        if bucket and sum(bucket) + size > bucket_size:
            buckets.append(bucket)
            bucket = []
        bucket.append(size)
    return buckets + [bucket]


@wrong("6.1", "lost the last bucket")
def last_not_flushed(units, bucket_size):
    buckets = []
    for unit in units:
        bucket = []
        for size in unit:
            if bucket and sum(bucket) + size > bucket_size:
                buckets.append(bucket)
                bucket = []
            bucket.append(size)
    return buckets


@wrong("6.1", "only when it was over its limit")
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


@wrong("6.1", "although the parameter fits")
def never_quite_full(units, bucket_size):
    buckets = []
    for unit in units:
        buckets.append([unit[0]])
        for size in unit[1:]:
            if sum(buckets[-1]) + size < bucket_size:
                buckets[-1].append(size)
            else:
                buckets.append([size])
    return buckets


@wrong("6.1", "an empty bucket before")
def empty_first(units, bucket_size):
    buckets = []
    for unit in units:
        buckets.append([])
        room = bucket_size
        for size in unit:
            if size > room:
                buckets.append([])
                room = bucket_size
            buckets[-1].append(size)
            room -= size
    return buckets


# 6.2 ----------------------------------------------------------------------------------------------------------------

@wrong("6.2", "as soon as it is full")
def no_order(buckets, arrivals):
    at = {name: number for number, name in enumerate(arrivals, 1)}
    return [max(at.get(name, len(arrivals)) for name in bucket) for bucket in buckets]


@wrong("6.2", "as soon as it is full")
def no_order_by_events(buckets, arrivals):
    missing, left = [set(bucket) for bucket in buckets], [len(arrivals)] * len(buckets)
    for count, name in enumerate(arrivals, 1):
        for number, names in enumerate(missing):
            if name in names:
                names.remove(name)
                if not names:
                    left[number] = count
    return left


@wrong("6.2", "wait for the end of the backward")
def all_at_the_end(buckets, arrivals):
    return [len(arrivals) for _ in buckets]


@wrong("6.2", "first bucket leave first")
def first_first(buckets, arrivals):
    left, found = 0, []
    for bucket in buckets:
        left = max([left] + [arrivals.index(name) + 1 if name in arrivals else len(arrivals) for name in bucket])
        found.append(left)
    return found


@wrong("6.2", "counted from 0")
def from_zero(buckets, arrivals):
    left, found = 0, []
    for bucket in buckets[::-1]:
        left = max([left] + [arrivals.index(name) if name in arrivals else len(arrivals) for name in bucket])
        found.insert(0, left)
    return found


@wrong("6.2", "counted from 0")
def all_one_less(buckets, arrivals):
    left, found = -1, []
    for bucket in buckets[::-1]:
        for name in bucket:
            left = max(left, arrivals.index(name) if name in arrivals else len(arrivals) - 1)
        found = [left, *found]
    return found


@wrong("6.2", "without its unused parameters")
def unused_ignored(buckets, arrivals):
    left, found = 0, []
    for bucket in reversed(buckets):
        left = max([left] + [arrivals.index(name) + 1 for name in bucket if name in arrivals])
        found.append(left)
    return list(reversed(found))


# 6.3 ----------------------------------------------------------------------------------------------------------------

@wrong("6.3", "You put the weights into the bucket")
def takes_the_argument(params, bucket, layout, world_size):
    for name, param in params.items():
        def hook(gradient, name=name):
            bucket[layout.param_slice(name)] += gradient.detach().flatten() / world_size
            gradient.grad = None
        param.register_post_accumulate_grad_hook(hook)


@wrong("6.3", "gradient as it is")
def not_divided(params, bucket, layout, world_size):
    def make(name):
        def hook(param):
            bucket[layout.param_slice(name)].view_as(param).add_(param.grad)
            param.grad = None
        return hook

    for name in params:
        params[name].register_post_accumulate_grad_hook(make(name))


@wrong("6.3", "reads the loop's variable")
def late_binding(params, bucket, layout, world_size):
    for name, param in params.items():
        def hook(param):
            bucket[layout.param_slice(name)] += param.grad.flatten() / world_size
            param.grad = None
        param.register_post_accumulate_grad_hook(hook)


@wrong("6.3", "still have their `.grad`")
def not_freed(params, bucket, layout, world_size):
    def collect(place, param):
        bucket[place].add_(param.grad.flatten(), alpha=1 / world_size)

    for name, param in params.items():
        param.register_post_accumulate_grad_hook(functools.partial(collect, layout.param_slice(name)))


@wrong("6.3", "overwrote what the first backward")
def overwritten(params, bucket, layout, world_size):
    for name, param in params.items():
        def hook(param, name=name):
            bucket[layout.param_slice(name)] = param.grad.flatten() / world_size
            param.grad = None
        param.register_post_accumulate_grad_hook(hook)


@wrong("6.3", "you changed the weights")
def divides_the_weights(params, bucket, layout, world_size):
    for name, param in params.items():
        def hook(param, name=name):
            param.data /= world_size
            bucket[layout.param_slice(name)] += param.grad.flatten()
            param.grad = None
        param.register_post_accumulate_grad_hook(hook)


# 6.4 ----------------------------------------------------------------------------------------------------------------

@wrong("6.4", "is a view of the bucket")
def keeps_a_view(flat, comm):
    bucket = flat.drop_bucket()
    return comm.reduce_scatter(bucket, flat.layout, flat.name, into=bucket[flat.own], done=flat.accumulate)


@wrong("6.4", "replaced the sum of the earlier micro-batches")
def last_micro_batch_alone(flat, comm):
    def done(total):
        flat.grad_shard = total

    return comm.reduce_scatter(flat.drop_bucket(), flat.layout, flat.name, done=done)


@wrong("6.4", "`flat.grad` of rank 0 is still there")
def never_dropped(flat, comm):
    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, done=flat.accumulate)


@wrong("6.4", "divided by the number of ranks again")
def divided_twice(flat, comm):
    bucket = flat.drop_bucket().div_(comm.world_size)
    return comm.reduce_scatter(bucket, flat.layout, flat.name, done=flat.accumulate)


@wrong("6.4", "by hand")
def set_to_none(flat, comm):
    row, flat.grad = flat.grad, None
    return comm.reduce_scatter(row, flat.layout, flat.name, done=flat.accumulate)


@wrong("6.4", "while the reduction of rank 0 was under way")
def dropped_late(flat, comm):
    def done(total):
        flat.accumulate(total)
        flat.drop_bucket()

    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, done=done)


@wrong("6.4", "The backward stands still")
def waits(flat, comm):
    comm.reduce_scatter(flat.drop_bucket(), flat.layout, flat.name, done=flat.accumulate).wait()


@wrong("6.4", "The backward stands still")
def waits_and_returns(flat, comm):
    handle = comm.reduce_scatter(flat.drop_bucket(), flat.layout, flat.name, done=flat.accumulate)
    handle.wait()
    return handle


@wrong("6.4", "this rank's own gradient")
def own_slice(flat, comm):
    bucket = flat.drop_bucket()
    flat.accumulate(bucket[flat.own].clone())
    return comm.reduce_scatter(bucket, flat.layout, flat.name)


# 6.5 ----------------------------------------------------------------------------------------------------------------

@wrong("6.5", "reduced every micro-batch")
def no_no_sync(model, optimizer, micro_batches):
    losses = []
    for x, y in micro_batches:
        loss = model(x, y)
        (loss / len(micro_batches)).backward()
        losses.append(loss.item())
    optimizer.step()
    optimizer.zero_grad()
    return sum(losses) / len(losses)


@wrong("6.5", "added the micro-batches up")
def loss_not_divided(model, optimizer, micro_batches):
    losses = []
    for number, (x, y) in enumerate(micro_batches):
        with model.zero.no_sync() if number + 1 < len(micro_batches) else torch.enable_grad():
            loss = model(x, y)
            loss.backward()
        losses.append(loss.item())
    optimizer.step()
    optimizer.zero_grad()
    return sum(losses) / len(losses)


@wrong("6.5", "reduced nothing until the step")
def never_in_a_backward(model, optimizer, micro_batches):
    total = 0.0
    with model.zero.no_sync():
        for x, y in micro_batches:
            loss = model(x, y) / len(micro_batches)
            loss.backward()
            total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    return total


@wrong("6.5", "Only the last micro-batch counts")
def zero_grad_inside(model, optimizer, micro_batches):
    total = 0.0
    for x, y in micro_batches:
        optimizer.zero_grad()
        loss = model(x, y) / len(micro_batches)
        loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    return total


@wrong("6.5", "you called optimizer.step 6 times")
def steps_inside(model, optimizer, micro_batches):
    total = 0.0
    for x, y in micro_batches:
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
    return total / len(micro_batches)


@wrong("6.5", "gradients of the first step are still there")
def never_cleared(model, optimizer, micro_batches):
    total = 0.0
    for number, (x, y) in enumerate(micro_batches, 1):
        model.zero.sync = number == len(micro_batches)
        loss = model(x, y) / len(micro_batches)
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


@wrong("6.5", "the last micro-batch alone should do it")
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


@wrong("6.5", "needs a backward of its own")
def one_backward(model, optimizer, micro_batches):
    loss = sum(model(x, y) for x, y in micro_batches) / len(micro_batches)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


@wrong("6.5", "still holds")
def clears_at_the_beginning(model, optimizer, micro_batches):
    optimizer.zero_grad()
    losses = []
    for number, (x, y) in enumerate(micro_batches):
        with model.zero.no_sync() if number + 1 < len(micro_batches) else torch.enable_grad():
            loss = model(x, y)
            (loss / len(micro_batches)).backward()
        losses.append(loss.item())
    optimizer.step()
    return sum(losses) / len(losses)


# 6.6 ----------------------------------------------------------------------------------------------------------------

class Right:
    """Right but for what a subclass changes."""

    divides, adds, orders, flushes, copies, frees, early, lazy = True, True, True, True, True, True, True, True

    def __init__(self, params, bucket_size, comm):
        self.comm, groups = comm, [[]]
        for index, param in enumerate(params):
            if groups[-1] and sum(params[i].numel() for i in groups[-1]) + param.numel() > bucket_size:
                groups.append([])
            groups[-1].append(index)
        self.layouts = [Layout.build({str(i): params[i].shape for i in group}, comm.world_size) for group in groups]
        self.shards = [None for _ in groups]
        self.open, self.came, self.left, self.under_way = {}, {}, [], []
        for number, group in enumerate(groups):
            for index in group:
                params[index].register_post_accumulate_grad_hook(self.hook(number, str(index)))
        self.prepare()

    def prepare(self):
        if not self.lazy:
            self.open = {number: torch.zeros(layout.padded) for number, layout in enumerate(self.layouts)}

    def hook(self, number, name):
        def collect(param):
            layout = self.layouts[number]
            row = self.open.setdefault(number, torch.zeros(0))
            if not row.numel():
                row = self.open[number] = torch.zeros(layout.padded)
            row[layout.param_slice(name)] = param.grad.flatten() / (self.comm.world_size if self.divides else 1)
            if self.frees:
                param.grad = None
            self.came.setdefault(number, set()).add(name)
            if self.early:
                self.send()
        return collect

    def full(self, number):
        return len(self.came.get(number, ())) == len(self.layouts[number].shapes)

    def send(self):
        for number in reversed(range(len(self.layouts))):
            if number in self.left:
                continue
            if self.full(number):
                self.reduce(number)
            elif self.orders:
                return

    def reduce(self, number):
        layout = self.layouts[number]
        self.left.append(number)
        row = self.open.pop(number, None)
        row = torch.zeros(layout.padded) if row is None else row

        def done(total):
            if self.adds and self.shards[number] is not None:
                self.shards[number] = self.shards[number] + total
            else:
                self.shards[number] = total

        into = None if self.copies else row[layout.slice(self.comm.rank)]
        self.under_way.append(self.comm.reduce_scatter(row, layout, f"bucket {number}", into=into, done=done))

    def finish(self):
        for number in reversed(range(len(self.layouts))):
            if number not in self.left and (self.flushes or self.came.get(number)):
                self.reduce(number)
        for handle in self.under_way:
            handle.wait()
        self.open, self.came, self.left, self.under_way = {}, {}, [], []
        self.prepare()


@wrong("6.6", "summed over the ranks and never divided")
class Summed(Right):
    divides = False


@wrong("6.6", "kept the last micro-batch alone")
class LastAlone(Right):
    adds = False


@wrong("6.6", "the same collectives, in the same order")
class AsItComes(Right):
    orders = False


@wrong("6.6", "the same collectives, in the same order")
class OnlyWithGradients(Right):
    flushes = False


@wrong("6.6", "the same collectives, in the same order")
class NothingCameNothingLeaves(Right):
    def finish(self):
        if self.came:
            super().finish()


@wrong("6.6", "a shard a view of one")
class ShardsAreViews(Right):
    copies = adds = False

    def reduce(self, number):
        before = self.shards[number]
        super().reduce(number)
        if before is not None:
            self.under_way[-1].wait()
            self.shards[number] += before


@wrong("6.6", "still have their `.grad`")
class KeepsGradients(Right):
    frees = False


@wrong("6.6", "only in finish()")
class AllAtTheEnd(Right):
    early = False


@wrong("6.6", "Make a bucket when its first gradient comes")
class BucketsMadeBefore(Right):
    lazy = False


@wrong("6.6", "Make a bucket when its first gradient comes")
class AllBucketsAtOnce(Right):
    def hook(self, number, name):
        inner = super().hook(number, name)

        def collect(param):
            if not self.came:
                self.open = {other: torch.zeros(layout.padded) for other, layout in enumerate(self.layouts)}
            inner(param)
        return collect


@wrong("6.6", "reductions of rank 0 were still under way")
class NeverWaits(Right):
    def finish(self):
        for number in reversed(range(len(self.layouts))):
            if number not in self.left:
                self.reduce(number)
        self.open, self.came, self.left, self.under_way = {}, {}, [], []


@wrong("6.6", "`while`, not `if`")
class OneAtATime(Right):
    def send(self):
        number = len(self.layouts) - 1 - len(self.left)
        if number >= 0 and self.full(number):
            self.reduce(number)


@wrong("6.6", "averaged over the micro-batches")
class MeanOfOldAndNew(Right):
    def finish(self):
        before = list(self.shards)
        super().finish()
        self.shards = [new if old is None else new / 2 for old, new in zip(before, self.shards)]
