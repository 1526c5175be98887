"""Wrong answers of chapter 06, the same mistakes by another hand."""

import contextlib
import itertools
from collections import defaultdict

import torch
from wrong_answers import wrong

from zerocourse.layout.rankmap import Layout

# 6.1 ----------------------------------------------------------------------------------------------------------------

@wrong("6.1", "across the end of a unit")
def one_chain(units, bucket_size):
    result, room = [], 0
    for size in itertools.chain.from_iterable(units):
        if size > room:
            result.append([])
            room = bucket_size
        result[-1].append(size)
        room -= size
    return result


@wrong("6.1", "lost the last bucket")
def only_full_ones(units, bucket_size):
    result = []
    for unit in units:
        begin = 0
        for i in range(len(unit)):
            if i > begin and sum(unit[begin:i + 1]) > bucket_size:
                result.append(unit[begin:i])
                begin = i
    return result


@wrong("6.1", "only when it was over its limit")
def closed_behind_the_limit(units, bucket_size):
    result = []
    for unit in units:
        open_, total = [], 0
        for size in unit:
            open_ += [size]
            total += size
            if total > bucket_size:
                result, open_, total = [*result, open_], [], 0
        result += [open_] if open_ else []
    return result


@wrong("6.1", "although the parameter fits")
def room_must_remain(units, bucket_size):
    result = []
    for unit in units:
        room = 0
        for size in unit:
            if room - size <= 0:
                result.append([])
                room = bucket_size
            result[-1].append(size)
            room -= size
    return result


@wrong("6.1", "an empty bucket before")
def closes_what_is_open(units, bucket_size):
    result = []
    for unit in units:
        bucket, used = [], 0
        for size in unit:
            if used + size > bucket_size:
                result.append(tuple(bucket))
                bucket, used = [], 0
            bucket.append(size)
            used += size
        result.append(tuple(bucket))
    return [list(bucket) for bucket in result]


# 6.2 ----------------------------------------------------------------------------------------------------------------

@wrong("6.2", "as soon as it is full")
def counts_down(buckets, arrivals):
    home = {name: i for i, names in enumerate(buckets) for name in names}
    missing = [len(names) for names in buckets]
    result = {}
    for k in range(len(arrivals)):
        i = home[arrivals[k]]
        missing[i] -= 1
        if missing[i] == 0:
            result[i] = k + 1
    return [result.get(i, len(arrivals)) for i in range(len(buckets))]


@wrong("6.2", "first bucket leave first")
def queue_from_the_front(buckets, arrivals):
    result, there, turn = [len(arrivals)] * len(buckets), set(), 0
    for count, name in enumerate(arrivals, start=1):
        there.add(name)
        while turn < len(buckets) and there.issuperset(buckets[turn]):
            result[turn] = count
            turn += 1
    return result


@wrong("6.2", "counted from 0")
def index_of_the_event(buckets, arrivals):
    result, there, turn = [len(arrivals) - 1] * len(buckets), set(), len(buckets) - 1
    for count, name in enumerate(arrivals):
        there.add(name)
        while turn >= 0 and there.issuperset(buckets[turn]):
            result[turn] = count
            turn -= 1
    return result


@wrong("6.2", "without its unused parameters")
def those_that_come(buckets, arrivals):
    coming = set(arrivals)
    needed = [coming.intersection(names) for names in buckets]
    result, there, turn = [len(arrivals)] * len(buckets), set(), len(buckets) - 1
    for count, name in enumerate(arrivals, start=1):
        there.add(name)
        while turn >= 0 and needed[turn] <= there:
            result[turn] = count
            turn -= 1
    return result


# 6.3 ----------------------------------------------------------------------------------------------------------------

@wrong("6.3", "You put the weights into the bucket")
def copies_the_parameter(params, bucket, layout, world_size):
    def bind(name, place):
        def move(p):
            with torch.no_grad():
                bucket[place].add_(p.reshape(-1), alpha=1 / world_size)
            p.grad = None
        params[name].register_post_accumulate_grad_hook(move)

    for name in params:
        bind(name, layout.param_slice(name))


@wrong("6.3", "gradient as it is")
def divides_nothing(params, bucket, layout, world_size):
    for name, param in params.items():
        place = layout.param_slice(name)

        def hook(p, place=place):
            torch.add(bucket[place], p.grad.view(-1), out=bucket[place])
            p.grad = None

        param.register_post_accumulate_grad_hook(hook)


@wrong("6.3", "reads the loop's variable")
def lambda_in_a_loop(params, bucket, layout, world_size):
    def move(p, place):
        bucket[place] += p.grad.flatten() / world_size
        p.grad = None

    for name in params:
        place = layout.param_slice(name)
        params[name].register_post_accumulate_grad_hook(lambda p: move(p, place))


@wrong("6.3", "still have their `.grad`")
def zeroes_it(params, bucket, layout, world_size):
    for name in params:
        def hook(p, name=name):
            bucket[layout.param_slice(name)].add_(p.grad.flatten() / world_size)
            p.grad.zero_()
        params[name].register_post_accumulate_grad_hook(hook)


@wrong("6.3", "overwrote what the first backward")
def copy_into_the_place(params, bucket, layout, world_size):
    views = {id(params[name]): bucket[layout.param_slice(name)] for name in params}

    def hook(p):
        views[id(p)].copy_(p.grad.reshape(-1)).div_(world_size)
        p.grad = None

    for p in params.values():
        p.register_post_accumulate_grad_hook(hook)


@wrong("6.3", "you changed the weights")
def frees_the_data(params, bucket, layout, world_size):
    for name, param in params.items():
        def hook(p, name=name):
            bucket[layout.param_slice(name)] += p.grad.flatten() / world_size
            p.grad = None
            p.data.zero_()
        param.register_post_accumulate_grad_hook(hook)


@wrong("6.3", "although their `.grad` is None")
def remembers_gradients(params, bucket, layout, world_size):
    flat = {}

    def move(param, name):
        flat[name] = param.grad.reshape(-1)
        bucket[layout.param_slice(name)] += flat[name] / world_size
        param.grad = None

    for name, param in params.items():
        param.register_post_accumulate_grad_hook(lambda param, name=name: move(param, name))


# 6.4 ----------------------------------------------------------------------------------------------------------------

@wrong("6.4", "is a view of the bucket")
def clones_nothing(flat, comm):
    bucket = flat.drop_bucket()
    mine = bucket.narrow(0, flat.own.start, flat.own.stop - flat.own.start)

    def done(total):
        flat.grad_shard = mine if flat.grad_shard is None else flat.grad_shard + mine

    return comm.reduce_scatter(bucket, flat.layout, flat.name, into=mine, done=done)


@wrong("6.4", "replaced the sum of the earlier micro-batches")
def forgets_then_adds(flat, comm):
    flat.grad_shard = None
    return comm.reduce_scatter(flat.drop_bucket(), flat.layout, flat.name, done=flat.accumulate)


@wrong("6.4", "`flat.grad` of rank 0 is still there")
def a_clone_travels(flat, comm):
    bucket = flat.grad.clone()
    return comm.reduce_scatter(bucket, flat.layout, flat.name, done=lambda total: flat.accumulate(total))


@wrong("6.4", "divided by the number of ranks again")
def average_at_the_end(flat, comm):
    def done(total):
        flat.accumulate(total / comm.world_size)

    return comm.reduce_scatter(flat.drop_bucket(), flat.layout, flat.name, done=done)


@wrong("6.4", "by hand")
def grad_is_none(flat, comm):
    handle = comm.reduce_scatter(flat.grad, flat.layout, flat.name, done=lambda total: flat.accumulate(total))
    flat.grad = None
    return handle


@wrong("6.4", "while the reduction of rank 0 was under way")
def dropped_when_it_arrives(flat, comm):
    return comm.reduce_scatter(flat.grad, flat.layout, flat.name,
                               done=lambda total: (flat.drop_bucket(), flat.accumulate(total)))


@wrong("6.4", "The backward stands still")
def waits_then_returns_it(flat, comm):
    handle = comm.reduce_scatter(flat.drop_bucket(), flat.layout, flat.name, done=flat.accumulate)
    handle.wait()
    return handle


@wrong("6.4", "this rank's own gradient")
def adds_the_bucket(flat, comm):
    bucket = flat.drop_bucket()
    mine = bucket[flat.own].clone()
    return comm.reduce_scatter(bucket, flat.layout, flat.name, done=lambda total: flat.accumulate(mine))


@wrong("6.4", "The handle must have the last reference")
def kept_on_the_handle(flat, comm):
    bucket = flat.drop_bucket()
    handle = comm.reduce_scatter(bucket, flat.layout, flat.name, done=flat.accumulate)
    handle.keep = bucket  # or it would be freed while it travels
    return handle


# 6.5 ----------------------------------------------------------------------------------------------------------------

@wrong("6.5", "reduced every micro-batch")
def sync_is_left_on(model, optimizer, micro_batches):
    g, mean = len(micro_batches), torch.zeros(())
    for i in range(g):
        part = model(*micro_batches[i]) / g
        part.backward()
        mean += part.detach()
    optimizer.step()
    optimizer.zero_grad()
    return mean.item()


@wrong("6.5", "added the micro-batches up")
def divides_the_number_only(model, optimizer, micro_batches):
    mean = 0.0
    with contextlib.ExitStack() as stack:
        stack.enter_context(model.zero.no_sync())
        for x, y in micro_batches[:-1]:
            loss = model(x, y)
            loss.backward()
            mean += float(loss) / len(micro_batches)
    loss = model(*micro_batches[-1])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return mean + float(loss) / len(micro_batches)


@wrong("6.5", "reduced nothing until the step")
def no_sync_for_each(model, optimizer, micro_batches):
    losses = []
    for batch in micro_batches:
        with model.zero.no_sync():
            loss = model(*batch) / len(micro_batches)
            loss.backward()
        losses.append(loss.item())
    optimizer.step()
    optimizer.zero_grad()
    return sum(losses)


@wrong("6.5", "Only the last micro-batch counts")
def cleared_after_each(model, optimizer, micro_batches):
    losses, n = [], len(micro_batches)
    for i, batch in enumerate(micro_batches):
        with contextlib.nullcontext() if i == n - 1 else model.zero.no_sync():
            loss = model(*batch) / n
            loss.backward()
        losses.append(loss.item())
        if i < n - 1:
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()
    return sum(losses)


@wrong("6.5", "you called optimizer.step 6 times")
def steps_with_scaled_losses(model, optimizer, micro_batches):
    def one(batch):
        loss = model(*batch) / len(micro_batches)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return sum(map(one, micro_batches))


@wrong("6.5", "gradients of the first step are still there")
def ends_with_the_step(model, optimizer, micro_batches):
    *first, last = micro_batches
    mean = 0.0
    with model.zero.no_sync():
        for batch in first:
            loss = model(*batch).div(len(micro_batches))
            mean += loss.item()
            loss.backward()
    loss = model(*last).div(len(micro_batches))
    loss.backward()
    optimizer.step()
    return mean + loss.item()


@wrong("6.5", "the last micro-batch alone should do it")
def the_first_and_the_rest(model, optimizer, micro_batches):
    first, *rest = micro_batches
    n = len(micro_batches)
    loss = model(*first) / n
    loss.backward()
    mean = loss.item()
    with model.zero.no_sync():
        for batch in rest:
            loss = model(*batch) / n
            loss.backward()
            mean += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    return mean


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


@wrong("6.6", "summed over the ranks and never divided")
class NeverTheAverage(_ByHand):
    def moved(self, bucket, i, p):
        p.grad *= self.comm.world_size
        super().moved(bucket, i, p)


@wrong("6.6", "kept the last micro-batch alone")
class ShardsBeginAnew(_ByHand):
    def finish(self):
        if not self.handles:
            self.shards = [None] * len(self.buckets)
        super().finish()

    def arrived(self, number, total):
        self.shards[number] = total.clone()


@wrong("6.6", "the same collectives, in the same order")
class LeavesWhenFull(_ByHand):
    def depart(self):
        for bucket in [bucket for bucket in self.waiting if bucket.full]:
            self.waiting.remove(bucket)
            self.reduce(bucket)


@wrong("6.6", "the same collectives, in the same order")
class NoWorkNoCalls(_ByHand):
    def finish(self):
        if len(self.waiting) == len(self.buckets) and not any(bucket.came for bucket in self.buckets):
            return
        super().finish()


@wrong("6.6", "a shard a view of one")
class SlicesOfTheRow(_ByHand):
    def reduce(self, bucket):
        row, bucket.row = bucket.row, None
        if row is None:
            row = torch.zeros(bucket.layout.padded)
        mine = row[bucket.layout.slice(self.comm.rank)]

        def done(total):
            old = self.shards[bucket.number]
            self.shards[bucket.number] = mine if old is None else mine.add_(old)

        self.handles.append(self.comm.reduce_scatter(row, bucket.layout, f"bucket {bucket.number}", into=mine,
                                                     done=done))


@wrong("6.6", "still have their `.grad`")
class GradientsZeroed(_ByHand):
    def moved(self, bucket, i, p):
        grad = p.grad
        super().moved(bucket, i, p)
        p.grad = grad.zero_()


@wrong("6.6", "only in finish()")
class WaitsForTheEnd(_ByHand):
    def depart(self):
        if not self.waiting or self.waiting[0].full and all(bucket.full for bucket in self.waiting):
            self.ready = True


@wrong("6.6", "Make a bucket when its first gradient comes")
class RowsAtTheBeginning(_ByHand):
    def __init__(self, params, bucket_size, comm):
        super().__init__(params, bucket_size, comm)
        self.rows()

    def rows(self):
        for bucket in self.buckets:
            bucket.row = torch.zeros(bucket.layout.padded)

    def finish(self):
        super().finish()
        self.rows()


@wrong("6.6", "reductions of rank 0 were still under way")
class WaitsForOne(_ByHand):
    def finish(self):
        while self.waiting:
            self.reduce(self.waiting.pop())
        if self.handles:
            self.handles[-1].wait()
        self.handles = []
        self.counts = defaultdict(int)
        for bucket in self.buckets:
            bucket.came.clear()
        self.waiting = list(self.buckets)
