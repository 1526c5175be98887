"""What an optimizer knows beside its big tensors: hyper-parameters, step counts, which group a parameter is in."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.optim import Optimizer

from ...errors import BadInput
from ...layout.rankmap import ShardRange
from ...zero.buffers.buffer import FlatBuffer
from ...zero.ddp import DataParallel
from .pieces import elementwise, stepped_range

OWN_KEYS = ("params", "param_names")  # of a parameter group, which are not hyper-parameters
STEPPED = dict.fromkeys(("Adam", "DeepSpeedCPUAdam", "FusedAdam"), "AdamW")  # optimizers that keep the same states under the same names


def small_states(stage: DataParallel, optimizer: Optimizer | None) -> dict[str, dict]:
    """By parameter whose first element this rank owns: its group, its element-wise states' names, its other states."""
    said = {}
    for flat, where, part in first_parts(stage, optimizer):
        tensors = elementwise(flat, where, optimizer)
        state = optimizer.state.get(part, {})
        others = {key: value for key, value in state.items() if key not in tensors}
        said[where.name] = {"tensors": list(tensors), "others": others}
    for index, group in enumerate(optimizer.param_groups if optimizer is not None else []):
        parts = set(group["params"])
        for _, where, part in first_parts(stage, optimizer):
            if part in parts:
                said[where.name]["group"] = index
    return said


def first_parts(stage: DataParallel, optimizer: Optimizer | None) -> Iterator[tuple[FlatBuffer, ShardRange, nn.Parameter]]:
    """(buffer, part, what the optimizer steps) of the parameters whose first element this rank writes."""
    replicate = stage.groups.replicate
    if optimizer is None or replicate is not None and replicate.rank:
        return
    for flat in stage.flats:
        for part in flat.ranges(flat.reduce_slice):
            where = stepped_range(flat, part)
            if part.start == 0 and where is not None:
                yield flat, where, flat.shard_params[where]


def group_settings(optimizer: Optimizer | None) -> list[dict] | None:
    """The hyper-parameters of each group."""
    if optimizer is None:
        return None
    return [{key: value for key, value in group.items() if key not in OWN_KEYS} for group in optimizer.param_groups]


def check_optimizer(about: dict, saved: dict[str, dict], groups: list[dict] | None, optimizer: Optimizer,
                    stage: DataParallel) -> None:
    """Raise BadInput, before anything changes, when these states are not for this optimizer."""
    kind = type(optimizer).__name__
    if groups is None:
        raise BadInput("the checkpoint was saved without an optimizer: load it with optimizer=None")
    if STEPPED.get(kind, kind) != STEPPED.get(about["optimizer"], about["optimizer"]):
        raise BadInput(f"the checkpoint has the states of {about['optimizer']}, and the optimizer is {kind}: make the same "
                       "one, or load the model alone, with optimizer=None")
    if len(groups) != len(optimizer.param_groups):
        raise BadInput(f"the checkpoint's optimizer has {len(groups)} parameter groups, and this one "
                       f"{len(optimizer.param_groups)}")
    group_of = {part: index for index, group in enumerate(optimizer.param_groups) for part in group["params"]}
    for flat in stage.flats:
        for where, part in flat.shard_params.items():
            then, now = saved.get(where.name, {}).get("group"), group_of.get(part)
            if then != now:
                raise BadInput(f"{where.name!r} is {_in(then)} in the checkpoint, and {_in(now)} here: make the same groups")


def _in(group: int | None) -> str:
    return "in no parameter group" if group is None else f"in parameter group {group}"


def set_groups(optimizer: Optimizer, groups: list[dict]) -> None:
    for group, settings in zip(optimizer.param_groups, groups, strict=True):
        group.update(settings)


def with_others(others: dict[str, object], group: dict, part: torch.Tensor) -> dict[str, object]:
    """A parameter's states that are not element-wise, where the optimizer wants them: torch keeps step counts on the
    CPU, unless its kernel reads them on the device."""
    on_device = group.get("capturable") or group.get("fused")
    where = {key: part.device if on_device or key != "step" else "cpu" for key in others}
    return {key: value.to(where[key], copy=True) if isinstance(value, torch.Tensor) else value
            for key, value in others.items()}
