"""Parameters of a model that is built under the bridge's `zero.Init`: without memory, until `initialize` gives each rank its
slices. `GatheredParameters` communicates: before `initialize` it broadcasts what rank 0 wrote.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count

import torch
import torch.distributed as dist
from torch import nn

from ... import zero
from ...comm import bootstrap
from ...comm.torch_private import make_subclass
from ...errors import BadInput
from ...zero.buffers.buffer import SHARDED
from ...zero.whole.weights import Reader

numbers = count()


class DeferredParameter(nn.Parameter):
    """A parameter on the meta device that says it is where it will be: libraries place what they add (PEFT's adapters,
    new embeddings) beside it, and on the meta device the values of that would be lost.

    number: counts the parameters in the order in which they are built, the same on every rank.
    read: of where its values are stored; None if there are none, so that its model's initialisers draw them.
    """

    number: int
    read: Reader | None = None

    @property
    def device(self) -> torch.device:
        return bootstrap.device() if self.is_meta else torch.Tensor.device.__get__(self)


def deferred(params: Iterable[nn.Parameter]) -> list[DeferredParameter]:
    return [param for param in params if isinstance(param, DeferredParameter) and param.is_meta]


@contextmanager
def GatheredParameters(params: nn.Module | nn.Parameter | Iterable, modifier_rank: int | None = None,
                       fwd_module: nn.Module | None = None, enabled: bool = True) -> Iterator[None]:
    """As `zerocourse.zero.GatheredParameters`, and before `initialize` too. Collective.

    Before `initialize` all ranks get at the end what rank 0 wrote (with modifier_rank), and a parameter without memory has
    some inside: its stored values, read by every rank. One that was written keeps its memory, whole on every rank.
    """
    params = [params] if isinstance(params, nn.Module | torch.Tensor) else list(params)
    each = [param for part in params for param in (part.parameters() if isinstance(part, nn.Module) else [part])]
    # transformers takes them from a set, whose order differs from rank to rank.
    each.sort(key=lambda param: getattr(param, "number", -1))
    writes = modifier_rank is not None
    own = [param for param in each if isinstance(param, nn.Parameter) and not hasattr(param, SHARDED)] if enabled else []
    borrowed = deferred(own)
    for param in borrowed:
        if param.read is None and not writes:
            raise BadInput(f"a parameter {tuple(param.shape)} of a model built under zero.Init has no values before initialize: "
                           "read it afterwards, or set it under GatheredParameters(..., modifier_rank=0)")
        values = torch.empty(param.shape, dtype=param.dtype, device=param.device)
        give_memory(param, values if param.read is None else values.copy_(param.read(0, param.numel()).view(param.shape)))
    try:
        with zero.GatheredParameters([param for param in each if hasattr(param, SHARDED)], modifier_rank, fwd_module, enabled):
            yield
    finally:
        for param in borrowed if not writes else []:
            give_memory(param, torch.empty_like(param, device="meta"))
    for param in own if writes and dist.is_initialized() else []:
        dist.broadcast(param.data, src=modifier_rank)


def give_memory(param: DeferredParameter, values: torch.Tensor) -> None:
    """The parameter, which stays the same object, gets the memory of `values`, or gives it back if they are on meta."""
    twin = make_subclass(DeferredParameter, values.detach(), param.requires_grad)
    twin.__dict__.update(param.__dict__)
    torch.utils.swap_tensors(param, twin)
