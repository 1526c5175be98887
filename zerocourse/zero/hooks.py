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
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from ..autograd.compiled import eager
from ..autograd.graph import current_backward, will_run
from ..autograd.outputs import tensors_of
from ..comm.torch_private import DisableTorchFunctionSubclass, execution_engine
from .buffers.unit import Unit


LEFT = "_zerocourse_left"  # marks a tensor that a forward has left at a module


def attach(stage) -> None:
    """Register the hooks of every unit on its module and of every trainable parameter."""
    for unit in stage.units:
        watch_module(stage, unit)
        watch_gradients(stage, unit)


def watch_module(stage, unit: Unit) -> None:
    """Call the stage before and after the unit's forward, and when the gradient of one of its outputs comes."""
    of_unit, weak = set(unit.params.values()), weakref.ref(stage)
    # What the root has is gathered throughout, so only what the model itself leaves behind matters there.
    attributes = [vars(module) for module in ([unit.module] if unit is stage.root else unit.module.modules())]
    given: set = set()  # nodes of its inputs: it may return them as they came, and they are no work of its own

    @eager
    def before(module: nn.Module, args, kwargs):
        if current_backward() != -1:  # checkpointing computes the unit again, perhaps as the first thing in this backward
            with torch.no_grad():  # which reentrant checkpointing undoes for what it computes again
                ensure_backward(stage)
        stage.pre_forward(unit)
        given.clear()
        if torch.is_grad_enabled():
            given.update(nodes_of(tensors_of((args, kwargs))))

    @eager
    def watch(module: nn.Module, args, output):
        if not torch.is_grad_enabled():
            return
        of_pass = weak().active_pass

        def begins(_):
            if trains(weak(), unit):
                ensure_backward(weak())
                weak().pre_backward(of_pass, unit)

        for node in nodes_of(tensors_of(output)):
            if node not in given:
                node.register_prehook(begins)

    @eager
    def after(module: nn.Module, args, output):
        failed = output is None and sys.exc_info()[0] is not None
        if not failed and torch.is_grad_enabled():
            found = [*tensors_of(output), *left_in(attributes)]
            watch(module, args, found)
            if not found and (unit is stage.root or next(module.parameters(recurse=False), None) is not None):
                unit.stays_with_root = True  # no tensor to hook, so nobody knows when its backward comes
        given.clear()  # nodes keep their graph alive
        stage.post_forward(unit, failed)

    unit.module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
    for module in unit.module.modules() if unit is not stage.root else ():
        # The loss may use an intermediate value of a unit and not its output, so submodules with parameters are watched too.
        own = set(module.parameters(recurse=False))
        if own and module is not unit.module and own <= of_unit:
            module.register_forward_hook(watch)
    unit.module.register_forward_hook(after, always_call=True)


def trains(stage, unit: Unit) -> bool:
    """Is what autograd runs a backward of the stage? Below stage 3 torch.autograd.grad() for an input, which brings no parameter a gradient
    although the unit has some to bring, is this rank's own affair: the others may not ask for it."""
    return (stage.backward is not None or stage.shards_parameters or not any(param.requires_grad for param in unit.params.values())
            or any(will_run(node) for flat in stage.flats for node in flat.accumulators.values()))


def nodes_of(tensors: Iterable[torch.Tensor]) -> Iterator:
    """The nodes that made these tensors. A change in place gives a view a new one, so the node of its base is there, too."""
    for tensor in tensors:
        for each in (tensor, tensor._base):
            if each is not None and each.grad_fn is not None:
                yield each.grad_fn


def left_in(attributes: Iterable[dict]) -> Iterator[torch.Tensor]:
    """Tensors that this forward has left among these attributes of modules, such as a penalty."""
    for of_module in attributes:
        for value in of_module.values():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None and not hasattr(value, LEFT):
                setattr(value, LEFT, True)  # what stays there is not hooked again by the next forward
                yield value


def watch_gradients(stage, unit: Unit) -> None:
    """Hook each trainable parameter of the unit, once; called before every forward, because parameters may have been unfrozen.

    The hooks hold weak references, because the garbage collector cannot see into C++ hooks: a cycle through one would leak.
    """
    for flat in unit.flats:
        for key in [key for key, param in flat.params.items() if param.requires_grad and key not in flat.accumulators]:
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
