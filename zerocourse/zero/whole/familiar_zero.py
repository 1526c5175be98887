"""`deepspeed.zero.Init`, which communicates nothing, and `deepspeed.zero.GatheredParameters`, which gathers."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

from torch import nn

from ...errors import BadInput
from ...init.deferred import deferred_init
from ..buffers.buffer import SHARDED
from .consolidate import gathered


@contextmanager
def Init(module: nn.Module | None = None, *, enabled: bool = True, **deepspeeds) -> Iterator[None]:  # noqa: N802
    """Models built inside take no memory until `initialize` or `shard` gives each rank its slices. See `deferred_init`.

    DeepSpeed's other arguments (config_dict_or_path, dtype, remote_device, ...) are accepted and change nothing: the
    config that `initialize` gets decides. Raises BadInput for a module that is built already.
    """
    if module is not None:
        raise BadInput(f"zero.Init got a {type(module).__name__} that is built already: build it inside `with zero.Init():`, "
                       "or give it to initialize as it is")
    with deferred_init() if enabled else nullcontext():
        yield


@contextmanager
def GatheredParameters(params: nn.Module | nn.Parameter | Iterable[nn.Parameter], modifier_rank: int | None = None,  # noqa: N802
                       fwd_module: nn.Module | None = None, enabled: bool = True) -> Iterator[None]:
    """Inside, these parameters of a sharded model are whole on every rank. Collective. See `gathered`.

    modifier_rank: 0 keeps what rank 0 writes, on all ranks; None is for reading. Before the model is sharded nothing
    happens.
    """
    if modifier_rank not in (None, 0):
        raise BadInput(f"modifier_rank is {modifier_rank}: it must be 0, the rank whose values are kept, or None")
    params = [params] if isinstance(params, nn.Module | nn.Parameter) else list(params)
    each = [param for part in params for param in ([part] if isinstance(part, nn.Parameter) else part.parameters())]
    sharded = enabled and any(hasattr(param, SHARDED) for param in each)
    with gathered(*params, write=modifier_rank is not None) if sharded else nullcontext():
        yield
