"""Hands the optimizer this rank's slices in place of the parameters, and steps it buffer by buffer. It communicates nothing.

The optimizer stays the user's own object: its groups, hyper-parameters and hooks stay, `optimizer.step()` and
`optimizer.zero_grad()` go to the stage. What it steps are the shard parameters, one for each part of a parameter that lies
in this rank's slice of a flat buffer.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from types import MethodType

import torch
from torch import nn
from torch.optim import Optimizer

from ..comm.torch_private import global_step_hooks

from .buffers.buffer import FlatBuffer


UNCOUNTED_HOOKS: set[Callable] = set()  # hooks of optimizers that do not mind how often they are called


class BufferedStep:
    """`step()` updates everything; `step(flat, ...)` the shard parameters of these buffers alone.

    Gradients of master weights are in fp32, and only while their buffer is stepped.
    recount(flat): told when such a gradient was made or freed.
    """

    def __init__(self, optimizer: Optimizer, recount: Callable[[FlatBuffer], None] = lambda flat: None):
        self.optimizer, self.own_step, self.recount = optimizer, optimizer.step, recount
        self.begin()

    def begin(self, masters: Sequence[FlatBuffer] = ()) -> None:
        """A step of the stage begins. Groups may have changed since the last one. masters: buffers with master weights."""
        self.stepped = False  # has one call updated all buffers already?
        self.group_of = {param: index for index, group in enumerate(self.optimizer.param_groups) for param in group["params"]}
        self.masters = dict.fromkeys(masters)

    def __call__(self, *flats: FlatBuffer) -> object:
        at_once = not flats or is_seen_stepping(self.optimizer)
        if at_once and flats and self.stepped:
            return None
        self.stepped |= at_once
        masters = self.masters if at_once else [flat for flat in flats if flat in self.masters]
        for flat in masters:
            flat.publish_gradients()
            self.recount(flat)
        result = self.own_step() if at_once else self.step_alone(flats)
        for flat in masters:
            flat.withdraw_gradients()
            self.recount(flat)
        return result

    def step_alone(self, flats: Sequence[FlatBuffer]) -> object:
        """Step these buffers, as if the optimizer had no other parameters."""
        wanted: dict[int, list[nn.Parameter]] = {}
        for flat in flats:
            for param in flat.shard_params.values():
                if param in self.group_of:
                    wanted.setdefault(self.group_of[param], []).append(param)
        if not wanted:
            return None
        every = self.optimizer.param_groups
        try:
            self.optimizer.param_groups = [every[index] | {"params": params} for index, params in wanted.items()]
            return self.own_step()
        finally:
            self.optimizer.param_groups = every


def is_seen_stepping(optimizer: Optimizer) -> bool:
    """Would somebody notice several calls in one step? An optimizer that is not torch's may count them, unless its own class
    says `steps_in_parts`, and so may hooks."""
    hooks = [optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks,
             *global_step_hooks()]
    kind = type(optimizer)
    in_parts = kind.__module__.startswith("torch.optim") or vars(kind).get("steps_in_parts", False)
    return not in_parts or any(hook not in UNCOUNTED_HOOKS for each in hooks for hook in each.values())


def elementwise_states(optimizer: Optimizer | None, param: nn.Parameter | None) -> dict[str, torch.Tensor]:
    """The optimizer's states of a parameter that have an element for each of its elements, by name."""
    state = optimizer.state.get(param, {}) if optimizer is not None and param is not None else {}
    return {key: value for key, value in state.items() if isinstance(value, torch.Tensor) and value.shape == param.shape}


def take_over(optimizer: Optimizer, stage) -> None:
    """Give the optimizer this rank's shard parameters, group by group, and route its calls."""
    shards: dict[nn.Parameter, list[nn.Parameter]] = {}  # of each parameter, those in this rank's slices
    for flat in stage.flats:
        for part, shard_param in flat.shard_params.items():
            shards.setdefault(flat.params[part.name], []).append(shard_param)
    for extra in stage.extras:
        extra.before_take_over(optimizer)
    for group in optimizer.param_groups:
        if "param_names" in group:  # of an optimizer made from named_parameters()
            group["param_names"] = [name for name, param in zip(group["param_names"], group["params"], strict=True)
                                    for _ in shards.get(param, ())]
        group["params"] = [shard for param in group["params"] for shard in shards.get(param, ())]
    buffered = BufferedStep(optimizer, stage.meter.recount)

    @wraps(buffered.own_step)  # a scheduler that was made before has set `_wrapped_by_lr_sched` on it
    def step(optimizer: Optimizer, closure=None):
        buffered.begin([flat for flat in stage.flats if flat.steps_masters])
        return stage.step(buffered, closure)

    optimizer.step = MethodType(step, optimizer)  # a scheduler that is made later looks for a method's __func__
    optimizer.zero_grad = stage.zero_grad
    stage.optimizer = optimizer
    for extra in stage.extras:
        extra.after_take_over(optimizer, shards)
