"""Two parameters over one memory are refused. Needed by: `decoder.weight.data = encoder.weight.data`, as a way to tie.

In plain torch both optimizers' updates land in the one memory. A flat buffer gives each its own, so they would part with the
first step, and nobody would be told. Parts of one storage that have no element in common, such as an LSTM's, are fine.
"""

from itertools import combinations

import torch
from torch import nn
from torch.optim import Optimizer

from ...errors import BadInput
from ..extra import Extra


class SharedMemory(Extra):
    @classmethod
    def check(cls, model: nn.Module, optimizer: Optimizer | None, has_whole: bool) -> None:
        refuse_shared_memory(model)


def refuse_shared_memory(model: nn.Module) -> None:
    """Raise BadInput that names two parameters of which an element is the same."""
    by_storage: dict[int, list[tuple[str, nn.Parameter]]] = {}
    for name, param in model.named_parameters():
        if param.numel():
            by_storage.setdefault(param.untyped_storage()._cdata, []).append((name, param))
    for named in by_storage.values():
        in_order = sorted(named, key=lambda each: first_byte(each[1]))
        near = zip(in_order, in_order[1:]) if all(param.is_contiguous() for _, param in named) else combinations(in_order, 2)
        for (name, param), (other, another) in near:
            if share_an_element(param, another):
                raise BadInput(f"parameters {name!r} and {other!r} are two objects over one memory, which a step of plain torch changes "
                               f"for both and a step of a sharded model would not: tie them as one nn.Parameter ({other} = {name})")


def first_byte(param: torch.Tensor) -> int:
    """Where in its storage it begins."""
    return param.storage_offset() * param.itemsize


def share_an_element(param: torch.Tensor, later: torch.Tensor) -> bool:
    """later: begins in the same storage where `param` does, or after it."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(param.shape, param.stride(), strict=True))
    if first_byte(later) >= first_byte(param) + elements * param.itemsize:
        return False
    if param.is_contiguous() and later.is_contiguous() or param.itemsize != later.itemsize:
        return True
    used = torch.zeros(param.untyped_storage().nbytes() // param.itemsize, dtype=torch.bool)
    used.as_strided(param.shape, param.stride(), param.storage_offset()).fill_(True)
    return bool(used.as_strided(later.shape, later.stride(), later.storage_offset()).any())
