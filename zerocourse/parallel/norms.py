"""The norm of a gradient whose elements lie on many ranks: each element counts once.

A rank adds up the squares of what it counts, and the ranks add up their sums over every axis of the mesh on which they
have different parameters, or different parts of one. What an axis replicates is counted by one rank of it: elsewhere it
is marked by `param.counts_in_norm = False` (tensor parallelism and the ties of pipelines do so, and ZeRO's stages read
it). Count it on every rank and the norm is too large, so that everything is clipped too much; and nothing tells.

`audit` tells. It gives parameter i the gradient 2^i in one element and 0 elsewhere. The squared norm is then the sum of
c_i · 4^i, and its digits in base 4 say how often each parameter was counted (0 to 3 times). On four ranks or more, each
of which may count it, a parameter has two digits, or more.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..comm import Comm
from ..zero.ddp import DataParallel

DIGITS = 10  # in base 4, of one norm: 4^10 and its digits are exact in fp32, after a square root, too


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
def audit(params: Mapping[str, nn.Parameter], norm: Callable[[], float | Tensor], comm: Comm,
          stages: Sequence[DataParallel] = ()) -> dict[str, int]:
    """How often `norm` counts each parameter of the whole model, by its name. Right is 1 everywhere. Collective.

    params: this rank's, by the names of the whole model.   norm: computes the norm under audit, on all ranks.
    comm: of all ranks.   stages: of ZeRO, where they have the gradients. All gradients are lost.
    """
    names = list(dict.fromkeys(name for names in comm.all_gather_object(list(params)) for name in names))
    counted, each = {}, next(digits for digits in range(1, DIGITS + 1) if 4 ** digits > comm.world_size)
    for first in range(0, len(names), DIGITS // each):
        now = {name: 2.0 ** (each * place) for place, name in enumerate(names[first:first + DIGITS // each])}
        plant({params[name]: value if has_first(params[name]) else 0.0 for name, value in now.items() if name in params},
              list(params.values()), stages)
        squared = round(float(norm()) ** 2)
        for name in now:
            squared, counted[name] = divmod(squared, 4 ** each)
    return counted


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
