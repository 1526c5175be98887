"""Hands the optimizer this rank's slices in place of the parameters, and steps it buffer by buffer. It communicates nothing.

The optimizer stays the user's own object: its groups, hyper-parameters and hooks stay, `optimizer.step()` and
`optimizer.zero_grad()` go to the stage. What it steps are the shard parameters, one for each part of a parameter that lies
in this rank's slice of a flat buffer.
"""

from functools import wraps
from types import MethodType

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import BadInput
from ..layout.rankmap import ShardRange
from .buffer import FlatBuffer
from .extras.refusals import known_to, refuse_scaler


class BufferedStep:
    """`step()` updates everything; `step(flat, ...)` the shard parameters of these buffers alone."""

    def __init__(self, optimizer: Optimizer):
        self.optimizer, self.own_step = optimizer, optimizer.step
        self.homes: dict[torch.Tensor, int] = {}  # the group of each shard parameter
        self.stepped = False  # everything, in this step of the stage

    @property
    def goes_by_buffer(self) -> bool:
        """Would nobody notice several calls? An optimizer that is not torch's may count them, and so may hooks."""
        hooked = self.optimizer._optimizer_step_pre_hooks or self.optimizer._optimizer_step_post_hooks
        return type(self.optimizer).__module__.startswith("torch.optim") and not hooked

    def __call__(self, *flats: FlatBuffer) -> object:
        if not flats or not self.goes_by_buffer:
            self.stepped, stepped = True, self.stepped
            return None if flats and stepped else self.own_step()
        groups = self.optimizer.param_groups
        whole = [group["params"] for group in groups]
        if len(self.homes) != sum(map(len, whole)):  # a group was added
            self.homes = {part: index for index, params in enumerate(whole) for part in params}
        wanted: list[list[nn.Parameter]] = [[] for _ in groups]
        for flat in flats:
            for part in flat.shard_params.values():
                if part in self.homes:
                    wanted[self.homes[part]].append(part)
        if not any(wanted):
            return None
        try:
            for group, params in zip(groups, wanted, strict=True):
                group["params"] = params
            return self.own_step()
        finally:
            for group, params in zip(groups, whole, strict=True):
                group["params"] = params


def take_over(optimizer: Optimizer, stage) -> None:
    """Give the optimizer this rank's shard parameters, group by group, and route its calls."""
    parts = {}
    for flat in stage.flats:
        for where in flat.shard_ranges:
            param, part = flat.params[where.name], flat.shard_params[where.name]
            parts[param] = part
            if param in optimizer.state:  # of a checkpoint, or made by the constructor (Adagrad)
                optimizer.state[part] = {key: cut(value, key, param, where, part) for key, value in optimizer.state[param].items()}
    for param in stage.model.parameters():
        optimizer.state.pop(param, None)
    for group in optimizer.param_groups:
        if "param_names" in group:  # of an optimizer made from named_parameters()
            group["param_names"] = [name for name, param in zip(group["param_names"], group["params"], strict=True) if param in parts]
        group["params"] = [parts[param] for param in group["params"] if param in parts]
    buffered, own_add = BufferedStep(optimizer), optimizer.add_param_group

    @wraps(buffered.own_step)  # a scheduler made before leaves a mark there, and looks for it
    def step(optimizer: Optimizer, closure=None):
        refuse_scaler(optimizer)
        buffered.stepped = False
        return stage.step(buffered, closure)

    def add_param_group(group: dict) -> None:
        given = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
        params = [each[1] if isinstance(each, tuple) else each for each in given]  # (name, parameter) or the parameter
        known_to([group | {"params": params}], stage.model, first=len(optimizer.param_groups))
        own_add(group | {"params": [(each[0], parts[param]) if isinstance(each, tuple) else parts[param]
                                    for each, param in zip(given, params, strict=True) if param in parts]})

    optimizer._step_supports_amp_scaling = True  # so GradScaler calls `step` on every rank, and leaves its mark
    optimizer.step = MethodType(step, optimizer)  # a scheduler made later takes it for a method
    optimizer.add_param_group, optimizer.zero_grad = add_param_group, stage.zero_grad


def cut(value: object, key: str, param: torch.Tensor, where: ShardRange, part: nn.Parameter) -> object:
    """This rank's part of an optimizer's state, when it has an element for each of the parameter's."""
    if not isinstance(value, torch.Tensor) or key == "step" or value.shape != param.shape:
        return value
    if value.is_meta:
        raise BadInput(f"the optimizer made its state {key!r} on the meta device, where it has no values: "
                       "make the model real (zerocourse.materialize_model) before this optimizer")
    return value.reshape(-1)[where.start : where.stop].to(part, copy=True)
