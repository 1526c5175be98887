"""Wrong answers of chapter 04."""

from collections import Counter

import torch
import torch.distributed as dist
from torch import nn

from wrong_answers import wrong

# 4.1 ----------------------------------------------------------------------------------------------------------------

@wrong("4.1", "shorter first")
def evenly_mixed(n, ranks):
    edges = [n * r // ranks for r in range(ranks + 1)]
    return list(zip(edges, edges[1:], strict=False))


# 4.2 ----------------------------------------------------------------------------------------------------------------

@wrong("4.2", "summed")
def summed_by_hand(model):
    grads = [param.grad for param in model.parameters() if param.grad is not None]
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, flat)
    for grad, part in zip(grads, sum(everyone).split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(part.view(grad.shape))


@wrong("4.2", "stuck")
def rank_0_broadcasts_alone(model):
    for param in model.parameters():
        if param.grad is not None:
            dist.reduce(param.grad, dst=0)
            if dist.get_rank() == 0:
                param.grad.div_(dist.get_world_size())
                dist.broadcast(param.grad, src=0)


# 4.3 ----------------------------------------------------------------------------------------------------------------

def _parcels(text, owner):
    found = [{} for _ in range(dist.get_world_size())]
    for word in text.split():
        parcel = found[owner(word)]
        parcel[word] = parcel.get(word, 0) + 1
    return found


@wrong("4.3", "replaced")
def updated(text, owner, exchange):
    total = {}
    for parcel in exchange(_parcels(text, owner)):
        total.update(parcel)
    return total


@wrong("4.3", "stuck")
def nothing_to_say(text, owner, exchange):
    return sum(map(Counter, exchange(_parcels(text, owner))), Counter()) if text else {}


# 4.4 ----------------------------------------------------------------------------------------------------------------

@wrong("4.4", "workers between")
def counts_workers(start, gradient, arrivals, lr):
    now, seen, log, others = start, {}, [], {who: set() for who in arrivals}
    for who in arrivals:
        now = now - lr * gradient(seen.get(who, start), who)
        log.append((now, len(others[who])))
        seen[who], others[who] = now, set()
        for other in others:
            if other != who:
                others[other].add(who)
    return log


# 4.5 and 4.6 --------------------------------------------------------------------------------------------------------

@wrong("4.5", "straight")
def straight_to_the_owner(row):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = row.tensor_split(n)
    works = [dist.isend(part, peer) for peer, part in enumerate(parts) if peer != rank]
    for _ in works:
        got = torch.empty_like(parts[rank])
        dist.recv(got)
        parts[rank].add_(got)
    for work in works:
        work.wait()
    return row.numel() - parts[rank].numel()


@wrong("4.5", "stuck")
def waits_for_its_isend(row):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = row.tensor_split(n)
    for turn in range(1, n):
        dist.isend(parts[(rank - turn) % n], (rank + 1) % n).wait()
        got = torch.empty_like(parts[(rank - turn - 1) % n])
        dist.irecv(got, (rank - 1) % n).wait()
        parts[(rank - turn - 1) % n].add_(got)
    return row.numel() - parts[rank].numel()


@wrong("4.6", "own each time")
def its_own_each_time(row):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts, sent = row.tensor_split(n), 0
    for _ in range(n - 1):
        work = dist.isend(parts[rank], (rank + 1) % n)
        dist.recv(parts[(rank - 1) % n], (rank - 1) % n)
        work.wait()
        sent += parts[rank].numel()
    return sent


# 4.7 ----------------------------------------------------------------------------------------------------------------

class _Parallel:
    """A right answer, written in another way than the solution, with methods to override."""

    def __init__(self, model, bucket_elements):
        self.sync = True
        self.equalise(model)
        self.limit, self.buckets = bucket_elements, [[]]
        for param in reversed([param for param in model.parameters() if param.requires_grad]):
            if self.buckets[-1] and sum(p.numel() for p in self.buckets[-1]) + param.numel() > bucket_elements:
                self.buckets.append([])
            self.buckets[-1].append(param)
        self.home = {param: number for number, bucket in enumerate(self.buckets) for param in bucket}
        self.reset()
        for param in self.home:
            param.register_post_accumulate_grad_hook(self.hook)

    def equalise(self, model):
        for value in model.state_dict().values():
            dist.broadcast(value, 0)

    def reset(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.started = {}

    def hook(self, param):
        if self.sync:
            self.missing[self.home[param]] -= 1
            for number, missing in enumerate(self.missing):
                if number not in self.started:
                    if missing:
                        break
                    self.start(number)

    def gradient(self, param):
        return torch.zeros(param.shape) if param.grad is None else param.grad

    def start(self, number):
        row = torch.cat([self.gradient(param).reshape(-1) for param in self.buckets[number]])
        self.started[number] = row, dist.all_reduce(row, async_op=True)

    def finish(self):
        for number in range(len(self.buckets)):
            if number not in self.started:
                self.start(number)
        for number, (row, work) in self.started.items():
            work.wait()
            self.put_back(self.buckets[number], row / dist.get_world_size())
        self.reset()

    def put_back(self, bucket, row):
        for param, part in zip(bucket, row.split([param.numel() for param in bucket]), strict=True):
            param.grad = part.reshape(param.shape)


@wrong("4.7", "last micro-batch")
class LastMicroBatch(_Parallel):
    def __init__(self, model, bucket_elements):
        super().__init__(model, bucket_elements)
        self.fresh = {}
        for param in self.home:
            param.register_hook(lambda grad, param=param: self.fresh.update({param: grad.clone()}))

    def gradient(self, param):
        return self.fresh.get(param, torch.zeros(param.shape))


@wrong("4.7", "stuck")
class OnlyRank0Broadcasts(_Parallel):
    def equalise(self, model):
        if dist.get_rank() == 0:
            super().equalise(model)


# 4.8 ----------------------------------------------------------------------------------------------------------------

def _uneven(model, optimizer, batches, comm, steps, divisor):
    """Zeros instead of no gradient, without a look at who has a batch."""
    for number in range(steps):
        grads = [torch.zeros_like(param) for param in model.parameters()]
        if number < len(batches):
            x, y = batches[number]
            grads = torch.autograd.grad(nn.functional.mse_loss(model(x), y), list(model.parameters()))
        for param, grad in zip(model.parameters(), grads, strict=True):
            param.grad = comm.all_reduce(grad.clone()) / divisor
        optimizer.step()


@wrong("4.8", "all ranks")
def zeros_that_count(model, optimizer, batches, comm):
    steps = max(comm.all_gather_object(len(batches)))
    _uneven(model, optimizer, batches, comm, steps, comm.world_size)


@wrong("4.8", "stopped early")
def as_many_as_the_shortest(model, optimizer, batches, comm):
    steps = min(comm.all_gather_object(len(batches)))
    _uneven(model, optimizer, batches, comm, steps, comm.world_size)


@wrong("4.8", "stuck")
def asks_after_the_loop(model, optimizer, batches, comm):
    _uneven(model, optimizer, batches, comm, len(batches), comm.world_size)
    steps = max(comm.all_gather_object(len(batches)))
    _uneven(model, optimizer, [], comm, steps - len(batches), comm.world_size)


# 04.w1 --------------------------------------------------------------------------------------------------------------

@wrong("04.w1", "one half")
def only_the_reduce_scatter(parts, rank, pass_on):
    n = len(parts)
    leaving = rank
    for _ in range(n - 1):
        pass_on(leaving, (leaving - 1) % n, True)
        leaving = (leaving - 1) % n


@wrong("04.w1", "added in both")
def a_full_turn_twice(parts, rank, pass_on):
    n, leaving = len(parts), (rank - 1) % len(parts)
    for _ in range(2 * (n - 1)):
        arriving = (leaving - 1) % n
        pass_on(leaving, arriving, add=True)
        leaving = arriving


@wrong("04.w1", "second half starts too far")
def begins_the_copies_where_the_sums_began(parts, rank, pass_on):
    n = len(parts)
    for add in (True, False):
        for turn in range(n - 1):
            pass_on((rank - turn - 1) % n, (rank - turn - 2) % n, add)


@wrong("04.w1", "same part")
def sends_its_own_part_each_time(parts, rank, pass_on):
    n = len(parts)
    for add, part in ((True, rank - 1), (False, rank)):
        for _ in range(1, n):
            pass_on(part % n, (part - 1) % n, add)


@wrong("04.w1", "raised")
def counts_from_one(parts, rank, pass_on):
    for turn in range(1, len(parts) + 1):
        pass_on(rank + turn, rank + turn - 1, True)


@wrong("04.w1", "stuck")
def the_last_rank_only_listens(parts, rank, pass_on):
    n = len(parts)
    for turn in range(n - 1 - (rank == n - 1)):
        pass_on((rank - 1 - turn) % n, (rank - 2 - turn) % n, True)


# 04.w2 --------------------------------------------------------------------------------------------------------------

@wrong("04.w2", "as if equal")
def plain_mean(gradient, samples):
    dist.all_reduce(gradient)
    gradient /= dist.get_world_size()


@wrong("04.w2", "weighted after")
def share_of_the_sum(gradient, samples):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, samples)
    dist.all_reduce(gradient)
    gradient.mul_(samples).div_(sum(everyone))


@wrong("04.w2", "not divided by the total")
def sum_over_samples(gradient, samples):
    gradient *= samples
    dist.all_reduce(gradient)


@wrong("04.w2", "not in place")
def returns_it(gradient, samples):
    count = torch.tensor([float(samples)])
    dist.all_reduce(count)
    weighted = gradient * samples / count
    dist.all_reduce(weighted)
    return weighted


@wrong("04.w2", "stuck")
def leaves_out_small_parts(gradient, samples):
    if samples > 3:
        dist.all_reduce(gradient)
