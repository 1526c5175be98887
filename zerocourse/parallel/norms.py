"""The norm of a gradient whose elements lie on many ranks: each element counts once.

A rank adds up the squares of what it counts, and the ranks add up their sums over every axis of the mesh on which they
have different parameters, or different parts of one. What an axis replicates is counted by one rank of it: elsewhere it
is marked by `param.counts_in_norm = False` (tensor parallelism and the ties of pipelines do so, and ZeRO's stages read
it). Count it on every rank and the norm is too large, so that everything is clipped too much; and nothing tells.

`audit` tells. It plants the gradients of `measure.norm_audit`, 2^i in one element of parameter i and 0 elsewhere, on a
mesh, where a rank has only some of the parameters, or a part of each. `norms_by_stage` tells of another mistake, a wrong
factor: it compares with a right run, and shows on which stage of a pipeline the factor comes in.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..comm import Comm
from ..measure.norm_audit import counts_by_digits
from ..zero.ddp import DataParallel


@torch.no_grad()
def grad_norm(params: Iterable[nn.Parameter], comms: Sequence[Comm] = ()) -> Tensor:
    """The 2-norm of the gradients, a float64 scalar that is the same on all ranks of these Comms. Collective."""
    total = None
    for param in params:
        if total is None:
            total = torch.zeros((), dtype=torch.float64, device=param.device)
        if param.grad is not None and getattr(param, "counts_in_norm", True):
            total += param.grad.double().square().sum()
    total = torch.zeros((), dtype=torch.float64) if total is None else total
    for comm in comms:
        comm.all_reduce(total)
    return total.sqrt()


def clip_grad_norm(params: Iterable[nn.Parameter], comms: Sequence[Comm], max_norm: float) -> float:
    """Scale the gradients so that their norm is `max_norm` at most. Returns the norm before. Collective."""
    params = list(params)
    norm = grad_norm(params, comms)
    torch.nn.utils.clip_grads_with_norm_([param for param in params if param.grad is not None], max_norm, norm.float())
    return norm.item()


@torch.no_grad()
def norms_by_stage(stages: Sequence[DataParallel], within: Sequence[Comm], pipe: Comm) -> list[float]:
    """The norm of the gradient of each rank of `pipe`, so that one sees where in a pipeline a factor comes in. Collective.

    stages: of ZeRO, those of this rank.   within: the Comms whose ranks have other parts of the same layers.
    """
    squares = torch.stack([stage.sum_of_squares() for stage in stages]).double().sum()
    for comm in within:
        comm.all_reduce(squares)
    return pipe.all_gather_object(squares.sqrt().item())


@torch.no_grad()
def audit(params: Mapping[str, nn.Parameter], norm: Callable[[], float | Tensor], comm: Comm,
          stages: Sequence[DataParallel] = ()) -> dict[str, int]:
    """How often `norm` counts each parameter of the whole model, by its name. Right is 1 everywhere. Collective.

    params: this rank's, by the names of the whole model.   norm: computes the norm under audit, on all ranks.
    comm: of all ranks.   stages: of ZeRO, where they have the gradients. All gradients are lost.
    """
    names = list(dict.fromkeys(name for names in comm.all_gather_object(list(params)) for name in names))

    def norm_of(marks: dict[str, float]) -> float:
        plant({params[name]: mark if has_first(params[name]) else 0.0 for name, mark in marks.items() if name in params},
              list(params.values()), stages)
        return float(norm())

    return counts_by_digits(names, norm_of, highest=comm.world_size)


def has_first(param: Tensor) -> bool:
    """Is the whole tensor's first element here?"""
    cut, rank = getattr(param, "tensor_cut", None), getattr(param, "tensor_rank", 0)
    return cut is None or any(0 in rows for rows in cut.by_rank[rank])


def plant(first: Mapping[nn.Parameter, float], every: Sequence[nn.Parameter], stages: Sequence[DataParallel]) -> None:
    """The gradient of each of `every` is 0, but the first element's of those that have a value in `first`."""
    if not stages:
        for param in every:
            param.grad = torch.zeros_like(param)
            param.grad.view(-1)[0] = first.get(param, 0.0)
        return
    for flat in (flat for stage in stages for flat in stage.flats):
        flat.clear_gradients()
        whole = torch.zeros(flat.layout.padded, dtype=flat.grad_dtype, device=flat.master.device)
        for name, param in flat.params.items():
            whole[flat.layout.param_slice(name).start] = first.get(param, 0.0)
        flat.grad_shard, flat.has_grad = whole[flat.own].clone(), set(flat.params)
