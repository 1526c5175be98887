"""Wrong answers of chapter 05, the same mistakes by another hand."""

import contextlib
import itertools

import torch
import torch.distributed as dist
from torch.nn import functional as F
from wrong_answers import wrong

_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


# 5.1 ----------------------------------------------------------------------------------------------------------------

@wrong("5.1", "counted the padding")
def padded_until_it_divides(rows, ranks):
    elements = 0
    for numel in rows:
        while numel % ranks:
            numel += 1
        elements += numel // ranks
    return [2 * 4 * elements for _ in range(ranks)]


@wrong("5.1", "laid all buffers end to end")
def chunks_of_the_model(rows, ranks):
    parts = torch.empty(sum(rows), device="meta").split(max(1, -(-sum(rows) // ranks)))
    held = [8 * len(part) for part in parts]
    return held + [0] * (ranks - len(held))


@wrong("5.1", "gave the rest to the last rank")
def floor_and_rest(rows, ranks):
    held = []
    for rank in range(ranks):
        elements = 0
        for numel in rows:
            begin = rank * (numel // ranks)
            end = numel if rank == ranks - 1 else begin + numel // ranks
            elements += end - begin
        held.append(elements * 8)
    return held


@wrong("5.1", "counted a master copy")
def three_tensors(rows, ranks):
    held = dict.fromkeys(range(ranks), 0)
    for numel in rows:
        size = (numel + ranks - 1) // ranks
        for rank, left in enumerate(range(numel, 0, -size)):
            for _state in ("master", "m", "v"):
                held[rank] += 4 * min(size, left)
    return list(held.values())


@wrong("5.1", "below 0")
def what_is_left(rows, ranks):
    held = [0] * ranks
    for numel in rows:
        size, left = (numel + ranks - 1) // ranks, numel
        for rank in range(ranks):
            held[rank] += 8 * (size if left >= size else left)
            left -= size
    return held


# 5.2 ----------------------------------------------------------------------------------------------------------------

@wrong("5.2", "measured this rank's slices only")
def vector_norm_of_mine(slices, max_norm, comm):
    length = torch.linalg.vector_norm(torch.cat([*slices, torch.zeros(1)]))
    comm.all_reduce(torch.ones(()))  # everybody is here
    if length > max_norm:
        for part in slices:
            part *= max_norm / (length + 1e-6)
    return length


@wrong("5.2", "added up norms")
def lengths_of_the_ranks_added(slices, max_norm, comm):
    mine = torch.cat(slices) if slices else torch.zeros(1)
    total = torch.sqrt(mine @ mine)
    comm.all_reduce(total)
    if total > max_norm:
        for part in slices:
            part.mul_(max_norm / (total + 1e-6))
    return total


@wrong("5.2", "made a short gradient longer")
def always_to_the_limit(slices, max_norm, comm):
    squares = torch.tensor([float((part * part).sum()) for part in slices]).sum()
    length = comm.all_reduce(squares) ** 0.5
    torch._foreach_mul_(list(slices), float(max_norm / (length + 1e-6))) if slices else None
    return length


@wrong("5.2", "the same collectives, in the same order")
def only_if_mine_is_long(slices, max_norm, comm):
    square = torch.zeros(())
    for part in slices:
        square += (part ** 2).sum()
    if square > 0:
        square = comm.all_reduce(square)
    length = square.sqrt()
    scale = min(1.0, float(max_norm / (length + 1e-6)))
    for part in slices:
        part *= scale
    return length


@wrong("5.2", "multiply in place")
def a_new_name_for_it(slices, max_norm, comm):
    norm = torch.sqrt(comm.all_reduce(sum([p.pow(2).sum() for p in slices], start=torch.tensor(0.0))))
    if norm > max_norm:
        for part in slices:
            part = part * (max_norm / (norm + 1e-6))
    return norm


@wrong("5.2", "never infinite")
def no_epsilon(slices, max_norm, comm):
    norm = comm.all_reduce(sum((part.square().sum() for part in slices), torch.zeros(()))).sqrt()
    if norm > max_norm:
        for part in slices:
            part.mul_(max_norm / norm)
    return norm


# 5.3 ----------------------------------------------------------------------------------------------------------------

@wrong("5.3", "Adam with L2")
def decay_in_the_gradient(slices, gradients, state, lr, betas, eps, weight_decay):
    t = state["t"] = state.get("t", 0) + 1
    for i in range(len(slices)):
        if i not in state:
            state[i] = torch.zeros(2, len(slices[i]))
        g = torch.add(gradients[i], slices[i], alpha=weight_decay)
        for row, (beta, value) in enumerate(zip(betas, (g, g.square()))):
            state[i][row] = beta * state[i][row] + (1 - beta) * value
        m = state[i][0] / (1 - betas[0] ** t)
        v = state[i][1] / (1 - betas[1] ** t)
        slices[i].addcdiv_(m, v.sqrt().add_(eps), value=-lr)


@wrong("5.3", "counted a step for each slice")
def powers_shared_by_all(slices, gradients, state, lr, betas, eps, weight_decay):
    b1, b2 = betas
    if not state:
        state["power1"] = state["power2"] = 1.0
        state["averages"] = [(torch.zeros_like(p), torch.zeros_like(p)) for p in slices]
    for p, g, (m, v) in zip(slices, gradients, state["averages"]):
        state["power1"] *= b1
        state["power2"] *= b2
        p -= lr * weight_decay * p
        m += (1 - b1) * (g - m)
        v += (1 - b2) * (g * g - v)
        p -= lr * (m / (1 - state["power1"])) / ((v / (1 - state["power2"])).sqrt() + eps)


@wrong("5.3", "left out the bias correction")
def averages_as_they_are(slices, gradients, state, lr, betas, eps, weight_decay):
    state["step"] = state.get("step", 0) + 1
    m = state.setdefault("m", [p.new_zeros(p.shape) for p in slices])
    v = state.setdefault("v", [p.new_zeros(p.shape) for p in slices])
    torch._foreach_mul_(slices, 1 - lr * weight_decay)
    torch._foreach_lerp_(m, gradients, 1 - betas[0])
    torch._foreach_lerp_(v, [g * g for g in gradients], 1 - betas[1])
    for i, p in enumerate(slices):
        p -= lr * m[i] / (v[i].sqrt() + eps)


@wrong("5.3", "eps under the root")
def root_of_all(slices, gradients, state, lr, betas, eps, weight_decay):
    t = state["t"] = state.get("t", 0) + 1
    for i, (p, g) in enumerate(zip(slices, gradients)):
        old_m, old_v = state.get(i, (0, 0))
        m, v = state[i] = betas[0] * old_m + (1 - betas[0]) * g, betas[1] * old_v + (1 - betas[1]) * g ** 2
        step = m / (1 - betas[0] ** t) / torch.sqrt(v / (1 - betas[1] ** t) + eps)
        p.copy_((1 - lr * weight_decay) * p - lr * step)


@wrong("5.3", "a new tensor is not part of the buffer")
def the_name_gets_another(slices, gradients, state, lr, betas, eps, weight_decay):
    state["t"] = state.get("t", 0) + 1
    if "m" not in state:
        state["m"] = [torch.zeros_like(g) for g in gradients]
        state["v"] = [torch.zeros_like(g) for g in gradients]
    for p, g, m, v in zip(slices, gradients, state["m"], state["v"]):
        m.mul_(betas[0]).add_(g, alpha=1 - betas[0])
        v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
        p = p * (1 - lr * weight_decay)
        p = p - lr * (m / (1 - betas[0] ** state["t"])) / ((v / (1 - betas[1] ** state["t"])) ** 0.5 + eps)


@wrong("5.3", "averages begin anew")
def made_in_every_call(slices, gradients, state, lr, betas, eps, weight_decay):
    state["t"] = state.get("t", 0) + 1
    state["m"] = [torch.zeros_like(p) for p in slices]
    state["v"] = [torch.zeros_like(p) for p in slices]
    for i in range(len(slices)):
        slices[i].mul_(1 - lr * weight_decay)
        state["m"][i].lerp_(gradients[i], 1 - betas[0])
        state["v"][i].lerp_(gradients[i].square(), 1 - betas[1])
        m_hat = state["m"][i] / (1 - betas[0] ** state["t"])
        v_hat = state["v"][i] / (1 - betas[1] ** state["t"])
        slices[i].addcdiv_(m_hat, v_hat.sqrt() + eps, value=-lr)


@wrong("5.3", "more than two averages")
def corrected_averages_kept(slices, gradients, state, lr, betas, eps, weight_decay):
    t = state["t"] = state.get("t", 0) + 1
    for i, (p, g) in enumerate(zip(slices, gradients)):
        mine = state.setdefault(i, {"m": torch.zeros_like(p), "v": torch.zeros_like(p)})
        mine["m"] = betas[0] * mine["m"] + (1 - betas[0]) * g
        mine["v"] = betas[1] * mine["v"] + (1 - betas[1]) * g * g
        mine["m_hat"] = mine["m"] / (1 - betas[0] ** t)
        mine["v_hat"] = mine["v"] / (1 - betas[1] ** t)
        p.sub_(lr * weight_decay * p)
        p.sub_(lr * mine["m_hat"] / (mine["v_hat"].sqrt() + eps))


# 5.4 ----------------------------------------------------------------------------------------------------------------

@wrong("5.4", "called no collective")
def cut_and_nothing_else(flat, comm):
    size = flat.grad.numel() // comm.world_size
    flat.grad_shard = flat.grad.narrow(0, comm.rank * size, size)
    return None


@wrong("5.4", "divided by the number of ranks again")
def mean_of_means(flat, comm):
    view = flat.grad[flat.own]

    def arrived(total):
        flat.grad_shard = view
        view.mul_(1 / comm.world_size)

    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=view, done=arrived)


@wrong("5.4", "memory of its own")
def into_a_clone(flat, comm):
    place = flat.grad[flat.own].clone()
    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=place,
                               done=lambda total: setattr(flat, "grad_shard", total))


@wrong("5.4", "makes it an all-reduce")
def everybody_gets_all(flat, comm):
    first = comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=flat.grad[flat.own])
    first.wait()
    second = comm.all_gather(flat.grad, flat.layout, flat.name)
    second.wait()
    flat.grad_shard = flat.grad[flat.own]
    return second


@wrong("5.4", "Nobody can wait for it")
def no_return(flat, comm):
    def arrived(total):
        flat.grad_shard = total

    handle = comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=flat.grad[flat.own], done=arrived)
    del handle


@wrong("5.4", "`flat.grad_shard` of rank 0 is None")
def set_on_a_local_name(flat, comm):
    grad_shard = flat.grad[flat.own]

    def arrived(total):
        grad_shard.copy_(total)

    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=grad_shard, done=arrived)


@wrong("5.4", "The backward stands still")
def waits_and_returns(flat, comm):
    handle = comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=flat.grad[flat.own],
                                 done=lambda total: setattr(flat, "grad_shard", total))
    handle.wait()
    return handle


@wrong("5.4", "the place where the sum arrives")
def a_copy_of_what_was(flat, comm):
    flat.grad_shard = torch.empty_like(flat.grad[flat.own])
    flat.grad_shard.copy_(flat.grad[flat.own])
    return comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=flat.grad[flat.own], done=lambda total: None)


# 5.5 ----------------------------------------------------------------------------------------------------------------

@wrong("5.5", "gathered nothing")
def publishes_only(flats, comm, optimizer_step):
    loss = optimizer_step()
    [flat.publish_shard() for flat in flats]
    return loss


@wrong("5.5", "gathered before `optimizer_step`")
def started_before(flats, comm, optimizer_step):
    handles = []
    for flat in flats:
        flat.publish_shard()
        handles.append(comm.all_gather(flat.full, flat.layout, flat.name))
    result = optimizer_step()
    while handles:
        handles.pop().wait()
    return result


@wrong("5.5", "gathers still under way")
def waits_while_it_starts(flats, comm, optimizer_step):
    result, before = optimizer_step(), None
    for flat in flats:
        flat.publish_shard()
        handle = comm.all_gather(flat.full, flat.layout, flat.name)
        if before is not None:
            before.wait()
        before = handle
    return result


@wrong("5.5", "each further call is a further step")
def step_inside_the_list(flats, comm, optimizer_step):
    results, handles = [], []
    for flat in flats:
        results.append(optimizer_step())
        flat.publish_shard()
        handles.append(comm.all_gather(flat.full, flat.layout, flat.name))
    for handle in handles:
        handle.wait()
    return results[-1]


@wrong("5.5", "2 of 3 flat buffers were updated")
def skips_the_last(flats, comm, optimizer_step):
    handles = []
    for number, flat in enumerate(flats):
        result = optimizer_step(flat) if number < 2 else None
        flat.publish_shard()
        handles.append(comm.all_gather(flat.full, flat.layout, flat.name))
    for handle in handles:
        handle.wait()
    return result


@wrong("5.5", "gathered before `optimizer_step`")
def gathers_each_before_its_update(flats, comm, optimizer_step):
    for flat in flats:
        flat.publish_shard()
        comm.all_gather(flat.full, flat.layout, flat.name).wait()
        result = optimizer_step(flat)
    return result


@wrong("5.5", "each further call is a further step")
def all_and_then_each(flats, comm, optimizer_step):
    result = optimizer_step()
    for flat in flats:
        optimizer_step(flat)
        flat.publish_shard()
        comm.all_gather(flat.full, flat.layout, flat.name).wait()
    return result


@wrong("5.5", "it takes flat buffers")
def gives_the_list(flats, comm, optimizer_step):
    result = optimizer_step(flats)
    for flat in flats:
        flat.publish_shard()
        comm.all_gather(flat.full, flat.layout, flat.name).wait()
    return result


@wrong("5.5", "the same collectives, in the same order")
def rank_by_rank(flats, comm, optimizer_step):
    result = optimizer_step()
    order = flats if comm.rank % 2 == 0 else flats[::-1]
    handles = []
    for flat in order:
        flat.publish_shard()
        handles.append(comm.all_gather(flat.full, flat.layout, flat.name))
    for handle in handles:
        handle.wait()
    return result


@wrong("5.5", "after the gather had started")
def published_after_the_gather(flats, comm, optimizer_step):
    result = optimizer_step()
    handles = [comm.all_gather(flat.full, flat.layout, flat.name) for flat in flats]
    for flat, handle in zip(flats, handles):
        handle.wait()
        flat.publish_shard()
    return result


@wrong("5.5", "got lost")
def returns_the_handles(flats, comm, optimizer_step):
    optimizer_step()
    handles = []
    for flat in flats:
        flat.publish_shard()
        handles += [comm.all_gather(flat.full, flat.layout, flat.name)]
    return [handle.wait() for handle in handles]


@wrong("5.5", "fp32 master weights")
def gathers_as_soon_as_it_has_stepped(flats, comm, optimizer_step):
    with contextlib.ExitStack() as under_way:
        result = optimizer_step()
        for flat in flats:
            handle = comm.all_gather(flat.full, flat.layout, flat.name)
            under_way.callback(handle.wait)
    return result


@wrong("5.5", "the same collectives, in the same order")
def largest_slice_first(flats, comm, optimizer_step):
    result = optimizer_step()
    handles = []
    for flat in sorted(flats, key=lambda flat: -flat.layout.real(comm.rank)):
        flat.publish_shard()
        handles.append(comm.all_gather(flat.full, flat.layout, flat.name))
    for handle in handles:
        handle.wait()
    return result


# 5.6 ----------------------------------------------------------------------------------------------------------------

class _ByHand:
    """A right one; every method is small, so that a mistake is one method."""

    def __init__(self, params, lr, weight_decay):
        self.params, self.lr, self.decay, self.count = list(params), lr, weight_decay, 0
        sizes = [p.numel() for p in self.params]
        self.pad = -sum(sizes) % dist.get_world_size()
        self.row = F.pad(torch.cat([p.data.reshape(-1) for p in self.params]), (0, self.pad))
        self.spread()
        self.point([*sizes, self.pad])
        self.slots()

    def spread(self):
        dist.broadcast(self.row, src=0)

    def point(self, sizes):
        for p, piece in zip(self.params, self.row.split(sizes)):
            p.data = piece.view_as(p.data)

    def slots(self):
        self.averages = torch.zeros(2, len(self.row) // dist.get_world_size())

    def collected(self):
        pieces = [torch.zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in self.params]
        return F.pad(torch.cat(pieces), (0, self.pad))

    def clear(self):
        for p in self.params:
            p.grad = None

    def mine(self, row):
        return row.chunk(dist.get_world_size())[dist.get_rank()]

    def averaged(self, row):
        out = torch.empty_like(self.averages[0])
        _scatter(out, row.div_(dist.get_world_size()))
        return out

    def update(self, g):
        self.count += 1
        p, (m, v) = self.mine(self.row), self.averages
        p.sub_(p, alpha=self.lr * self.decay)
        m.lerp_(g, 0.1)
        v.lerp_(g.square(), 0.001)
        p.addcdiv_(m / (1 - 0.9**self.count), (v / (1 - 0.999**self.count)).sqrt() + 1e-8, value=-self.lr)

    def fetch(self):
        _gather(self.row, self.mine(self.row).clone())

    def step(self):
        g = self.averaged(self.collected())
        self.clear()
        self.update(g)
        self.fetch()


@wrong("5.6", "summed the gradients and never divided")
class SumOfAllRanks(_ByHand):
    def averaged(self, row):
        out = torch.empty_like(self.averages[0])
        _scatter(out, row)
        return out


@wrong("5.6", "Adam with L2")
class TorchAdam(_ByHand):
    def slots(self):
        super().slots()
        self.leaf = torch.nn.Parameter(self.mine(self.row))
        self.inner = torch.optim.Adam([self.leaf], lr=self.lr, weight_decay=self.decay)
        self.size = len(self.leaf)
        self.averages = torch.empty(2, 0)

    def averaged(self, row):
        out = torch.empty(self.size)
        _scatter(out, row / dist.get_world_size())
        return out

    def update(self, g):
        self.leaf.grad = g
        self.inner.step()
        self.leaf.grad = None


@wrong("5.6", "the replicas never agree")
class EachItsOwn(_ByHand):
    def spread(self):
        dist.barrier()


@wrong("5.6", "are no views")
class CopiedAfterwards(_ByHand):
    """The parameters keep their own memory; after every step the row is copied into them. All values are right."""

    def point(self, sizes):
        self.sizes = sizes
        self.write()

    def write(self):
        for p, piece in zip(self.params, self.row.split(self.sizes)):
            p.data.copy_(piece.view_as(p.data))

    def fetch(self):
        super().fetch()
        self.write()


@wrong("5.6", "averages of the whole row")
class UpdatesAll(_ByHand):
    """All-gathers the averaged gradient and updates the whole row on each rank."""

    def slots(self):
        self.averages = torch.zeros(2, len(self.row))

    def averaged(self, row):
        out = torch.empty(len(row) // dist.get_world_size())
        _scatter(out, row / dist.get_world_size())
        everything = torch.empty_like(row)
        _gather(everything, out)
        return everything

    def mine(self, row):
        return row

    def fetch(self):
        pass


@wrong("5.6", "bytes of gradients")
class ZeroedGradients(_ByHand):
    def clear(self):
        for p in self.params:
            if p.grad is not None:
                p.grad.zero_()


@wrong("5.6", "called all_reduce")
class EachGradientByItself(_ByHand):
    def averaged(self, row):
        for piece in row.split(max(1, len(row) // 3)):
            dist.all_reduce(piece)
        return self.mine(row).clone() / dist.get_world_size()


@wrong("5.6", "Only its own slice is new")
class GathersIntoAnother(_ByHand):
    def fetch(self):
        row = torch.empty_like(self.row)
        _gather(row, self.mine(self.row).clone())
        row = row.contiguous()


@wrong("5.6", "the same collectives, in the same order")
class NothingToDoHere(_ByHand):
    def step(self):
        if not any(p.grad is not None for p in itertools.chain(self.params)):
            return
        super().step()


@wrong("5.6", "never brought the gradients of the ranks together")
class DividesWhatItHas(_ByHand):
    """Every rank steps torch's AdamW on its slice, with a gradient of its own; only parameters travel."""

    def slots(self):
        self.piece = torch.nn.Parameter(self.mine(self.row))
        self.inner = torch.optim.AdamW([self.piece], lr=self.lr, weight_decay=self.decay)

    def step(self):
        self.piece.grad = self.mine(self.collected()).clone() / dist.get_world_size()
        self.clear()
        self.inner.step()
        self.piece.grad = None
        self.fetch()
