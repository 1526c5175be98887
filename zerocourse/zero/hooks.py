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

import weakref
from dataclasses import fields, is_dataclass

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
    """Hook every parameter of the unit that needs it; called again before each forward, for those just unfrozen.

    The hooks hold weak references: Python's collector does not see into them, and would never free a cycle through one.
    """
    for flat in unit.flats:
        trainable = {key for key, param in flat.params.items() if param.requires_grad}
        flat.expected = len(trainable)
        for key in trainable - flat.watched:
            flat.watched.add(key)

            def hook(param, stage=weakref.ref(stage), flat=weakref.ref(flat), key=key):
                begin_backward(stage())
                stage().on_gradient(flat(), key, param)

            flat.params[key].register_post_accumulate_grad_hook(hook)


def begin_backward(stage) -> None:
    """Once a backward: tell the stage, and have autograd call `end_backward` when all gradients are there."""
    if not stage.in_backward:
        stage.begin_backward()
        torch.autograd.Variable._execution_engine.queue_callback(stage.end_backward)


def backward_is_running() -> bool:
    """Is this thread inside autograd's backward?"""
    return torch._C._current_graph_task_id() != -1


def tensors_in(tree) -> list[torch.Tensor]:
    """All tensors in nested lists, tuples, dictionaries and dataclasses (which PyTorch's pytrees do not look into)."""
    found = []
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            found += tensors_in([getattr(leaf, field.name) for field in fields(leaf)])
    return found


def _before(stage, unit: Unit):
    def hook(module: nn.Module, args, kwargs):
        if backward_is_running():  # checkpointing computes the unit again
            begin_backward(stage)
        stage.pre_forward(unit)
        if not torch.is_grad_enabled():
            return None
        watch_gradients(stage, unit)
        if unit is stage.root or (unit.open and backward_is_running()):  # computed again: its forward has been counted
            return None
        views: dict[int, torch.Tensor] = {}
        edges: list[torch.Tensor] = []
        args = tuple(own_edges(arg, edges, views) for arg in args)
        kwargs = {name: own_edges(arg, edges, views) for name, arg in kwargs.items()}
        known = {id(view) for view in views.values()}
        edges += [tensor for tensor in tensors_in((args, kwargs)) if tensor.requires_grad and id(tensor) not in known]
        if edges:
            unit.open += 1

            def inputs_have_gradients(_):
                begin_backward(stage)
                unit.open = max(0, unit.open - 1)
                if unit.open == 0 and stage.in_backward:
                    stage.post_backward(unit)

            if len(edges) == 1:  # torch's hook for several holds the graph that holds it, until the collector comes round
                edges[0].register_hook(inputs_have_gradients)
            else:
                register_multi_grad_hook(edges, inputs_have_gradients)
        return args, kwargs

    return hook


def own_edges(thing, edges: list[torch.Tensor], views: dict[int, torch.Tensor]):
    """An argument as the unit gets it: with a view in place of a tensor that needs a gradient, also in tuples.

    So each unit has an edge of the graph of its own, which has its gradient when this unit's backward is over; the
    tensor itself has its gradient only when the backward of all its users is. Two views are chained: our hook is on the
    first, the unit gets the second. When it returns its input unchanged, the second view is its output, whose backward
    runs before the first's, so that `pre_backward` still comes before `post_backward`. A tensor that comes twice stays
    one tensor. What is in lists, dictionaries and other objects stays as it is, for the unit may want to change them.
    """
    if isinstance(thing, torch.Tensor) and thing.requires_grad and thing.layout is torch.strided:
        if id(thing) not in views:
            edges.append(thing.view_as(thing))
            views[id(thing)] = edges[-1].view_as(thing)
        return views[id(thing)]
    if isinstance(thing, tuple):
        items = [own_edges(item, edges, views) for item in thing]
        if any(item is not before for item, before in zip(items, thing, strict=True)):
            return type(thing)(*items) if hasattr(thing, "_fields") else tuple(items)
    return thing


def _after(stage, unit: Unit):
    def hook(module: nn.Module, args, output):
        begun_in = None  # the backward in which this forward's own backward began

        def begins(_):
            nonlocal begun_in
            begun_in = torch._C._current_graph_task_id()
            begin_backward(stage)
            stage.pre_backward(unit)

        def begins_late(_):
            if begun_in != torch._C._current_graph_task_id():
                begins(_)

        outputs = tensors_in(output)
        if torch.is_grad_enabled() and not outputs:  # an object we cannot look into: who knows when its backward comes
            unit.external = True
        stage.post_forward(unit)
        for tensor in outputs:
            if tensor.grad_fn is not None:
                # On the node and not on the tensor: one that has several of the outputs begins once.
                tensor.grad_fn.register_prehook(begins)
            if tensor._base is not None and tensor._base.grad_fn is not None:
                # A view that is changed in place later gets another node, and the old one takes no part in the backward.
                tensor._base.grad_fn.register_prehook(begins_late)

    return hook
