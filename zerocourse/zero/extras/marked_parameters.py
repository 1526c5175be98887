"""Reading and assigning `param.grad` of a sharded model. Needed by: SAM, PCGrad, clip_grad_norm_(model.parameters()).

The stage takes a gradient out of its parameter as soon as it is complete, so `.grad` is None where unsharded training has
one, and code that looks there would go on without any gradient, in silence. So parameters get a class that says where the
gradients are. The parts of parameters that the optimizer steps have their `.grad`, which is this rank's slice alone; those
of master weights only within the step, and between the steps they say so, too.
"""

import functools

import torch
from torch import nn
from torch.nn.utils import clip_grad

from ...comm.torch_private import DisableTorchFunctionSubclass
from ...errors import BadInput
from ...measure.storages import raw_grad
from ..buffers.buffer import FlatBuffer
from ..buffers.gradients import SLICE
from ..extra import Extra
from ..passes.written import WatchedValues


class ShardedParameter(WatchedValues):
    """Comes before a parameter's own class. `_has_gradient()`: is its gradient in a flat buffer?"""

    @property
    def grad(self) -> torch.Tensor | None:
        gradient = raw_grad(self)
        if gradient is None and self._has_gradient():
            raise BadInput("the gradients of a sharded model are not at its parameters: they are in optimizer.param_groups, each "
                           "rank's slices (in fp32 for master weights, and only within the step); take their norm by "
                           "model.zero.grad_norm() and clip by model.zero.clip_grad_norm_(max_norm)")
        return gradient

    @grad.setter
    def grad(self, gradient: torch.Tensor | None) -> None:
        torch.Tensor.grad.__set__(self, gradient)

    @grad.deleter
    def grad(self) -> None:
        torch.Tensor.grad.__delete__(self)


@functools.cache
def sharded_class(own: type) -> type:
    return type(own)(own.__name__, (ShardedParameter, own), {"__module__": own.__module__})


def mark_parameters(flats: list[FlatBuffer]) -> None:
    """From now on the parameters of these buffers, and their shards, say where the gradients are."""
    for flat in flats:
        shards = [(part.name, param) for part, param in flat.shard_params.items()] if flat.steps_masters else []
        for key, param in [*flat.params.items(), *shards]:
            param.__class__ = sharded_class(type(param))
            param._has_gradient = functools.partial(has_gradient, flat.has_grad, key)
    watch_norms()


def has_gradient(has_grad: set[str], key: str) -> bool:
    return key in has_grad


class MarkedParameters(Extra):
    """Parameters say where the gradients are. But within a step the optimizer's have theirs, and are plain parameters: of a class
    that it does not know, torch's Adam would update one parameter after the other, with a dozen kernels each."""

    def __init__(self, stage):
        mark_parameters(stage.flats)
        self.said_by = [(param, type(param)) for flat in stage.flats if flat.steps_masters for param in flat.shard_params.values()]

    def before_step(self) -> None:
        for param, marked in self.said_by:
            param.__class__ = marked.__bases__[-1]  # its own: a Parameter, or a fake tensor

    def after_step(self) -> None:
        for param, marked in self.said_by:
            param.__class__ = marked

    def before_forward(self) -> None:
        self.after_step()  # there is none after a step that raised


class AssignedGradients(Extra):
    """Refuses a `.grad` that no backward brought: backward's own are in the buffers when it comes to the step."""

    def __init__(self, stage):
        self.params = {key: param for flat in stage.flats for key, param in flat.params.items()}

    def before_step(self) -> None:
        with DisableTorchFunctionSubclass():  # hidden parameters look at every access
            assigned = [key for key, param in self.params.items() if raw_grad(param) is not None]
        for key in assigned:
            raise BadInput(f"parameter {key!r} has a gradient that was assigned by hand, and a sharded model's gradients come "
                           "from backward() alone: let a loss bring it, for example (param * gradient.detach()).sum()")


@functools.cache
def watch_norms() -> None:
    """From now on, torch's norm of gradients refuses slices: it would be the norm of this rank's alone."""
    own = clip_grad._get_total_norm

    @functools.wraps(own)
    def look(tensors, *args, **kwargs):
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if any(hasattr(tensor, SLICE) for tensor in tensors):
            raise BadInput("torch's norm of these gradients would be that of this rank's slices alone: call "
                           "model.zero.grad_norm(), or model.zero.clip_grad_norm_(max_norm), on every rank")
        return own(tensors, *args, **kwargs)

    clip_grad._get_total_norm = nn.utils.get_total_norm = look
