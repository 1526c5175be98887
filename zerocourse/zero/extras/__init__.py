"""What only unusual models and habits need: one mechanism a file, each with the model that needs it. No stage knows them:
`shard` hands them in."""

from collections.abc import Iterable
from functools import wraps

from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from ...errors import BadInput
from ..buffers.groups import Groups
from ..extra import Extra
from ..shard import shard as shard_with
from .encoder import EncoderAlone
from .marked_parameters import AssignedGradients, MarkedParameters
from .hidden import Hiding
from .model_buffers import ModelBuffers
from .optimizer_habits import OptimizerHabits
from .pretrained import SavedTogether
from .refusals import Refusals
from .replaced import Registered
from .shared_memory import SharedMemory
from .whole_tensors import WholeTensors

# In this order: what is hidden has the class of what is marked, and an optimizer gets shapes before it is cut.
EXTRAS: tuple[type[Extra], ...] = (Registered, MarkedParameters, AssignedGradients, ModelBuffers, Refusals, SharedMemory, Hiding,
                                   WholeTensors, OptimizerHabits, SavedTogether, EncoderAlone)


@wraps(shard_with)
def shard(model: nn.Module, optimizer: Optimizer | None = None, *args, extras: Iterable[type[Extra]] = EXTRAS,
          shard_group: ProcessGroup | None = None, replicate_group: ProcessGroup | None = None,
          **chosen) -> tuple[nn.Module, Optimizer | None]:
    if shard_group is not None or replicate_group is not None:
        if chosen.get("comm") is not None:
            raise BadInput("shard has comm and a group: leave out comm, or say comm=Groups.of(shard_group, replicate_group)")
        chosen["comm"] = Groups.of(shard_group, replicate_group)
    return shard_with(model, optimizer, *args, extras=extras, **chosen)


shard.__doc__ += "    shard_group, replicate_group: process groups, in place of `comm=Groups.of(shard_group, replicate_group)`.\n    "
