"""Wrong answers of chapter 04."""

import torch
import torch.distributed as dist

from wrong_answers import wrong

DIVIDED = "never divided by the number of ranks"


# 4.1 ----------------------------------------------------------------------------------------------------------------

@wrong("4.1", "ceil(n / ranks) long, so that the last ones are short or empty: two")
def rounded_up(n, ranks):
    size = (n + ranks - 1) // ranks
    return [(min(r * size, n), min(r * size + size, n)) for r in range(ranks)]


@wrong("4.1", "end behind the row")
def rounded_up_and_padded(n, ranks):
    size = -(-n // ranks)
    return [(size * r, size * (r + 1)) for r in range(ranks)]


@wrong("4.1", "lost the last elements")
def rounded_down(n, ranks):
    return [(n // ranks * r, n // ranks * (r + 1)) for r in range(ranks)]


@wrong("4.1", "left over to the last part")
def rest_to_the_last(n, ranks):
    found = [[n // ranks * r, n // ranks * (r + 1)] for r in range(ranks)]
    found[-1][1] = n
    return found


@wrong("4.1", "longer parts have to come first")
def evenly_mixed(n, ranks):
    edges = [n * r // ranks for r in range(ranks + 1)]
    return list(zip(edges, edges[1:], strict=False))


@wrong("4.1", "how long it is")
def lengths(n, ranks):
    size, left, found = n // ranks, n % ranks, []
    for r in range(ranks):
        found.append((r * size + min(r, left), size + (r < left)))
    return found


# 4.2 ----------------------------------------------------------------------------------------------------------------

@wrong("4.2", DIVIDED)
def summed(model):
    for param in model.parameters():
        if param.grad is not None:
            dist.all_reduce(param.grad)


@wrong("4.2", DIVIDED)
def summed_by_hand(model):
    grads = [param.grad for param in model.parameters() if param.grad is not None]
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, flat)
    for grad, part in zip(grads, sum(everyone).split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(part.view(grad.shape))


@wrong("4.2", "You divided by 2, however many")
def halved(model):
    for param in model.parameters():
        if param.grad is not None:
            dist.all_reduce(param.grad)
            param.grad.mul_(0.5)


@wrong("4.2", "You communicated the parameters")
def averaged_weights(model):
    for param in model.parameters():
        dist.all_reduce(param.data)
        param.data /= dist.get_world_size()


@wrong("4.2", "You communicated the parameters")
def summed_weights(model):
    weights = [param for param in model.parameters() if param.grad is not None]
    row = torch.cat([param.detach().flatten() for param in weights])
    dist.all_reduce(row)
    for param, part in zip(weights, row.split([param.numel() for param in weights]), strict=True):
        param.data = part.view_as(param)


@wrong("4.2", "the result was thrown away")
def thrown_away(model):
    for param in model.parameters():
        if param.grad is not None:
            average = param.grad.clone()
            dist.all_reduce(average)
            average /= dist.get_world_size()


@wrong("4.2", "NoneType")
def all_have_one(model):
    for param in model.parameters():
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


@wrong("4.2", "Leave `None` as it is")
def zeros_for_none(model):
    for param in model.parameters():
        param.grad = torch.zeros_like(param) if param.grad is None else param.grad
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


@wrong("4.2", "the ranks disagree")
def rank_0_only(model):
    if dist.get_rank() == 0:
        for param in model.parameters():
            if param.grad is not None:
                dist.all_reduce(param.grad)
    for param in model.parameters():
        if param.grad is not None:
            param.grad /= dist.get_world_size()


@wrong("4.2", "of rank 0 alone")
def copied(model):
    for param in model.parameters():
        if param.grad is not None:
            dist.broadcast(param.grad, src=0)


@wrong("4.2", "one rank only")
def to_rank_0(model):
    for param in model.parameters():
        if param.grad is not None:
            dist.reduce(param.grad, 0)
            param.grad /= dist.get_world_size()


@wrong("4.2", "write it yourself")
def delegated(model):
    from zerocourse.comm import Comm
    comm = Comm()
    for param in model.parameters():
        if param.grad is not None:
            comm.all_reduce(param.grad).div_(comm.world_size)


# 4.3 ----------------------------------------------------------------------------------------------------------------

def _parcels(text, owner):
    found = [{} for _ in range(dist.get_world_size())]
    for word in text.split():
        parcel = found[owner(word)]
        parcel[word] = parcel.get(word, 0) + 1
    return found


@wrong("4.3", "replaced what came before")
def updated(text, owner, exchange):
    total = {}
    for parcel in exchange(_parcels(text, owner)):
        total.update(parcel)
    return total


@wrong("4.3", "replaced what came before")
def united(text, owner, exchange):
    return {word: n for parcel in exchange(_parcels(text, owner)) for word, n in parcel.items()}


@wrong("4.3", "all counts to all ranks")
def everything_to_all(text, owner, exchange):
    from collections import Counter
    total = Counter()
    for counts in exchange([Counter(text.split())] * dist.get_world_size()):
        total += counts
    return total


@wrong("4.3", "that does not own it")
def filtered_afterwards(text, owner, exchange):
    from collections import Counter
    total = Counter()
    for counts in exchange([Counter(text.split()) for _ in range(dist.get_world_size())]):
        total.update(counts)
    return {word: n for word, n in total.items() if owner(word) == dist.get_rank()}


@wrong("4.3", "the ranks disagree")
def nothing_to_say(text, owner, exchange):
    if not text:
        return {}
    from collections import Counter
    return sum(map(Counter, exchange(_parcels(text, owner))), Counter())


@wrong("4.3", "was never called")
def alone(text, owner, exchange):
    return _parcels(text, owner)[dist.get_rank()]


@wrong("4.3", "only this rank's own text")
def sent_and_ignored(text, owner, exchange):
    exchange(_parcels(text, owner))
    return _parcels(text, owner)[dist.get_rank()]


@wrong("4.3", "count before you send")
def words_uncounted(text, owner, exchange):
    bags = exchange([[word for word in text.split() if owner(word) == rank] for rank in range(dist.get_world_size())])
    words = sum(bags, [])
    return {word: words.count(word) for word in words}


@wrong("4.3", "what this rank counted itself")
def without_own(text, owner, exchange):
    total = {}
    for peer, parcel in enumerate(exchange(_parcels(text, owner))):
        if peer != dist.get_rank():
            for word in parcel:
                total[word] = total.get(word, 0) + parcel[word]
    return total


@wrong("4.3", "write it yourself")
def the_packages(text, owner, exchange):
    from zerocourse.classics import word_count
    return dict(word_count.word_count(text)[0])


# 4.4 ----------------------------------------------------------------------------------------------------------------

@wrong("4.4", "at the server's newest parameter")
def never_stale(start, gradient, arrivals, lr):
    log, read_at = [], dict.fromkeys(arrivals, 0)
    for i, who in enumerate(arrivals):
        start = start - lr * gradient(start, who)
        log.append([start, i - read_at[who]])
        read_at[who] = i + 1
    return log


@wrong("4.4", "worker's first gradient can be old")
def first_is_fresh(start, gradient, arrivals, lr):
    log, now, seen, last = [], start, {}, {}
    for i, who in enumerate(arrivals):
        now -= lr * gradient(seen.get(who, start), who)
        log.append((now, i - last[who] - 1 if who in last else 0))
        seen[who], last[who] = now, i
    return log


@wrong("4.4", "counted the update itself")
def with_itself(start, gradient, arrivals, lr):
    history, last, log = [start], {}, []
    for i, who in enumerate(arrivals, 1):
        history.append(history[-1] - lr * gradient(history[last.get(who, 0)], who))
        log.append((history[-1], i - last.get(who, 0)))
        last[who] = i
    return log


@wrong("4.4", "workers read only once")
def read_once(start, gradient, arrivals, lr):
    now, log = start, []
    for i, who in enumerate(arrivals):
        now = now - lr * gradient(start, who)
        log.append((now, i))
    return log


@wrong("4.4", "not the one before")
def reads_too_early(start, gradient, arrivals, lr):
    seen, when, now, log = {}, {}, start, []
    for i, who in enumerate(arrivals):
        step = lr * gradient(seen.get(who, start), who)
        log.append((now - step, i - when.get(who, 0)))
        seen[who], when[who] = now, i + 1
        now -= step
    return log


@wrong("4.4", "count their updates")
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

def _ring(row, rounds, first, add=True, divide=False, whole=False, blocking=False, step=1):
    """A ring with switches that break it."""
    rank, n = dist.get_rank(), dist.get_world_size()
    parts, sent = row.tensor_split(n), 0
    for turn in range(rounds(n)):
        out, into = parts[(rank + first - turn * step) % n], parts[(rank + first - turn * step - step) % n]
        if whole:
            out = into = row
        got = torch.empty_like(into)
        if blocking:
            dist.send(out.clone(), (rank + step) % n)
            dist.recv(got, (rank - step) % n)
        else:
            works = [dist.irecv(got, (rank - step) % n), dist.isend(out.clone(), (rank + step) % n)]
            for work in works:
                work.wait()
        into.copy_(into + got if add else got)
        sent += out.numel()
    if divide:
        row /= n
    return sent


def less_one(n):
    return n - 1


@wrong("4.5", "began one part too far")
def from_its_own_part(row):
    return _ring(row, less_one, 0)


@wrong("4.5", "replaced what was there")
def copies(row):
    return _ring(row, less_one, -1, add=False)


@wrong("4.5", "replaced what was there")
def received_in_place(row):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts, sent = row.tensor_split(n), 0
    for turn in range(1, n):
        work = dist.isend(parts[(rank - turn) % n].clone(), (rank + 1) % n)
        dist.recv(parts[(rank - turn - 1) % n], (rank - 1) % n)
        work.wait()
        sent += parts[(rank - turn) % n].numel()
    return sent


@wrong("4.5", "rounds where")
def a_round_more(row):
    return _ring(row, lambda n: n, -1)


@wrong("4.5", "sent the whole row in each round")
def whole_rows(row):
    return _ring(row, less_one, -1, whole=True)


@wrong("4.5", "sent the whole row in each round")
def a_star(row):
    if dist.get_rank():
        dist.send(row, 0)
        dist.recv(row, 0)
        return row.numel()
    others = range(1, dist.get_world_size())
    for peer in others:
        got = torch.empty_like(row)
        dist.recv(got, peer)
        row += got
    for peer in others:
        dist.send(row, peer)
    return row.numel() * len(others)


@wrong("4.5", "In a ring a rank sends to its right neighbour only")
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


@wrong("4.5", "Every rank waits in a `send`")
def all_send_first(row):
    return _ring(row, less_one, -1, blocking=True)


@wrong("4.5", "Use nothing but send and receive")
def library(row):
    n = row.numel()
    dist.all_reduce(row)
    return n - row.tensor_split(dist.get_world_size())[dist.get_rank()].numel()


@wrong("4.5", "whoever wants the average divides")
def averaged(row):
    return _ring(row, less_one, -1, divide=True)


@wrong("4.5", "cut this one as in 4.1")
def cut_evenly(row):
    size, rest = divmod(row.numel(), dist.get_world_size())
    head = row[:row.numel() - rest]
    return _ring(head, less_one, -1)


@wrong("4.6", "only the left neighbour's own part did")
def its_own_each_time(row):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts, sent = row.tensor_split(n), 0
    for _ in range(n - 1):
        work = dist.isend(parts[rank], (rank + 1) % n)
        dist.recv(parts[(rank - 1) % n], (rank - 1) % n)
        work.wait()
        sent += parts[rank].numel()
    return sent


@wrong("4.6", "an all-gather copies")
def adds(row):
    return _ring(row, less_one, 0)


@wrong("4.6", "began with the wrong part")
def as_in_the_other_half(row):
    return _ring(row, less_one, -1, add=False)


@wrong("4.6", "Every rank waits in a `send`")
def sends_first(row):
    return _ring(row, less_one, 0, add=False, blocking=True)


@wrong("4.6", "rounds where")
def goes_round(row):
    return _ring(row, lambda n: n, 0, add=False)


@wrong("4.6", "its left neighbour")
def to_the_left(row):
    return _ring(row, less_one, 0, add=False, step=-1)


@wrong("4.6", "elements are wanted")
def in_bytes(row):
    return _ring(row, less_one, 0, add=False) * row.element_size()


# 4.7 ----------------------------------------------------------------------------------------------------------------

class _Parallel:
    """A right answer, written in another way than the solution, with methods to override."""

    ranks_divide, asynchronous, in_order, in_hook, rule = True, True, True, True, "reversed"

    def __init__(self, model, bucket_elements):
        self.sync = True
        self.equalise(model)
        self.limit, self.buckets = bucket_elements, [[]]
        for param in self.ordered([param for param in model.parameters() if param.requires_grad]):
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

    def ordered(self, params):
        return params[::-1]

    def reset(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.started = {}

    def hook(self, param):
        if self.sync:
            self.missing[self.home[param]] -= 1
            self.try_to_start()

    def try_to_start(self):
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

    def flush(self):
        for number in range(len(self.buckets)):
            if number not in self.started:
                self.start(number)

    def finish(self):
        self.flush()
        for number, (row, work) in self.started.items():
            work.wait()
            self.put_back(self.buckets[number], row / dist.get_world_size())
        self.reset()

    def put_back(self, bucket, row):
        at = 0
        for param in bucket:
            param.grad = row[at:at + param.numel()].reshape(param.shape)
            at += param.numel()


@wrong("4.7", "start with different parameters")
class NoBroadcast(_Parallel):
    def equalise(self, model):
        pass


@wrong("4.7", DIVIDED)
class Summed(_Parallel):
    def put_back(self, bucket, row):
        super().put_back(bucket, row * dist.get_world_size())


@wrong("4.7", "divided by 2, however many")
class Halved(_Parallel):
    def put_back(self, bucket, row):
        super().put_back(bucket, row * dist.get_world_size() / 2)


@wrong("4.7", "was never written back")
class NotWritten(_Parallel):
    def put_back(self, bucket, row):
        pass


@wrong("4.7", "nothing overlaps")
class WaitsAtOnce(_Parallel):
    def start(self, number):
        super().start(number)
        self.started[number][1].wait()


@wrong("4.7", "nothing overlaps")
class Synchronous(_Parallel):
    def start(self, number):
        row = torch.cat([self.gradient(param).reshape(-1) for param in self.buckets[number]])
        dist.all_reduce(row)
        self.started[number] = row, self

    def wait(self):
        pass


@wrong("4.7", "when the backward was over")
class AllAtTheEnd(_Parallel):
    def try_to_start(self):
        pass


@wrong("4.7", "in the order of the forward")
class ForwardOrder(_Parallel):
    def ordered(self, params):
        return params


@wrong("4.7", "each parameter by itself")
class OneByOne(_Parallel):
    def __init__(self, model, bucket_elements):
        super().__init__(model, 1)


@wrong("4.7", "during a backward with `sync = False`")
class AlwaysSends(_Parallel):
    def hook(self, param):
        self.missing[self.home[param]] -= 1
        self.try_to_start()


@wrong("4.7", "Only the last micro-batch was averaged: what")
class LastMicroBatch(_Parallel):
    def __init__(self, model, bucket_elements):
        super().__init__(model, bucket_elements)
        self.fresh = {}
        for param in self.home:
            param.register_hook(lambda grad, param=param: self.fresh.update({param: grad.clone()}))

    def gradient(self, param):
        return self.fresh.get(param, torch.zeros(param.shape))


@wrong("4.7", "Some buckets never left")
class OnlyFullOnes(_Parallel):
    def flush(self):
        pass


@wrong("4.7", "was left out: what earlier ones left")
class SeenByTheHook(_Parallel):
    def reset(self):
        super().reset()
        self.seen = set()

    def hook(self, param):
        if self.sync:
            self.seen.add(param)
        super().hook(param)

    def gradient(self, param):
        return param.grad if param in self.seen else torch.zeros(param.shape)

    def put_back(self, bucket, row):
        parts = row.split([param.numel() for param in bucket])
        for param, part in zip(bucket, parts, strict=True):
            if param in self.seen:
                param.grad = part.view(param.shape)


@wrong("4.7", "though it is full")
class WhoeverIsFull(_Parallel):
    def try_to_start(self):
        for number, missing in enumerate(self.missing):
            if not missing and number not in self.started:
                self.start(number)


@wrong("4.7", "the other ranks' average is for it too")
class OnlyWhoHasOne(_Parallel):
    def put_back(self, bucket, row):
        parts = row.split([param.numel() for param in bucket])
        for param, part in zip(bucket, parts, strict=True):
            if param.grad is not None:
                param.grad.copy_(part.view(param.shape))


@wrong("4.7", "of the step before")
class KeepsItsRows(_Parallel):
    def start(self, number):
        bucket = self.buckets[number]
        if not hasattr(self, "rows"):
            self.rows = [torch.zeros(sum(param.numel() for param in each)) for each in self.buckets]
        at = 0
        for param in bucket:
            if param.grad is not None:
                self.rows[number][at:at + param.numel()] = param.grad.flatten()
            at += param.numel()
        self.started[number] = self.rows[number], dist.all_reduce(self.rows[number], async_op=True)

    def put_back(self, bucket, row):
        self.rows[self.home[bucket[0]]].copy_(row)
        super().put_back(bucket, row.clone())


@wrong("4.7", "the ranks disagree")
class OnlyRank0Broadcasts(_Parallel):
    def equalise(self, model):
        if dist.get_rank() == 0:
            super().equalise(model)


@wrong("4.7", "the ranks disagree")
class EachRankIsItsRoot(_Parallel):
    def equalise(self, model):
        for param in model.parameters():
            dist.broadcast(param.data, dist.get_rank())


@wrong("4.7", "the trainable parameters alone")
class FrozenStayApart(_Parallel):
    def equalise(self, model):
        for param in model.parameters():
            if param.requires_grad:
                dist.broadcast(param.data, 0)


class _Noted(_Parallel):
    """It notes what has arrived in a set, as the hints advise."""

    def __init__(self, model, bucket_elements):
        self.noted = set()
        super().__init__(model, bucket_elements)

    def try_to_start(self):
        for number, bucket in enumerate(self.buckets):
            if number not in self.started:
                if not self.noted.issuperset(bucket):
                    break
                self.start(number)


@wrong("4.7", "What arrived with `sync = False` does not count")
class NotesEverything(_Noted):
    def hook(self, param):
        self.noted.add(param)
        if self.sync:
            self.try_to_start()

    def reset(self):
        super().reset()
        self.noted.clear()


@wrong("4.7", "`finish` has to forget it")
class NeverForgets(_Noted):
    def hook(self, param):
        if self.sync:
            self.noted.add(param)
            self.try_to_start()


@wrong("4.7", "nothing overlaps")
class WaitsForTheOneBefore(_Parallel):
    def start(self, number):
        if number:
            self.started[number - 1][1].wait()
        super().start(number)


@wrong("4.7", "the parameters and not the gradients")
class OfTheParameters(_Parallel):
    def gradient(self, param):
        return param.detach()


@wrong("4.7", "the parameters and not the gradients")
class AveragesTheParameters(OfTheParameters):
    def put_back(self, bucket, row):
        for param, part in zip(bucket, row.split([param.numel() for param in bucket]), strict=True):
            param.data.copy_(part.view_as(param))


@wrong("4.7", "frozen parameters a place")
class FrozenToo(_Parallel):
    def __init__(self, model, bucket_elements):
        self.model = model
        super().__init__(model, bucket_elements)

    def ordered(self, params):
        return [param.requires_grad_() for param in self.model.parameters()][::-1]


@wrong("4.7", "AttributeError")
class NoneIsNoTensor(_Parallel):
    def gradient(self, param):
        return param.grad
