"""Wrong answers of chapter 05, the same mistakes by another hand."""

import itertools

import torch
import torch.distributed as dist
from torch.nn import functional as F
from wrong_answers import wrong

_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


# 5.3 ----------------------------------------------------------------------------------------------------------------

@wrong("5.3", "no correction")
def averages_as_they_are(slices, gradients, state, lr, betas, eps, weight_decay):
    state["step"] = state.get("step", 0) + 1
    m = state.setdefault("m", [p.new_zeros(p.shape) for p in slices])
    v = state.setdefault("v", [p.new_zeros(p.shape) for p in slices])
    torch._foreach_mul_(slices, 1 - lr * weight_decay)
    torch._foreach_lerp_(m, gradients, 1 - betas[0])
    torch._foreach_lerp_(v, [g * g for g in gradients], 1 - betas[1])
    for i, p in enumerate(slices):
        p -= lr * m[i] / (v[i].sqrt() + eps)


# 5.5 ----------------------------------------------------------------------------------------------------------------

@wrong("5.5", "published late")
def published_after_the_gather(flats, comm, optimizer_step):
    result = optimizer_step()
    handles = [comm.all_gather(flat.full, flat.layout, flat.name) for flat in flats]
    for flat, handle in zip(flats, handles):
        handle.wait()
        flat.publish_shard()
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
