"""Wrong answers of chapter 04, the same mistakes by another hand."""

import functools
import itertools
from collections import Counter, deque
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from wrong_answers import wrong

from zerocourse.classics.word_count import word_count
from zerocourse.comm import Comm
from zerocourse.layout.rankmap import Layout
from zerocourse.zero.ddp import all_reduce


# 4.1 ----------------------------------------------------------------------------------------------------------------

@wrong("4.1", "ceil(n / ranks) long, so that the last ones are short or empty: two")
def fills_one_after_the_other(n, ranks):
    most, parts, at = -(n // -ranks), [], 0
    while len(parts) < ranks:
        took = most if n - at >= most else n - at
        parts.append((at, at + took))
        at += took
    return parts


@wrong("4.1", "end behind the row")
def as_if_padded(n, ranks):
    while n % ranks:
        n += 1
    return list(itertools.pairwise(range(0, n + 1, n // ranks))) if n else [(0, 0)] * ranks


@wrong("4.1", "lost the last elements")
def without_the_remainder(n, ranks):
    each, _ = divmod(n, ranks)
    parts = []
    for _ in range(ranks):
        start = parts[-1][1] if parts else 0
        parts.append((start, start + each))
    return parts


@wrong("4.1", "left over to the last part")
def last_until_the_end(n, ranks):
    each = int(n / ranks)
    return [(r * each, n if r == ranks - 1 else (r + 1) * each) for r in range(ranks)]


@wrong("4.1", "longer parts have to come first")
def longer_ones_last(n, ranks):
    each, left = divmod(n, ranks)
    sizes = [each] * (ranks - left) + [each + 1] * left
    ends = list(itertools.accumulate(sizes))
    return [(end - size, end) for size, end in zip(sizes, ends, strict=True)]


@wrong("4.1", "how long it is")
def start_and_size(n, ranks):
    sizes = [n // ranks + 1] * (n % ranks) + [n // ranks] * (ranks - n % ranks)
    return [(sum(sizes[:r]), size) for r, size in enumerate(sizes)]


# 4.2 ----------------------------------------------------------------------------------------------------------------

def _with_gradient(model):
    return list(filter(lambda p: p.grad is not None, model.parameters()))


@wrong("4.2", "never divided by the number of ranks")
def reduced_and_broadcast(model):
    for p in _with_gradient(model):
        dist.reduce(p.grad, dst=0, op=dist.ReduceOp.SUM)
        dist.broadcast(p.grad, src=0)


@wrong("4.2", "You divided by 2, however many")
def mean_of_two(model):
    works = [dist.all_reduce(p.grad, async_op=True) for p in _with_gradient(model)]
    for work in works:
        work.wait()
    for p in _with_gradient(model):
        p.grad.copy_(p.grad / 2)


@wrong("4.2", "You communicated the parameters")
def mean_of_all_parameters(model):
    with torch.no_grad():
        for p in model.parameters():
            everyone = [torch.zeros_like(p) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, p)
            p.copy_(torch.stack(everyone).mean(dim=0))


@wrong("4.2", "the result was thrown away")
def bound_to_a_name(model):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    row = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(row)
    row /= dist.get_world_size()
    for grad, part in zip(grads, row.split([grad.numel() for grad in grads]), strict=True):
        grad = part.view_as(grad)


@wrong("4.2", "NoneType")
def one_row_of_all(model):
    params = list(model.parameters())
    row = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(row)
    for p, part in zip(params, row.split([p.numel() for p in params]), strict=True):
        p.grad.copy_(part.view_as(p) / dist.get_world_size())


@wrong("4.2", "Leave `None` as it is")
def a_row_with_zeros(model):
    params = list(model.parameters())
    row = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in params])
    dist.all_reduce(row)
    row = row / dist.get_world_size()
    at = 0
    for p in params:
        p.grad = row[at:at + p.numel()].view(p.shape).clone()
        at += p.numel()


@wrong("4.2", "the ranks disagree")
def rank_0_broadcasts_alone(model):
    for p in _with_gradient(model):
        dist.reduce(p.grad, dst=0)
        if dist.get_rank() == 0:
            p.grad.div_(dist.get_world_size())
            dist.broadcast(p.grad, src=0)


@wrong("4.2", "of rank 0 alone")
def takes_the_first(model):
    for p in _with_gradient(model):
        everyone = [torch.empty_like(p.grad) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, p.grad)
        p.grad = everyone[0]


@wrong("4.2", "one rank only")
def gathered_on_the_first(model):
    n = dist.get_world_size()
    for p in _with_gradient(model):
        if dist.get_rank() == 0:
            everyone = [torch.empty_like(p.grad) for _ in range(n)]
            dist.gather(p.grad, everyone, dst=0)
            p.grad = sum(everyone) / n
        else:
            dist.gather(p.grad, dst=0)


@wrong("4.2", "write it yourself")
def stage_0_of_the_package(model):
    comm, grads = Comm(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    layout = Layout.build({name: tuple(grad.shape) for name, grad in grads.items()}, comm.world_size)
    row = torch.zeros(layout.padded)
    for name, grad in grads.items():
        row[layout.param_slice(name)] = grad.flatten() / comm.world_size
    bucket = SimpleNamespace(name="gradients", grad=row, layout=layout, own=slice(None))
    all_reduce(bucket, comm).wait()
    for name, grad in grads.items():
        grad.copy_(bucket.grad_shard[layout.param_slice(name)].view_as(grad))


# 4.3 ----------------------------------------------------------------------------------------------------------------

def _sorted_out(text, owner):
    words = text.split()
    return [dict(Counter(filter(lambda word, r=r: owner(word) == r, words))) for r in range(dist.get_world_size())]


@wrong("4.3", "replaced what came before")
def merged_with_or(text, owner, exchange):
    return functools.reduce(lambda a, b: a | b, exchange(_sorted_out(text, owner)))


@wrong("4.3", "all counts to all ranks")
def one_parcel_for_everybody(text, owner, exchange):
    counts = {}
    for word in text.split():
        counts[word] = counts[word] + 1 if word in counts else 1
    totals = {}
    for parcel in exchange([dict(counts) for _ in range(dist.get_world_size())]):
        for word in parcel:
            totals.setdefault(word, 0)
            totals[word] += parcel[word]
    return totals


@wrong("4.3", "that does not own it")
def the_receiver_chooses(text, owner, exchange):
    counts, mine = dict(Counter(text.split())), {}
    for parcel in exchange([counts for _ in range(dist.get_world_size())]):
        for word, times in parcel.items():
            if owner(word) == dist.get_rank():
                mine[word] = mine.get(word, 0) + times
    return mine


@wrong("4.3", "the ranks disagree")
def only_if_there_is_a_parcel(text, owner, exchange):
    parcels = _sorted_out(text, owner)
    arrived = exchange(parcels) if any(parcels) else []
    totals = Counter()
    for parcel in arrived:
        totals.update(parcel)
    return dict(totals)


@wrong("4.3", "was never called")
def counts_at_home(text, owner, exchange):
    mine = Counter()
    for word in text.split():
        if owner(word) == dist.get_rank():
            mine[word] += 1
    return dict(mine)


@wrong("4.3", "only this rank's own text")
def takes_its_own_parcel(text, owner, exchange):
    parcels = _sorted_out(text, owner)
    arrived = exchange(parcels)
    return {word: times for word, times in arrived[dist.get_rank()].items()}


@wrong("4.3", "count before you send")
def sends_texts(text, owner, exchange):
    parcels = [[] for _ in range(dist.get_world_size())]
    for word in text.split():
        parcels[owner(word)].append(word)
    arrived = exchange([" ".join(words) for words in parcels])
    return dict(Counter(" ".join(arrived).split()))


@wrong("4.3", "what this rank counted itself")
def from_the_others(text, owner, exchange):
    arrived = exchange(_sorted_out(text, owner))
    arrived.pop(dist.get_rank())
    return dict(sum((Counter(parcel) for parcel in arrived), Counter()))


@wrong("4.3", "write it yourself")
def sends_the_packages_totals_on(text, owner, exchange):
    totals, _ = word_count(text)
    parcels = [{} for _ in range(dist.get_world_size())]
    for word, times in totals.items():
        parcels[owner(word)][word] = times
    return {word: times for parcel in exchange(parcels) for word, times in parcel.items()}


# 4.4 ----------------------------------------------------------------------------------------------------------------

@wrong("4.4", "at the server's newest parameter")
def gradient_of_the_server(start, gradient, arrivals, lr):
    value, log = start, []
    for i in range(len(arrivals)):
        value -= lr * gradient(value, arrivals[i])
        before = [j for j in range(i) if arrivals[j] == arrivals[i]]
        log.append((value, i - before[-1] - 1 if before else i))
    return log


@wrong("4.4", "worker's first gradient can be old")
def a_first_one_has_no_age(start, gradient, arrivals, lr):
    values, log = [start], []
    for i, worker in enumerate(arrivals):
        earlier = [j for j, other in enumerate(arrivals[:i]) if other == worker]
        read = values[earlier[-1] + 1] if earlier else start
        age = len(arrivals[earlier[-1] + 1:i]) if earlier else 0
        values.append(values[-1] - lr * gradient(read, worker))
        log.append((values[-1], age))
    return log


@wrong("4.4", "counted the update itself")
def version_after_the_update(start, gradient, arrivals, lr):
    value, version, log = start, 0, []
    read = {worker: (start, 0) for worker in set(arrivals)}
    for worker in arrivals:
        old, when = read[worker]
        value = value - lr * gradient(old, worker)
        version += 1
        log.append((value, version - when))
        read[worker] = (value, version)
    return log


@wrong("4.4", "workers read only once")
def never_reads_again(start, gradient, arrivals, lr):
    copies = {worker: start for worker in arrivals}
    steps = [lr * gradient(copies[worker], worker) for worker in arrivals]
    values = list(itertools.accumulate(steps, lambda value, step: value - step, initial=start))
    return [(value, age) for age, value in enumerate(values[1:])]


@wrong("4.4", "not the one before")
def reads_before_it_is_written(start, gradient, arrivals, lr):
    server, copies, version, log = start, dict.fromkeys(arrivals, start), dict.fromkeys(arrivals, 0), []
    for count, worker in enumerate(arrivals):
        g = gradient(copies[worker], worker)
        age = count - version[worker]
        copies[worker] = server
        version[worker] = count + 1
        server = server - lr * g
        log.append((server, age))
    return log


@wrong("4.4", "count their updates")
def different_workers_between(start, gradient, arrivals, lr):
    value, log, last, copies = start, [], {}, {}
    for i, worker in enumerate(arrivals):
        between = arrivals[last.get(worker, -1) + 1:i]
        value = value - lr * gradient(copies.get(worker, start), worker)
        log.append((value, len(set(between))))
        copies[worker], last[worker] = value, i
    return log


# 4.5 and 4.6 --------------------------------------------------------------------------------------------------------

def _edges(n, ranks):
    return list(itertools.accumulate((n // ranks + (r < n % ranks) for r in range(ranks)), initial=0))


def _part(row, number):
    ranks = dist.get_world_size()
    edges = _edges(len(row), ranks)
    return row[edges[number % ranks]:edges[number % ranks + 1]]


def _pass_on(out, into):
    """One round: a part to the right, another from the left."""
    ranks, me = dist.get_world_size(), dist.get_rank()
    receiving = dist.irecv(into, (me - 1) % ranks)
    dist.send(out.clone(), (me + 1) % ranks)
    receiving.wait()
    return len(out)


@wrong("4.5", "began one part too far")
def own_part_leaves_first(row):
    number, sent = dist.get_rank(), 0
    for _ in range(dist.get_world_size() - 1):
        got = torch.zeros_like(_part(row, number - 1))
        sent += _pass_on(_part(row, number), got)
        number -= 1
        _part(row, number).add_(got)
    return sent


@wrong("4.5", "replaced what was there")
def assigned(row):
    me, sent = dist.get_rank(), 0
    for turn in range(dist.get_world_size() - 1):
        got = torch.zeros_like(_part(row, me - turn - 2))
        sent += _pass_on(_part(row, me - turn - 1), got)
        _part(row, me - turn - 2)[:] = got
    return sent


@wrong("4.5", "rounds where")
def until_it_is_back(row):
    me, number, sent = dist.get_rank(), dist.get_rank() - 1, 0
    while True:
        got = torch.zeros_like(_part(row, number - 1))
        sent += _pass_on(_part(row, number), got)
        _part(row, number - 1).add_(got)
        number -= 1
        if (number - me + 1) % dist.get_world_size() == 0:
            return sent


@wrong("4.5", "sent the whole row in each round")
def the_rows_travel(row):
    travelling, sent = row.clone(), 0
    for _ in range(1, dist.get_world_size()):
        got = torch.empty_like(row)
        sent += _pass_on(travelling, got)
        row += got
        travelling = got
    return sent


@wrong("4.5", "In a ring a rank sends to its right neighbour only")
def with_growing_steps(row):
    ranks, me, sent = dist.get_world_size(), dist.get_rank(), 0
    total = _part(row, me).clone()
    for step in range(1, ranks):
        got = torch.empty_like(total)
        receiving = dist.irecv(got, (me - step) % ranks)
        dist.send(_part(row, me + step).clone(), (me + step) % ranks)
        receiving.wait()
        total += got
        sent += len(_part(row, me + step))
    _part(row, me).copy_(total)
    return sent


@wrong("4.5", "Every rank waits in a `send`")
def waits_for_its_isend(row):
    ranks, me, sent = dist.get_world_size(), dist.get_rank(), 0
    for turn in range(1, ranks):
        leaving, mine = _part(row, me - turn), _part(row, me - turn - 1)
        dist.isend(leaving, (me + 1) % ranks).wait()
        got = torch.empty_like(mine)
        dist.irecv(got, (me - 1) % ranks).wait()
        mine.add_(got)
        sent += len(leaving)
    return sent


@wrong("4.5", "Use nothing but send and receive")
def part_by_part_to_its_owner(row):
    sent = 0
    for r in range(dist.get_world_size()):
        dist.reduce(_part(row, r), dst=r)
        sent += 0 if r == dist.get_rank() else len(_part(row, r))
    return sent


@wrong("4.5", "whoever wants the average divides")
def mean_of_the_part(row):
    me, ranks, sent = dist.get_rank(), dist.get_world_size(), 0
    for turn in range(1, ranks):
        got = torch.zeros_like(_part(row, me - turn - 1))
        sent += _pass_on(_part(row, me - turn), got)
        _part(row, me - turn - 1).add_(got)
    _part(row, me).div_(ranks)
    return sent


@wrong("4.5", "cut this one as in 4.1")
def chunks(row):
    me, ranks, sent = dist.get_rank(), dist.get_world_size(), 0
    parts = [*row.chunk(ranks)]
    parts += [row[len(row):]] * (ranks - len(parts))
    for turn in range(1, ranks):
        out, into = parts[(me - turn) % ranks], parts[(me - turn - 1) % ranks]
        got = torch.empty_like(into)
        sent += _pass_on(out, got)
        into += got
    return sent


@wrong("4.6", "only the left neighbour's own part did")
def never_passes_on(row):
    me, ranks, sent = dist.get_rank(), dist.get_world_size(), 0
    got = torch.empty_like(_part(row, me - 1))
    for _ in range(1, ranks):
        sent += _pass_on(_part(row, me), got)
    _part(row, me - 1).copy_(got)
    return sent


@wrong("4.6", "an all-gather copies")
def adds_what_comes(row):
    number, sent = dist.get_rank(), 0
    for _ in range(dist.get_world_size() - 1):
        got = torch.empty_like(_part(row, number - 1))
        sent += _pass_on(_part(row, number), got)
        number -= 1
        _part(row, number).add_(got)
    return sent


@wrong("4.6", "began with the wrong part")
def as_if_the_next_part_were_right(row):
    number, sent = dist.get_rank() + 1, 0
    for _ in range(dist.get_world_size() - 1):
        got = torch.empty_like(_part(row, number - 1))
        sent += _pass_on(_part(row, number), got)
        number -= 1
        _part(row, number).copy_(got)
    return sent


@wrong("4.6", "Every rank waits in a `send`")
def isend_and_wait(row):
    me, ranks, sent = dist.get_rank(), dist.get_world_size(), 0
    for number in range(me, me - ranks + 1, -1):
        dist.isend(_part(row, number), (me + 1) % ranks).wait()
        dist.recv(_part(row, number - 1), (me - 1) % ranks)
        sent += len(_part(row, number))
    return sent


@wrong("4.6", "rounds where")
def until_its_own_is_back(row):
    number, sent, ranks = dist.get_rank(), 0, dist.get_world_size()
    for _ in range(ranks):
        got = torch.empty_like(_part(row, number - 1))
        sent += _pass_on(_part(row, number), got)
        _part(row, number - 1).copy_(got)
        number = (number - 1) % ranks
    return sent


@wrong("4.6", "its left neighbour")
def the_other_way_round(row):
    me, ranks, sent = dist.get_rank(), dist.get_world_size(), 0
    for turn in range(ranks - 1):
        out, into = _part(row, me + turn), _part(row, me + turn + 1)
        receiving = dist.irecv(into, (me + 1) % ranks)
        dist.send(out, (me - 1) % ranks)
        receiving.wait()
        sent += out.numel()
    return sent


@wrong("4.6", "elements are wanted")
def sum_of_nbytes(row):
    me, sent = dist.get_rank(), 0
    for turn in range(dist.get_world_size() - 1):
        got = torch.empty_like(_part(row, me - turn - 1))
        _pass_on(_part(row, me - turn), got)
        _part(row, me - turn - 1).copy_(got)
        sent += _part(row, me - turn).nbytes
    return sent


# 4.7 ----------------------------------------------------------------------------------------------------------------

class _Bucket:
    def __init__(self):
        self.params, self.row, self.work = [], None, None

    def __len__(self):
        return sum(p.numel() for p in self.params)


class _Queue:
    """A right answer with a queue of buckets."""

    def __init__(self, model, bucket_elements):
        self.sync, self.limit, self.ready = True, bucket_elements, set()
        self.begin_alike(model)
        self.buckets = self.plan(model, bucket_elements)
        self.queue, self.flying = deque(self.buckets), []
        for p in model.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.gradient_is_there)

    def begin_alike(self, model):
        with torch.no_grad():
            for p in model.parameters():
                dist.broadcast(p, src=0)

    def candidates(self, model):
        return [p for p in model.parameters() if p.requires_grad][::-1]

    def plan(self, model, limit):
        buckets = []
        for p in self.candidates(model):
            if not buckets or len(buckets[-1]) + p.numel() > limit:
                buckets.append(_Bucket())
            buckets[-1].params.append(p)
        return buckets

    def gradient_is_there(self, p):
        if not self.sync:
            return
        self.ready.add(p)
        while self.queue and self.ready >= set(self.queue[0].params):
            self.launch(self.queue.popleft())

    def of(self, p):
        return p.grad if p.grad is not None else torch.zeros_like(p)

    def launch(self, bucket):
        bucket.row = nn.utils.parameters_to_vector([self.of(p) for p in bucket.params])
        bucket.work = dist.all_reduce(bucket.row, async_op=True)
        self.flying.append(bucket)

    def finish(self):
        while self.queue:
            self.launch(self.queue.popleft())
        for bucket in self.flying:
            bucket.work.wait()
            bucket.row.div_(dist.get_world_size())
            self.write(bucket)
        self.queue, self.flying, self.ready = deque(self.buckets), [], set()

    def write(self, bucket):
        at = iter(bucket.row.split([p.numel() for p in bucket.params]))
        for p in bucket.params:
            p.grad = next(at).reshape(p.shape).clone()


@wrong("4.7", "start with different parameters")
class BroadcastsACopy(_Queue):
    def begin_alike(self, model):
        for p in model.parameters():
            dist.broadcast(p.detach().clone(), src=0)


@wrong("4.7", "never divided by the number of ranks")
class OnlySums(_Queue):
    def finish(self):
        for bucket in list(self.queue):
            self.launch(bucket)
        for bucket in self.flying:
            bucket.work.wait()
            self.write(bucket)
        self.queue, self.flying, self.ready = deque(self.buckets), [], set()


@wrong("4.7", "divided by 2, however many")
class HalvesTheRow(_Queue):
    def finish(self):
        while self.queue:
            self.launch(self.queue.popleft())
        for bucket in self.flying:
            bucket.work.wait()
            bucket.row *= 0.5
            self.write(bucket)
        self.queue, self.flying, self.ready = deque(self.buckets), [], set()


@wrong("4.7", "was never written back")
class WritesToAName(_Queue):
    def write(self, bucket):
        at = 0
        for p in bucket.params:
            grad = p.grad
            grad = bucket.row[at:at + p.numel()].view_as(p)
            at += grad.numel()


@wrong("4.7", "nothing overlaps")
class WithoutAsyncOp(_Queue):
    def launch(self, bucket):
        bucket.row = torch.cat([self.of(p).flatten() for p in bucket.params])
        dist.all_reduce(bucket.row)
        self.flying.append(bucket)

    def finish(self):
        while self.queue:
            self.launch(self.queue.popleft())
        for bucket in self.flying:
            bucket.row /= dist.get_world_size()
            self.write(bucket)
        self.queue, self.flying, self.ready = deque(self.buckets), [], set()


@wrong("4.7", "when the backward was over")
class OnlyNotes(_Queue):
    def gradient_is_there(self, p):
        if self.sync:
            self.ready.add(p)


@wrong("4.7", "in the order of the forward")
class FirstParameterFirst(_Queue):
    def candidates(self, model):
        found = []
        for p in model.parameters():
            if p.requires_grad:
                found.append(p)
        return found


@wrong("4.7", "each parameter by itself")
class AReductionForEach(_Queue):
    def launch(self, bucket):
        bucket.rows = [self.of(p).clone() for p in bucket.params]
        bucket.works = [dist.all_reduce(row, async_op=True) for row in bucket.rows]
        self.flying.append(bucket)

    def finish(self):
        while self.queue:
            self.launch(self.queue.popleft())
        for bucket in self.flying:
            for p, row, work in zip(bucket.params, bucket.rows, bucket.works, strict=True):
                work.wait()
                p.grad = row / dist.get_world_size()
        self.queue, self.flying, self.ready = deque(self.buckets), [], set()


@wrong("4.7", "during a backward with `sync = False`")
class NeverLooksAtSync(_Queue):
    def gradient_is_there(self, p):
        self.ready.add(p)
        while len(self.queue) > 0 and all(q in self.ready for q in self.queue[0].params):
            self.launch(self.queue.popleft())


@wrong("4.7", "Only the last micro-batch was averaged: what")
class ClearsWhenSyncIsSet(_Queue):
    @property
    def sync(self):
        return self._sync

    @sync.setter
    def sync(self, value):
        self._sync = value
        if value:
            for bucket in getattr(self, "buckets", []):
                for p in bucket.params:
                    p.grad = None


@wrong("4.7", "Some buckets never left")
class WaitsForThoseThatLeft(_Queue):
    def finish(self):
        for bucket in self.flying:
            bucket.work.wait()
            bucket.row /= dist.get_world_size()
            self.write(bucket)
        self.queue = deque(self.buckets)
        self.flying.clear()
        self.ready.clear()


@wrong("4.7", "was left out: what earlier ones left")
class ZerosForThoseNotReady(_Queue):
    def of(self, p):
        return p.grad if p in self.ready else torch.zeros_like(p)


@wrong("4.7", "though it is full")
class EachBucketWhenFull(_Queue):
    def gradient_is_there(self, p):
        if self.sync:
            self.ready.add(p)
            [bucket] = [bucket for bucket in self.buckets if any(q is p for q in bucket.params)]
            if self.ready.issuperset(bucket.params):
                self.queue.remove(bucket)
                self.launch(bucket)


@wrong("4.7", "the other ranks' average is for it too")
class SkipsNone(_Queue):
    def write(self, bucket):
        at = 0
        for p in bucket.params:
            stop = at + p.numel()
            if p.grad is None:
                at = stop
                continue
            p.grad[...] = bucket.row[at:stop].view(p.shape)
            at = stop


@wrong("4.7", "of the step before")
class RowsMadeOnce(_Queue):
    def plan(self, model, limit):
        buckets = super().plan(model, limit)
        for bucket in buckets:
            bucket.row = torch.zeros(len(bucket))
            bucket.views = [v.view_as(p) for v, p in zip(bucket.row.split([p.numel() for p in bucket.params]),
                                                         bucket.params, strict=True)]
        return buckets

    def launch(self, bucket):
        for view, p in zip(bucket.views, bucket.params, strict=True):
            if p.grad is not None:
                view.copy_(p.grad)
        bucket.work = dist.all_reduce(bucket.row, async_op=True)
        self.flying.append(bucket)


@wrong("4.7", "the ranks disagree")
class EmptyBucketsStay(_Queue):
    def finish(self):
        for bucket in self.queue:
            if any(p.grad is not None for p in bucket.params):
                self.launch(bucket)
        for bucket in self.flying:
            bucket.work.wait()
            bucket.row /= dist.get_world_size()
            self.write(bucket)
        self.queue, self.flying, self.ready = deque(self.buckets), [], set()


@wrong("4.7", "the parameters and not the gradients")
class ParametersToVector(_Queue):
    def launch(self, bucket):
        bucket.row = nn.utils.parameters_to_vector(bucket.params).detach()
        bucket.work = dist.all_reduce(bucket.row, async_op=True)
        self.flying.append(bucket)

    def write(self, bucket):
        nn.utils.vector_to_parameters(bucket.row, bucket.params)


@wrong("4.7", "frozen parameters a place")
class AllOfTheParameters(_Queue):
    def candidates(self, model):
        return list(reversed(list(model.parameters())))


@wrong("4.7", "AttributeError")
class FlattensNone(_Queue):
    def launch(self, bucket):
        grads = [p.grad.flatten() for p in bucket.params]
        bucket.row = torch.cat(grads)
        bucket.work = dist.all_reduce(bucket.row, async_op=True)
        self.flying.append(bucket)


@wrong("4.7", "the trainable parameters alone")
class BroadcastsItsBuckets(_Queue):
    def begin_alike(self, model):
        for bucket in self.plan(model, self.limit):
            row = nn.utils.parameters_to_vector(bucket.params).detach()
            dist.broadcast(row, src=0)
            nn.utils.vector_to_parameters(row, bucket.params)


@wrong("4.7", "What arrived with `sync = False` does not count")
class ReadyWhenItHasAGrad(_Queue):
    def gradient_is_there(self, p):
        while self.sync and self.queue and all(q.grad is not None for q in self.queue[0].params):
            self.launch(self.queue.popleft())


@wrong("4.7", "`finish` has to forget it")
class CountsForEver(_Queue):
    def plan(self, model, limit):
        self.arrived = Counter()
        return super().plan(model, limit)

    def gradient_is_there(self, p):
        if self.sync:
            self.arrived.update(bucket for bucket in self.buckets if any(q is p for q in bucket.params))
            while self.queue and self.arrived[self.queue[0]] >= len(self.queue[0].params):
                self.launch(self.queue.popleft())
