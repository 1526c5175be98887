"""Calls the methods of a stage from PyTorch's module and autograd hooks.

    pre_forward(unit)           before the unit computes      (also when activation checkpointing computes it again)
    post_forward(unit, failed)  after it computed             (also when its forward raised)
    begin_backward()            autograd begins
    pre_backward(pass, unit)    the gradient of one of the unit's outputs in this pass is there: its backward is about to compute
    on_gradient(flat, key, p)   the gradient of one of its parameters is there, complete
    end_backward()              autograd is done
"""

import sys
import weakref

import torch
from torch import nn

from ..autograd.compiled import eager
from ..autograd.graph import current_backward
from ..autograd.outputs import tensors_of
from ..comm.torch_private import DisableTorchFunctionSubclass, execution_engine
from .buffers.unit import Unit


def attach(stage) -> None:
    """Register the hooks of every unit on its module and of every trainable parameter."""
    for unit in stage.units:
        watch_module(stage, unit)
        watch_gradients(stage, unit)


def watch_module(stage, unit: Unit) -> None:
    """Call the stage before and after the unit's forward, and when the gradient of one of its outputs comes."""
    of_unit, weak = set(unit.params.values()), weakref.ref(stage)

    @eager
    def before(module: nn.Module, args):
        if current_backward() != -1:  # checkpointing computes the unit again, perhaps as the first thing in this backward
            ensure_backward(stage)
        stage.pre_forward(unit)

    @eager
    def watch(module: nn.Module, args, output):
        if not torch.is_grad_enabled():
            return
        of_pass = weak().active_pass

        def begins(_):
            ensure_backward(weak())
            weak().pre_backward(of_pass, unit)

        for tensor in tensors_of(output):
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(begins)
            if tensor._base is not None and tensor._base.grad_fn is not None:
                # A change in place gives a view a new node, so the node of its base is watched, too.
                tensor._base.grad_fn.register_prehook(begins)

    @eager
    def after(module: nn.Module, args, output):
        failed = output is None and sys.exc_info()[0] is not None
        if not failed:
            watch(module, args, output)
            if unit is stage.root and torch.is_grad_enabled() and not tensors_of(output):
                unit.stays_with_root = True  # no tensor to hook, so nobody knows when its backward comes
        stage.post_forward(unit, failed)

    unit.module.register_forward_pre_hook(before, prepend=True)
    for module in unit.module.modules() if unit is not stage.root else ():
        # The loss may use an intermediate value of a unit and not its output, so submodules with parameters are watched too.
        own = set(module.parameters(recurse=False))
        if own and module is not unit.module and own <= of_unit:
            module.register_forward_hook(watch)
    unit.module.register_forward_hook(after, always_call=True)


def watch_gradients(stage, unit: Unit) -> None:
    """Hook each trainable parameter of the unit, once; called before every forward, because parameters may have been unfrozen.

    The hooks hold weak references, because the garbage collector cannot see into C++ hooks: a cycle through one would leak.
    """
    for flat in unit.flats:
        trainable = [key for key, param in flat.params.items() if param.requires_grad]
        flat.trainable = len(trainable)
        for key in trainable:
            if key in flat.accumulators:
                continue
            param = flat.params[key]
            with torch.enable_grad(), DisableTorchFunctionSubclass():
                flat.accumulators[key] = param.view_as(param).grad_fn.next_functions[0][0]

            def hook(param, stage=weakref.ref(stage), flat=weakref.ref(flat), key=key):
                ensure_backward(stage())
                stage().on_gradient(flat(), key, param)

            param.register_post_accumulate_grad_hook(hook)


def ensure_backward(stage) -> None:
    """Called by every hook; the first call in a backward tells the stage, and has autograd call `end_backward` at the end."""
    if stage.backward is not None and stage.backward.end_callback() is None:  # it raised, so autograd has dropped the callback
        stage.recover()
    if stage.backward is None:
        stage.begin_backward()
        end = stage.end_backward  # a new bound method: autograd will have the only reference
        stage.backward.end_callback = weakref.ref(end)
        execution_engine.queue_callback(end)
