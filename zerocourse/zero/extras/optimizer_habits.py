"""What else people do with an optimizer. Needed by: a state loaded before shard, groups added later, hooks, GradScaler."""

import weakref
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.optim import Optimizer

from ...errors import BadInput
from ...layout.rankmap import ShardRange
from ..buffers.buffer import SHARDED
from ..extra import Extra
from .refusals import known_to


class OptimizerHabits(Extra):
    """Of the optimizer that `shard` was given."""

    def __init__(self, stage):
        self.stage = weakref.ref(stage)
        self.optimizer: Optimizer | None = None

    def before_take_over(self, optimizer: Optimizer) -> None:
        shard_state(optimizer, self.stage())

    def after_take_over(self, optimizer: Optimizer, shards: Mapping[nn.Parameter, list[nn.Parameter]]) -> None:
        self.optimizer = optimizer
        optimizer._step_supports_amp_scaling = True  # GradScaler then calls `step` on every rank, which `check_step` sees
        optimizer.add_param_group = groups_added_later(optimizer, self.stage(), shards)

    def check_step(self) -> None:
        if hasattr(self.optimizer, "found_inf"):
            raise BadInput("torch.amp.GradScaler looks for an overflow on each rank alone, and ranks would part: train in bf16 "
                           "(param_dtype=torch.bfloat16), which needs no scaling, or in fp16 through the engine, whose ranks "
                           "agree (fp16.enabled)")


def shard_state(optimizer: Optimizer, stage) -> None:
    """Cut the states that are there already, of a checkpoint or made by the constructor (Adagrad), into this rank's parts."""
    for flat in stage.flats:
        for where, part in flat.shard_params.items():
            param = flat.params[where.name]
            if param in optimizer.state:
                optimizer.state[part] = {key: cut(value, key, param, where, part) for key, value in optimizer.state[param].items()}
    for param in stage.model.parameters():
        optimizer.state.pop(param, None)


def cut(value: object, key: str, param: torch.Tensor, where: ShardRange, part: nn.Parameter) -> object:
    """This rank's part of an optimizer's state, when it has an element for each of the parameter's."""
    if not isinstance(value, torch.Tensor) or key == "step" or value.shape != param.shape:
        return value
    if value.is_meta:
        raise BadInput(f"the optimizer made its state {key!r} on the meta device, where it has no values: "
                       "make the model real (zerocourse.materialize_model) before this optimizer")
    return value.reshape(-1)[where.start : where.stop].to(part, copy=True).view(part.shape)


def groups_added_later(optimizer: Optimizer, stage, parts: Mapping[nn.Parameter, list[nn.Parameter]]) -> Callable[[dict], None]:
    """An `add_param_group` that takes the model's parameters, and gives the optimizer this rank's parts of them."""
    own = optimizer.add_param_group

    def add_param_group(group: dict) -> None:
        given = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
        params = [each[1] if isinstance(each, tuple) else each for each in given]  # (name, parameter) or the parameter
        known_to([group | {"params": params}], stage.model, first=len(optimizer.param_groups))
        for param in params:
            if not hasattr(param, SHARDED):
                raise BadInput(f"add_param_group got a parameter {tuple(param.shape)} that the model has only since it was sharded, and no rank "
                               "would train: save, build the model with it, shard that, and load with strict=False")
        own(group | {"params": [(each[0], part) if isinstance(each, tuple) else part
                                for each, param in zip(given, params, strict=True) for part in parts.get(param, ())]})

    return add_param_group
