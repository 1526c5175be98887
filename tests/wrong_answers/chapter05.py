"""Wrong answers of chapter 05."""

import torch
import torch.distributed as dist

from wrong_answers import wrong

reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


# 5.1 ----------------------------------------------------------------------------------------------------------------

@wrong("5.1", "rest to the last")
def rest_to_the_last(rows, ranks):
    held = [8 * sum(numel // ranks for numel in rows)] * ranks
    held[-1] += 8 * sum(numel % ranks for numel in rows)
    return held


# 5.2 ----------------------------------------------------------------------------------------------------------------

@wrong("5.2", "longer")
def always_scaled(slices, max_norm, comm):
    norm = comm.all_reduce(sum((part.square().sum() for part in slices), torch.zeros(()))).sqrt()
    for part in slices:
        part.mul_(max_norm / (norm + 1e-6))
    return norm


@wrong("5.2", "stuck")
def one_message_a_slice(slices, max_norm, comm):
    total = torch.zeros(())
    for part in slices:
        total += comm.all_reduce(part.square().sum())
    norm = total.sqrt()
    for part in slices:
        part.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return norm


# 5.3 ----------------------------------------------------------------------------------------------------------------

def _averages(slices, state):
    if not state:
        state.update(t=0, m=[torch.zeros_like(p) for p in slices], v=[torch.zeros_like(p) for p in slices])
    return zip(slices, state["m"], state["v"])


@wrong("5.3", "more in state")
def keeps_gradients(slices, gradients, state, lr, betas, eps, weight_decay):
    parts = _averages(slices, state)
    state["t"] += 1
    state["last"] = [g.clone() for g in gradients]
    for (p, m, v), g in zip(parts, state["last"]):
        p.mul_(1 - lr * weight_decay)
        m.lerp_(g, 1 - betas[0])
        v.lerp_(g * g, 1 - betas[1])
        p -= lr * m / (1 - betas[0] ** state["t"]) / ((v / (1 - betas[1] ** state["t"])).sqrt() + eps)


# 5.4 ----------------------------------------------------------------------------------------------------------------

@wrong("5.4", "added to itself")
def added_to_itself(flat, comm):
    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=flat.grad[flat.own], done=flat.accumulate)


@wrong("5.4", "copied back")
def copied_back(flat, comm):
    def arrived(total):
        flat.grad[flat.own] = total
        flat.grad_shard = flat.grad[flat.own]

    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, done=arrived)


# 5.5 ----------------------------------------------------------------------------------------------------------------

@wrong("5.5", "under way")
def waits_for_the_last(flats, comm, optimizer_step):
    result = optimizer_step()
    for flat in flats:
        flat.publish_shard()
        handle = comm.all_gather(flat.full, flat.layout, flat.name)
    handle.wait()
    return result


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
