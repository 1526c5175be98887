"""What scripts read at a parameter to know whether stage 3 has it: `ds_id`, `ds_status`, `ds_shape`, `ds_numel`.

    if hasattr(param, "ds_id") and param.ds_status == ZeroParamStatus.NOT_AVAILABLE:
        with deepspeed.zero.GatheredParameters([param]): ...

It communicates nothing.
"""

from collections.abc import Callable
from enum import Enum

from torch import nn

from ...zero.buffers.buffer import SHARDED
from ...zero.extras.hidden import HiddenParameter
from .deferred_parameters import deferred


class ZeroParamStatus(Enum):
    """Where a parameter's values are."""

    AVAILABLE = 1  # whole on this rank
    NOT_AVAILABLE = 2  # this rank has a slice, or nothing yet
    INFLIGHT = 3  # never seen here: whoever asks has waited for the gather


def status(param: nn.Parameter) -> ZeroParamStatus:
    hidden = isinstance(param, HiddenParameter) or deferred([param])
    return ZeroParamStatus.NOT_AVAILABLE if hidden else ZeroParamStatus.AVAILABLE


def number(param: nn.Parameter) -> int:
    """Its place among the model's parameters, the same on every rank."""
    if deferred([param]):
        return param.number
    return next(place for place, each in enumerate(getattr(param, SHARDED)().model.parameters()) if each is param)


def install() -> None:
    """From now on parameters of stage 3, and no others, have these attributes."""
    for name, read in {"ds_id": number, "ds_status": status, "ds_shape": lambda param: param.shape,
                       "ds_numel": lambda param: param.numel()}.items():
        setattr(nn.Parameter, name, property(of_stage_3(name, read)))


def of_stage_3(name: str, read: Callable[[nn.Parameter], object]) -> Callable[[nn.Parameter], object]:
    def ask(param: nn.Parameter) -> object:
        stage = getattr(param, SHARDED, lambda: None)()
        if not deferred([param]) and not getattr(stage, "shards_parameters", False):
            raise AttributeError(f"{name!r}: this parameter is not sharded by stage 3")
        return read(param)

    return ask
