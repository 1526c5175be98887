"""Turns PyTorch's module and autograd hooks into the verbs of a stage.

    pre_forward(unit)    before the unit computes            (also when activation checkpointing computes it again)
    post_forward(unit)   after it computed
    begin_backward()     autograd's first gradient is there
    pre_backward(unit)   the gradient of one of its outputs is there
    on_gradient(flat)    the gradient of one of its parameters is there, complete
    post_backward(unit)  the gradients of its inputs are there: the unit's backward is over on every rank,
                         also on a rank where some of its parameters were not used
    end_backward()       autograd is done

The order of verbs is the same on every rank, because it follows the units and not the parameters that happened to be
used. That is what keeps collectives in order without asking.
"""

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves

from .unit import Unit


def attach(stage) -> None:
    """Register the hooks of every unit on its module and of every parameter that records gradients."""
    for unit in stage.units:
        unit.module.register_forward_pre_hook(_before(stage, unit), with_kwargs=True, prepend=True)
        unit.module.register_forward_hook(_after(stage, unit))
        watch_gradients(stage, unit)


def watch_gradients(stage, unit: Unit) -> None:
    """Hook every parameter of the unit that needs it; called again before each forward, for those just unfrozen."""
    for flat in unit.flats:
        flat.expected = sum(param.requires_grad for param in flat.params.values())
        for key, param in flat.params.items():
            if param.requires_grad and param not in stage.watched:
                stage.watched.add(param)

                def hook(param, flat=flat, key=key):
                    begin_backward(stage)
                    stage.on_gradient(unit, flat, key, param)

                param.register_post_accumulate_grad_hook(hook)


def begin_backward(stage) -> None:
    """Once a backward: tell the stage, and have autograd call `end_backward` when all gradients are there."""
    if not stage.in_backward:
        stage.begin_backward()
        torch.autograd.Variable._execution_engine.queue_callback(stage.end_backward)


def backward_is_running() -> bool:
    """Is this thread inside autograd's backward?"""
    return torch._C._current_graph_task_id() != -1


def _differentiable(tree) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


def _before(stage, unit: Unit):
    def hook(module: nn.Module, args, kwargs):
        stage.pre_forward(unit)
        if not torch.is_grad_enabled():
            return
        unit.ran = True
        watch_gradients(stage, unit)
        inputs = _differentiable((args, kwargs))
        if inputs and unit is not stage.root:
            unit.open += 1

            def inputs_have_gradients(_):
                unit.open = max(0, unit.open - 1)
                if unit.open == 0:
                    begin_backward(stage)
                    stage.post_backward(unit)

            register_multi_grad_hook(inputs, inputs_have_gradients)

    return hook


def _after(stage, unit: Unit):
    def hook(module: nn.Module, args, output):
        stage.post_forward(unit)
        for tensor in _differentiable(output):

            def output_has_gradient(_):
                begin_backward(stage)
                stage.pre_backward(unit)

            tensor.register_hook(output_has_gradient)

    return hook
