"""Wrong answers of chapter 05."""

import math

import torch
import torch.distributed as dist

from wrong_answers import wrong

reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


# 5.1 ----------------------------------------------------------------------------------------------------------------

@wrong("5.1", "counted the padding")
def with_padding(rows, ranks):
    return [8 * sum(-(-numel // ranks) for numel in rows)] * ranks


@wrong("5.1", "counted the padding")
def with_padding_by_position(rows, ranks):
    held = []
    for rank in range(ranks):
        total = 0
        for numel in rows:
            padded = math.ceil(numel / ranks) * ranks
            begin, end = padded // ranks * rank, padded // ranks * (rank + 1)
            total += 4 * (end - begin) * 2
        held.append(total)
    return held


@wrong("5.1", "laid all buffers end to end")
def one_long_row(rows, ranks):
    numel = sum(rows)
    size = -(-numel // ranks)
    return [8 * max(0, min(size, numel - rank * size)) for rank in range(ranks)]


@wrong("5.1", "gave the rest to the last rank")
def rest_to_the_last(rows, ranks):
    held = [8 * sum(numel // ranks for numel in rows)] * ranks
    held[-1] += 8 * sum(numel % ranks for numel in rows)
    return held


@wrong("5.1", "counted a master copy")
def with_master(rows, ranks):
    sizes = [-(-numel // ranks) for numel in rows]
    return [12 * sum(max(0, min(s, n - rank * s)) for n, s in zip(rows, sizes)) for rank in range(ranks)]


@wrong("5.1", "below 0")
def negative(rows, ranks):
    sizes = [-(-n // ranks) for n in rows]
    return [sum(8 * (min(n, (rank + 1) * s) - rank * s) for n, s in zip(rows, sizes)) for rank in range(ranks)]


# 5.2 ----------------------------------------------------------------------------------------------------------------

@wrong("5.2", "measured this rank's slices only")
def local_norm(slices, max_norm, comm):
    norm = torch.stack([part.square().sum() for part in slices] or [torch.zeros(())]).sum().sqrt()
    for part in slices:
        part.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return norm


@wrong("5.2", "measured this rank's slices only")
def local_norm_by_torch(slices, max_norm, comm):
    params = [torch.nn.Parameter(part) for part in slices]
    for param, part in zip(params, slices):
        param.grad = part
    return torch.nn.utils.clip_grad_norm_(params, max_norm)


@wrong("5.2", "added up norms")
def norms_added(slices, max_norm, comm):
    norm = comm.all_reduce(sum((part.norm() for part in slices), torch.zeros(())))
    factor = min(1.0, max_norm / (norm.item() + 1e-6))
    for part in slices:
        part *= factor
    return norm


@wrong("5.2", "made a short gradient longer")
def always_scaled(slices, max_norm, comm):
    norm = comm.all_reduce(sum((part.square().sum() for part in slices), torch.zeros(()))).sqrt()
    for part in slices:
        part.mul_(max_norm / (norm + 1e-6))
    return norm


@wrong("5.2", "the same collectives, in the same order")
def nothing_to_do(slices, max_norm, comm):
    if not slices:
        return torch.zeros(())
    norm = comm.all_reduce(sum(part.square().sum() for part in slices)).sqrt()
    for part in slices:
        part.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return norm


@wrong("5.2", "the same collectives, in the same order")
def one_message_a_slice(slices, max_norm, comm):
    total = torch.zeros(())
    for part in slices:
        total += comm.all_reduce(part.square().sum())
    norm = total.sqrt()
    for part in slices:
        part.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return norm


@wrong("5.2", "multiply in place")
def not_in_place(slices, max_norm, comm):
    norm = comm.all_reduce(sum((part.square().sum() for part in slices), torch.zeros(()))).sqrt()
    slices = [part * torch.clamp(max_norm / (norm + 1e-6), max=1.0) for part in slices]
    return norm


@wrong("5.2", "multiply in place")
def other_slices_in_the_list(slices, max_norm, comm):
    norm = comm.all_reduce(sum((part.square().sum() for part in slices), torch.zeros(()))).sqrt()
    for number, part in enumerate(slices):
        slices[number] = part * torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    return norm


@wrong("5.2", "cut off single numbers")
def numbers_cut_off(slices, max_norm, comm):
    norm = comm.all_reduce(sum((part.square().sum() for part in slices), torch.zeros(()))).sqrt()
    for part in slices:
        part.clamp_(-max_norm, max_norm)
    return norm


# 5.3 ----------------------------------------------------------------------------------------------------------------

def _averages(slices, state):
    if not state:
        state.update(t=0, m=[torch.zeros_like(p) for p in slices], v=[torch.zeros_like(p) for p in slices])
    return zip(slices, state["m"], state["v"])


@wrong("5.3", "Adam with L2")
def l2(slices, gradients, state, lr, betas, eps, weight_decay):
    parts = _averages(slices, state)
    state["t"] += 1
    for (p, m, v), g in zip(parts, gradients):
        g = g + weight_decay * p
        m.lerp_(g, 1 - betas[0])
        v.lerp_(g * g, 1 - betas[1])
        p -= lr * m / (1 - betas[0] ** state["t"]) / ((v / (1 - betas[1] ** state["t"])).sqrt() + eps)


@wrong("5.3", "counted a step for each slice")
def count_per_slice(slices, gradients, state, lr, betas, eps, weight_decay):
    for (p, m, v), g in zip(_averages(slices, state), gradients):
        state["t"] += 1
        p.mul_(1 - lr * weight_decay)
        m.mul_(betas[0]).add_((1 - betas[0]) * g)
        v.mul_(betas[1]).add_((1 - betas[1]) * g**2)
        p.sub_(lr * (m / (1 - betas[0] ** state["t"])) / ((v / (1 - betas[1] ** state["t"])).sqrt() + eps))


@wrong("5.3", "left out the bias correction")
def no_correction(slices, gradients, state, lr, betas, eps, weight_decay):
    for number, (p, g) in enumerate(zip(slices, gradients)):
        m, v = state.setdefault(number, (torch.zeros_like(p), torch.zeros_like(p)))
        m.mul_(betas[0]).add_(g, alpha=1 - betas[0])
        v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
        p.sub_(lr * weight_decay * p).addcdiv_(m, v.sqrt() + eps, value=-lr)


@wrong("5.3", "eps under the root")
def eps_inside(slices, gradients, state, lr, betas, eps, weight_decay):
    parts = _averages(slices, state)
    state["t"] += 1
    for (p, m, v), g in zip(parts, gradients):
        p.mul_(1 - lr * weight_decay)
        m.lerp_(g, 1 - betas[0])
        v.lerp_(g * g, 1 - betas[1])
        p -= lr * m / (1 - betas[0] ** state["t"]) * (v / (1 - betas[1] ** state["t"]) + eps).rsqrt()


@wrong("5.3", "a new tensor is not part of the buffer")
def out_of_place(slices, gradients, state, lr, betas, eps, weight_decay):
    state["t"] = state.get("t", 0) + 1
    for number, g in enumerate(gradients):
        p = slices[number]
        m = betas[0] * state.get(("m", number), 0) + (1 - betas[0]) * g
        v = betas[1] * state.get(("v", number), 0) + (1 - betas[1]) * g * g
        state["m", number], state["v", number] = m, v
        m_hat, v_hat = m / (1 - betas[0] ** state["t"]), v / (1 - betas[1] ** state["t"])
        slices[number] = p * (1 - lr * weight_decay) - lr * m_hat / (v_hat.sqrt() + eps)


@wrong("5.3", "averages begin anew")
def forgetful(slices, gradients, state, lr, betas, eps, weight_decay):
    state["t"] = state.get("t", 0) + 1
    for p, g in zip(slices, gradients):
        m, v = (1 - betas[0]) * g, (1 - betas[1]) * g * g
        p.mul_(1 - lr * weight_decay)
        p -= lr * (m / (1 - betas[0] ** state["t"])) / ((v / (1 - betas[1] ** state["t"])).sqrt() + eps)


@wrong("5.3", "more than two averages")
def keeps_gradients(slices, gradients, state, lr, betas, eps, weight_decay):
    parts = _averages(slices, state)
    state["t"] += 1
    state["last"] = [g.clone() for g in gradients]
    for (p, m, v), g in zip(parts, state["last"]):
        p.mul_(1 - lr * weight_decay)
        m.lerp_(g, 1 - betas[0])
        v.lerp_(g * g, 1 - betas[1])
        p -= lr * m / (1 - betas[0] ** state["t"]) / ((v / (1 - betas[1] ** state["t"])).sqrt() + eps)


@wrong("5.3", "begin to count at 0")
def counted_from_0(slices, gradients, state, lr, betas, eps, weight_decay):
    for (p, m, v), g in zip(_averages(slices, state), gradients):
        p.mul_(1 - lr * weight_decay)
        m.mul_(betas[0]).add_((1 - betas[0]) * g)
        v.mul_(betas[1]).add_((1 - betas[1]) * g * g)
        m_hat, v_hat = (a / torch.tensor(1 - beta**state["t"]) for a, beta in zip((m, v), betas))
        p.sub_(lr * m_hat / (v_hat.sqrt() + eps))
    state["t"] += 1


# 5.4 ----------------------------------------------------------------------------------------------------------------

@wrong("5.4", "called no collective")
def local_slice(flat, comm):
    flat.grad_shard = flat.grad[flat.own]


@wrong("5.4", "divided by the number of ranks again")
def divided_twice(flat, comm):
    def arrived(total):
        flat.grad_shard = total.div_(comm.world_size)

    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=flat.grad[flat.own], done=arrived)


@wrong("5.4", "divided by the number of ranks again")
def divided_before(flat, comm):
    flat.grad /= comm.world_size
    flat.grad_shard = flat.grad[flat.own]
    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=flat.grad_shard)


@wrong("5.4", "memory of its own")
def beside_the_bucket(flat, comm):
    def arrived(total):
        flat.grad_shard = total

    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, done=arrived)


@wrong("5.4", "memory of its own")
def beside_the_bucket_by_hand(flat, comm):
    flat.grad_shard = torch.empty(flat.own.stop - flat.own.start)
    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=flat.grad_shard)


@wrong("5.4", "makes it an all-reduce")
def reduced_for_all(flat, comm):
    comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=flat.grad[flat.own]).wait()
    flat.grad_shard = flat.grad[flat.own]
    return comm.all_gather(flat.grad, flat.layout, flat.name)


@wrong("5.4", "Nobody can wait for it")
def handle_lost(flat, comm):
    flat.grad_shard = flat.grad[flat.own]
    comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=flat.grad_shard)


@wrong("5.4", "`flat.grad_shard` of rank 0 is None")
def never_set(flat, comm):
    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=flat.grad[flat.own])


@wrong("5.4", "The backward stands still")
def waits_inside(flat, comm):
    mine = flat.grad[flat.own]
    comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=mine).wait()
    flat.grad_shard = mine


@wrong("5.4", "the place where the sum arrives")
def copy_before(flat, comm):
    flat.grad_shard = flat.grad[flat.own].clone()
    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=flat.grad[flat.own])


@wrong("5.4", "a second sum added to the first")
def added_to_itself(flat, comm):
    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=flat.grad[flat.own], done=flat.accumulate)


@wrong("5.4", "another rank's slice of the bucket")
def at_the_beginning(flat, comm):
    def arrived(total):
        flat.grad_shard = total

    place = flat.grad[:flat.own.stop - flat.own.start]
    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=place, done=arrived)


@wrong("5.4", "arrived beside the bucket")
def copied_back(flat, comm):
    def arrived(total):
        flat.grad[flat.own] = total
        flat.grad_shard = flat.grad[flat.own]

    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, done=arrived)


# 5.5 ----------------------------------------------------------------------------------------------------------------

@wrong("5.5", "gathered nothing")
def no_gather(flats, comm, optimizer_step):
    result = optimizer_step()
    for flat in flats:
        flat.publish_shard()
    return result


@wrong("5.5", "gathered before `optimizer_step`")
def gather_first(flats, comm, optimizer_step):
    for flat in flats:
        flat.publish_shard()
        comm.all_gather(flat.full, flat.layout, flat.name).wait()
    return optimizer_step()


@wrong("5.5", "gathers still under way")
def no_wait(flats, comm, optimizer_step):
    result = optimizer_step()
    for flat in flats:
        flat.publish_shard()
        comm.all_gather(flat.full, flat.layout, flat.name)
    return result


@wrong("5.5", "gathers still under way")
def waits_for_the_last(flats, comm, optimizer_step):
    result = optimizer_step()
    for flat in flats:
        flat.publish_shard()
        handle = comm.all_gather(flat.full, flat.layout, flat.name)
    handle.wait()
    return result


@wrong("5.5", "each further call is a further step")
def steps_a_row(flats, comm, optimizer_step):
    for flat in flats:
        result = optimizer_step()
        flat.publish_shard()
        comm.all_gather(flat.full, flat.layout, flat.name).wait()
    return result


@wrong("5.5", "the same collectives, in the same order")
def owners_only(flats, comm, optimizer_step):
    result = optimizer_step()
    for flat in flats:
        if flat.layout.real(flat.rank):
            flat.publish_shard()
            comm.all_gather(flat.full, flat.layout, flat.name).wait()
    return result


@wrong("5.5", "fp32 master weights")
def never_published(flats, comm, optimizer_step):
    result = optimizer_step()
    for handle in [comm.all_gather(flat.full, flat.layout, flat.name) for flat in flats]:
        handle.wait()
    return result


@wrong("5.5", "got lost")
def result_lost(flats, comm, optimizer_step):
    optimizer_step()
    for flat in flats:
        flat.publish_shard()
        comm.all_gather(flat.full, flat.layout, flat.name).wait()


# 5.6 ----------------------------------------------------------------------------------------------------------------

class Right:
    """Right but for what a subclass changes."""

    decoupled, averaged, starts_alike, views, whole_states, frees, skips = True, True, True, True, False, True, False

    def __init__(self, params, lr, weight_decay):
        self.params, self.lr, self.decay, self.t = params, lr, weight_decay, 0
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        numel = sum(param.numel() for param in params)
        self.size = (numel + self.world - 1) // self.world
        self.row = torch.zeros(self.size * self.world)
        self.places, at = [], 0
        for param in params:
            self.places.append(slice(at, at + param.numel()))
            at += param.numel()
            self.row[self.places[-1]] = param.detach().flatten()
        if self.starts_alike:
            dist.broadcast(self.row, src=0)
        for param, place in zip(params, self.places):
            param.data = self.row[place].view_as(param) if self.views else self.row[place].view_as(param).clone()
        length = self.row.numel() if self.whole_states else self.size
        self.m, self.v = torch.zeros(length), torch.zeros(length)

    @property
    def mine(self):
        return slice(self.rank * self.size, (self.rank + 1) * self.size)

    def step(self):
        if self.skips and any(param.grad is None for param in self.params):
            return
        row = torch.zeros_like(self.row)
        for param, place in zip(self.params, self.places):
            if param.grad is not None:
                row[place] = param.grad.flatten()
            if self.frees:
                param.grad = None
        gradient = self.reduce(row) / (self.world if self.averaged else 1)
        self.t += 1
        where = slice(None) if not self.whole_states else self.mine
        p, m, v = self.row[self.mine], self.m[where], self.v[where]
        if self.decoupled:
            p.mul_(1 - self.lr * self.decay)
        else:
            gradient = gradient + self.decay * p
        m.mul_(0.9).add_(gradient, alpha=0.1)
        v.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        p.sub_(self.lr * m / (1 - 0.9**self.t) / ((v / (1 - 0.999**self.t)).sqrt() + 1e-8))
        self.gather()

    def reduce(self, row):
        mine = torch.empty(self.size)
        reduce_scatter(mine, row)
        return mine

    def gather(self):
        all_gather(self.row, self.row[self.mine].clone())


@wrong("5.6", "summed the gradients and never divided")
class Summed(Right):
    averaged = False


@wrong("5.6", "Adam with L2")
class CoupledDecay(Right):
    decoupled = False


@wrong("5.6", "the replicas never agree")
class NoBroadcast(Right):
    starts_alike = False


@wrong("5.6", "are no views")
class Copies(Right):
    views = False


@wrong("5.6", "averages of the whole row")
class WholeStates(Right):
    whole_states = True


@wrong("5.6", "bytes of gradients")
class KeepsGradients(Right):
    frees = False


@wrong("5.6", "called all_reduce")
class AllReduced(Right):
    def reduce(self, row):
        dist.all_reduce(row)
        return row[self.mine].clone()


@wrong("5.6", "never brought the gradients of the ranks together")
class LocalGradients(Right):
    averaged = False

    def reduce(self, row):
        return row[self.mine].clone()


@wrong("5.6", "Only its own slice is new")
class NeverGathers(Right):
    def gather(self):
        pass


@wrong("5.6", "the same collectives, in the same order")
class SkipsWithoutGradient(Right):
    skips = True


@wrong("5.6", "averages of the whole row")
class NotShardedAtAll:
    """torch's optimizer behind the same face: right values, and nothing is divided."""

    def __init__(self, params, lr, weight_decay):
        self.params, self.world = params, dist.get_world_size()
        sizes = [param.numel() for param in params]
        self.row = torch.zeros(-(-sum(sizes) // self.world) * self.world)
        for param, part in zip(params, self.row.split([*sizes, self.row.numel() - sum(sizes)])):
            part.copy_(param.detach().flatten())
            param.data = part.view_as(param)
        dist.broadcast(self.row, 0)
        self.inner = torch.optim.AdamW(params, lr=lr, weight_decay=weight_decay)

    def step(self):
        for param in self.params:
            grad = torch.zeros_like(param) if param.grad is None else param.grad
            gathered = [torch.empty_like(grad) for _ in range(self.world)]
            dist.all_gather(gathered, grad)
            param.grad = sum(gathered) / self.world
        self.inner.step()
        for param in self.params:
            param.grad = None


@wrong("5.6", "no gradient for the first parameter")
class MovesUp(Right):
    skips = False

    def step(self):
        without = [param for param in self.params if param.grad is None]
        row = torch.cat([param.grad.flatten() for param in self.params if param.grad is not None] + [torch.zeros(0)])
        row = torch.nn.functional.pad(row, (0, sum(param.numel() for param in without)))
        for param, place in zip(self.params, self.places):
            param.grad = row[place].view_as(param)
        super().step()
