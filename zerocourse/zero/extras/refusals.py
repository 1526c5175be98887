"""What a sharded model cannot do, said in one sentence that names what can. Needed by: habits from unsharded training."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...autograd.graph import current_backward
from ...errors import BadInput
from ..buffers.buffer import SHARDED
from ..extra import Extra
from ..optimizer import UNCOUNTED_HOOKS

WHOLE_TENSORS = {"adafactor", "muon", "shampoo", "soap", "lamb", "lars"}  # optimizers that look at each of them by itself
ELEMENTWISE = "torch.optim", "zerocourse", "apex", "bitsandbytes", "deepspeed"  # packages whose optimizers are, but for those above
NOT_SHARDED = {"lbfgs", "sparseadam"}  # that look at all of the model at once, or at sparse gradients


def is_one_of(optimizer: Optimizer | None, names: set[str]) -> bool:
    """Is the optimizer of such a class, or of a subclass?"""
    return bool({base.__name__.lower() for base in type(optimizer).__mro__} & names)


def check_trainable(model: nn.Module, optimizer: Optimizer | None, has_whole: bool) -> None:
    """Raise BadInput for what cannot be sharded, and when one of the two is not what it should be."""
    if not isinstance(model, nn.Module):
        raise BadInput(f"model is {said(model)}: it must be a torch.nn.Module, and comes before the optimizer")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise BadInput(f"optimizer is {said(optimizer)}: it must be made already, such as "
                       "torch.optim.AdamW(model.parameters())")
    kind = type(model).__name__
    if hasattr(getattr(model, "zero", None), "shards_parameters"):
        raise BadInput(f"this {kind} is sharded already: shard a model once")
    if hasattr(model, "zero"):
        raise BadInput(f"this {kind} has something of its own called `zero`, where shard() puts the stage: rename it")
    for name, param in model.named_parameters():
        if isinstance(param, UninitializedTensorMixin):
            layer = type(model.get_submodule(name.rpartition(".")[0])).__name__
            raise BadInput(f"{name} of {layer} has no shape yet: run the model on one input first, or give the layer its sizes, and "
                           "shard it then")
        if hasattr(param, SHARDED):
            raise BadInput(f"parameter {name!r} is in another sharded model already: shard the model that holds all of it")
    if next(model.parameters(), None) is None:
        raise BadInput(f"{kind} has no parameters, so there is nothing to train")
    if is_one_of(optimizer, NOT_SHARDED):
        raise BadInput(f"{type(optimizer).__name__} looks at more than a rank has: use an optimizer whose update is element-wise, such "
                       "as AdamW or SGD")
    if is_one_of(optimizer, WHOLE_TENSORS) and not has_whole:
        raise BadInput(f"{type(optimizer).__name__} looks at whole tensors, and a rank has only slices: give shard "
                       'rank_map="greedy", with which each tensor is whole on one rank, or use an optimizer whose update is '
                       "element-wise, such as AdamW or SGD")
    if optimizer is not None and not has_whole and not is_element_wise(optimizer):
        warnings.warn(f"{type(optimizer).__name__} gets slices of tensors, as 1-D tensors: if its update looks at more than one element at a "
                      'time, as one that divides by a norm does, it trains otherwise than on one process; with rank_map="greedy" each tensor '
                      "is whole on one rank", stacklevel=4)
    known_to(optimizer.param_groups if optimizer is not None else [], model)


def is_element_wise(optimizer: Optimizer) -> bool:
    """Is its update known to be? One that says `steps_in_parts` has thought of it."""
    kinds = [base for base in type(optimizer).__mro__ if base not in (Optimizer, object)]
    return getattr(optimizer, "steps_in_parts", False) or any(base.__module__.startswith(ELEMENTWISE) for base in kinds)


def said(thing: object) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"of type {type(thing).__name__}"


def known_to(groups: list[dict], model: nn.Module, first: int = 0) -> None:
    """Raise BadInput when the optimizer's groups, numbered from `first`, hold what the model does not have."""
    params = set(model.parameters())
    for index, group in enumerate(groups, first):
        for param in group["params"]:
            if param not in params:
                raise BadInput(f"parameter group {index} of the optimizer holds a tensor {tuple(param.shape)} that is not "
                               "a parameter of the model: build the optimizer from model.parameters(), after the model has moved")


class Refusals(Extra):
    """What nobody should do before, and what the model, its modules and parameters refuse from then on."""

    @classmethod
    def check(cls, model: nn.Module, optimizer: Optimizer | None, has_whole: bool) -> None:
        check_trainable(model, optimizer, has_whole)

    def __init__(self, stage):
        self.frees_parameters = stage.shards_parameters
        refuse_habits(stage.model, stage.shards_parameters)

    def before_backward(self) -> None:
        self.check_no_graph()

    def before_reshard(self, flat) -> None:
        self.check_no_graph()

    def check_no_graph(self) -> None:
        if self.frees_parameters and current_backward() != -1 and torch.is_grad_enabled():
            raise BadInput("a backward with create_graph=True at stage 3 would free the parameters that a backward through it "
                           "needs: use stage 2 for a gradient penalty")


def refuse_habits(model: nn.Module, hidden: bool) -> None:
    """From now on the model, its modules and parameters refuse what would be silently wrong.

    hidden: are parameters freed while nobody computes with them?
    """
    watch_optimizers()
    watch_clipping()
    for module in model.modules():
        module._apply = stays(module, hidden)
    model.__deepcopy__ = refuse("a sharded model cannot be copied, since a copy would be one on this rank alone", "state_dict")
    model.load_state_dict = refuse("load_state_dict() of a sharded model would not reach what the optimizer steps", "load_state_dict")
    if hidden:
        for module in model.modules():
            module.state_dict = refuse("state_dict() under stage 3 would hold NaN, since this rank has slices", "state_dict",
                                       type(module).state_dict.__get__(module))
            if module is not model:
                module.load_state_dict = refuse("load_state_dict() under stage 3 would write into freed memory", "load_state_dict")


def refuse(why: str, instead: str, inner: Callable | None = None) -> Callable:
    """A method that raises BadInput. inner: what is called when torch itself comes by, on its way through the modules."""
    def call(*args, **kwargs):
        if inner is not None and kwargs.get("destination") is not None:
            return inner(*args, **kwargs)
        raise BadInput(f"{why}: call zerocourse.{instead} with the whole model on every rank")

    return call


@contextmanager
def on_meta(model: nn.Module) -> Iterator[None]:
    """Inside, `state_dict()` of the model's submodules has names and shapes, and no values. PEFT asks for names when it saves."""
    refusing = {module: module.state_dict for module in model.modules() if module is not model and "state_dict" in vars(module)}
    for module in refusing:
        module.state_dict = shapes_of(module)
    try:
        yield
    finally:
        for module, refusal in refusing.items():
            module.state_dict = refusal


def shapes_of(module: nn.Module) -> Callable[[], dict[str, torch.Tensor]]:
    def state_dict(*args, **kwargs):
        held = type(module).state_dict(module, *args, **kwargs | {"keep_vars": True})
        return held if kwargs.get("destination") is not None else {
            name: torch.empty(value.shape, dtype=value.dtype, device="meta") for name, value in held.items() if isinstance(value, torch.Tensor)}

    return state_dict


def stays(model: nn.Module, hidden: bool) -> Callable:
    """In place of `model._apply`, through which .to(), .half() and their like go: parameters must stay views of their buffer."""
    own = model._apply

    def apply(change: Callable, *args, **kwargs):
        for tensor in (*model.parameters(), *model.buffers()):
            probe = torch.empty(1, dtype=tensor.dtype, device=tensor.device)
            if change(probe) is not probe:
                raise BadInput(f"a sharded {type(model).__name__} keeps its dtype and device: say param_dtype=... and device=... "
                               "to zerocourse.shard")
        return model if hidden else own(change, *args, **kwargs)

    return apply


@cache
def watch_optimizers() -> None:
    """From now on, any optimizer that steps a sharded model's own parameters is refused: they get no gradients."""
    UNCOUNTED_HOOKS.add(ours)
    register_optimizer_step_pre_hook(ours)


def ours(optimizer: Optimizer, *_) -> None:
    """A hook before the step of every optimizer in this process."""
    if "add_param_group" not in vars(optimizer) and any(
            hasattr(param, SHARDED) for group in optimizer.param_groups for param in group["params"]):
        raise BadInput(f"this {type(optimizer).__name__} has parameters of a sharded model, which get no gradients: make it "
                       "first, and give it to shard(model, optimizer); a model has one optimizer, with a group for each part")


@cache
def watch_clipping() -> None:
    """From now on, torch's clip_grad_norm_ refuses parameters of a sharded model: it would see no gradient, or a rank's slices."""
    own = clip_grad._clip_grads_with_norm_

    @wraps(own)
    def look(parameters, *args, **kwargs):
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if any(hasattr(param, SHARDED) for param in parameters):
            raise BadInput("torch's clip_grad_norm_ on a sharded model would see no gradient, or the norm of this rank's slices "
                           "alone: call model.zero.clip_grad_norm_(max_norm) on every rank")
        return own(parameters, *args, **kwargs)

    clip_grad._clip_grads_with_norm_ = look
