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

@wrong("5.5", "last one alone")
def waits_for_the_last(flats, comm, optimizer_step):
    result = optimizer_step()
    for flat in flats:
        flat.round_masters()
        handle = comm.all_gather(flat.full, flat.layout, flat.name)
    handle.wait()
    return result


# 5.6 ----------------------------------------------------------------------------------------------------------------

@wrong("5.6", "whole row")
class WholeStates:
    """Right, but with averages as long as the row."""

    def __init__(self, params, lr, weight_decay):
        self.params, self.lr, self.decay, self.t = params, lr, weight_decay, 0
        self.world, numel = dist.get_world_size(), sum(param.numel() for param in params)
        size = (numel + self.world - 1) // self.world
        self.mine = slice(dist.get_rank() * size, (dist.get_rank() + 1) * size)
        self.row = torch.zeros(size * self.world)
        self.m, self.v = torch.zeros_like(self.row), torch.zeros_like(self.row)
        self.places, at = [], 0
        for param in params:
            self.places.append(slice(at, at + param.numel()))
            at += param.numel()
            self.row[self.places[-1]] = param.detach().flatten()
            param.data = self.row[self.places[-1]].view_as(param)
        dist.broadcast(self.row, src=0)

    def step(self):
        row = torch.zeros_like(self.row)
        for param, place in zip(self.params, self.places):
            if param.grad is not None:
                row[place] = param.grad.flatten()
            param.grad = None
        p, m, v = self.row[self.mine], self.m[self.mine], self.v[self.mine]
        gradient = torch.empty_like(p)
        reduce_scatter(gradient, row)
        gradient /= self.world
        self.t += 1
        p.mul_(1 - self.lr * self.decay)
        m.mul_(0.9).add_(gradient, alpha=0.1)
        v.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        p.sub_(self.lr * m / (1 - 0.9**self.t) / ((v / (1 - 0.999**self.t)).sqrt() + 1e-8))
        all_gather(self.row, p.clone())


@wrong("5.6", "stuck")
class SkipsWithoutGradient(WholeStates):
    def step(self):
        if all(param.grad is not None for param in self.params):
            super().step()


# 05.w1 --------------------------------------------------------------------------------------------------------------

@wrong("05.w1", "no gather")
def alone(parameters, gradients, own, speed, gather, lr=0.1):
    speed.mul_(0.9).add_(gradients[own])
    parameters[own].sub_(speed, alpha=lr)


@wrong("05.w1", "speed lost")
def a_new_speed(parameters, gradients, own, speed, gather, lr=0.1):
    speed = 0.9 * speed + gradients[own]
    parameters[own] = parameters[own] - lr * speed
    gather(parameters)


@wrong("05.w1", "everything moved")
def whole_step(parameters, gradients, own, speed, gather, lr=0.1):
    momentum = gradients.clone()
    momentum[own] += 0.9 * speed
    speed.copy_(momentum[own])
    parameters.sub_(lr * momentum)


@wrong("05.w1", "gradients gathered")
def tells_its_gradients(parameters, gradients, own, speed, gather, lr=0.1):
    speed.mul_(0.9)
    speed += gradients[own]
    parameters[own] -= lr * speed
    gather(gradients)


@wrong("05.w1", "raised")
def wrong_length(parameters, gradients, own, speed, gather, lr=0.1):
    speed += gradients
    gather(parameters)


# 05.w2 --------------------------------------------------------------------------------------------------------------

@wrong("05.w2", "share of 1")
def a_share(ranks, parameter, gradient, optimizer):
    before = parameter + gradient + optimizer
    after = parameter + gradient + optimizer / ranks
    return (before - after) / before


@wrong("05.w2", "kept")
def what_is_left(ranks, parameter, gradient, optimizer):
    return 100 * (parameter + gradient + optimizer / ranks) / (parameter + gradient + optimizer)


@wrong("05.w2", "all cut")
def divides_by_ranks(ranks, parameter, gradient, optimizer):
    return 100 - 100 / ranks


@wrong("05.w2", "always 16")
def sixteenths(ranks, parameter, gradient, optimizer):
    return 100 * optimizer * (ranks - 1) / ranks / 16


@wrong("05.w2", "one rank's part")
def its_own_part(ranks, parameter, gradient, optimizer):
    return 100 * (optimizer / ranks) / (parameter + gradient + optimizer)
