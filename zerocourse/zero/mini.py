"""The whole idea of ZeRO in one file: reduce gradients, gather parameters, and free what other ranks store.

Every rank trains the same model on its own data. The model is cut into *units*: each entry of an outermost ModuleList
(a block) is one, and the root is the rest. A unit's parameters lie in one flat buffer of n elements, padded so that N
ranks can cut it into N equal slices: rank r owns slice r. Per unit, a rank has three tensors:

    full    (n,)             all parameters of the unit; those in the modules are views of it
    grad    (n,)             this rank's gradients, divided by N; None when there are none
    shard   (n,) or (n/N,)   what the optimizer steps: all of `full` at stage 0, this rank's slice from stage 1 on;
                             `shard.grad`, of the same shape, is the gradient averaged over the ranks

A stage says what happens to a unit at six moments, and that is all there is to it:

                     stage 0      stage 1          stage 2          stage 3
    pre_forward                                                     all-gather parameters
    post_forward                                                    free parameters
    pre_backward                                                    all-gather parameters
    post_backward                                  reduce-scatter   reduce-scatter, free parameters
    pre_step         all-reduce   reduce-scatter
    post_step                     all-gather       all-gather

    elements held    4Ψ           2Ψ + 2Ψ/N        Ψ + 3Ψ/N         4Ψ/N
    elements sent    2Ψ           2Ψ               2Ψ               3Ψ        (each times (N-1)/N)

Ψ is the number of parameters. Each has a gradient and two states of Adam, and a step has one backward. (gloo has no
reduce-scatter of its own: it all-reduces, and sends more.)

Mini is right for plain models. It refuses others with a sentence: weights tied over two units, parameters that are
frozen or unused, mixed dtypes, several parameter groups, an optimizer that looks at whole tensors, clipped gradients. It
overlaps nothing: while a collective runs, nobody computes. It does not average batch statistics, or recover from an
exception in the middle of a step; the stages proper, `zerocourse.shard`, do all of that.
Source: Rajbhandari et al. 2020, arXiv 1910.02054, section 5.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ..errors import BadInput


# -- the ranks, and the three collectives ------------------------------------------------------------------------------

def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def own_slice(flat: torch.Tensor) -> torch.Tensor:
    """Rank r owns slice r: a view (n/N,) of (n,)."""
    return flat.chunk(world_size())[dist.get_rank() if dist.is_initialized() else 0]


def all_reduce(flat: torch.Tensor) -> torch.Tensor:
    """Every rank gets the sum of all ranks' (n,)."""
    if dist.is_initialized():
        dist.all_reduce(flat)
    return flat


def reduce_scatter(flat: torch.Tensor) -> torch.Tensor:
    """Every rank gets its slice of that sum, (n/N,), in new memory."""
    summed = own_slice(flat).clone()
    if dist.is_initialized():
        dist.reduce_scatter(summed, list(flat.chunk(world_size())))
    return summed


def all_gather(flat: torch.Tensor, shard: torch.Tensor) -> None:
    """Every rank gets all ranks' shards (n/N,), one after the other, in `flat` (n,)."""
    own_slice(flat).copy_(shard)
    if dist.is_initialized():
        dist.all_gather(list(flat.chunk(world_size())), shard)


class MiniParameter(nn.Parameter):
    """Its gradient is in its unit: who looks for it here, as `clip_grad_norm_` does, would go on without one."""

    def __getattribute__(self, name: str) -> object:
        if name == "grad" and torch._C._current_graph_task_id() == -1:  # outside of a backward
            raise BadInput("mini has gradients in its units alone, and does not clip them: use zerocourse.shard")
        return super().__getattribute__(name)


# -- the stages --------------------------------------------------------------------------------------------------------

class MiniStage0:
    """A unit under data parallel: every rank holds everything, and the gradients are averaged before each step."""

    def __init__(self, name: str, params: dict[str, nn.Parameter]):
        values = torch.cat([param.detach().flatten() for param in params.values()])
        padding = -len(values) % world_size()
        self.full = nn.functional.pad(values, (0, padding))
        if dist.is_initialized():
            dist.broadcast(self.full, src=0)  # the ranks may have drawn different values
        self.name, self.params = name, params
        self.shapes = {param: param.shape for param in params.values()}
        self.sizes = [shape.numel() for shape in self.shapes.values()] + [padding]
        self.grad: torch.Tensor | None = None
        self.arrived: set[nn.Parameter] = set()  # their gradient has arrived in this backward; emptied when all have
        self.show_full()
        self.make_shard()

    def views(self, flat: torch.Tensor) -> dict[nn.Parameter, torch.Tensor]:
        """Where each parameter, or its gradient, lies in a flat buffer (n,)."""
        return {param: part.view(shape) for (param, shape), part in zip(self.shapes.items(), flat.split(self.sizes))}

    def show_full(self) -> None:
        """The modules compute with views of `full`."""
        for param, view in self.views(self.full).items():
            param.data = view

    def make_shard(self) -> None:
        self.shard = self.full

    pre_forward = post_forward = pre_backward = post_backward = post_step = lambda self: None  # a stage has something for some

    def on_gradient(self, param: nn.Parameter) -> None:
        """A parameter has its gradient: move it to `grad`. With the last one, the unit's backward is over."""
        self.grad = torch.zeros_like(self.full) if self.grad is None else self.grad
        self.views(self.grad)[param].add_(param.grad, alpha=1 / world_size())  # so the sum is the average
        param.grad = None
        self.arrived.add(param)
        if len(self.arrived) == len(self.params):
            self.arrived.clear()
            self.post_backward()

    def pre_step(self) -> None:
        if self.arrived or (self.grad is None and self.shard.grad is None):  # only some came, or none
            missing = next(name for name, param in self.params.items() if param not in self.arrived)
            raise BadInput(f"{missing!r} has no gradient at this step: call backward() first, with a loss that uses it")
        if self.grad is not None:
            self.reduce_gradient()

    def reduce_gradient(self) -> None:
        self.add_to_shard(all_reduce(self.grad))

    def add_to_shard(self, reduced: torch.Tensor) -> None:
        self.shard.grad = reduced if self.shard.grad is None else self.shard.grad + reduced
        self.grad = None


class MiniStage1(MiniStage0):
    """The optimizer's states are sharded: a rank steps its slice, then fetches those that the others stepped.

    An all-reduce is a reduce-scatter and then an all-gather; here the step runs between the two, and the traffic is the same.
    """

    def make_shard(self) -> None:
        self.shard = own_slice(self.full)

    def reduce_gradient(self) -> None:
        self.add_to_shard(reduce_scatter(self.grad))

    def post_step(self) -> None:
        all_gather(self.full, self.shard)


class MiniStage2(MiniStage1):
    """The gradients are sharded too: a unit's are reduced when its backward is over, and never all held."""

    def post_backward(self) -> None:
        self.reduce_gradient()


class MiniStage3(MiniStage2):
    """The parameters are sharded too: gathered before the unit computes, freed after, and empty in between."""

    def make_shard(self) -> None:
        self.shard = own_slice(self.full).clone()
        self.reshard()

    def unshard(self) -> None:
        """Gather the parameters into the storage that they had: what autograd saved in the forward are views of it."""
        storage = self.full.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.full.nbytes)
            all_gather(self.full, self.shard)
            self.show_full()

    def reshard(self) -> None:
        self.full.untyped_storage().resize_(0)
        for param in self.params.values():
            param.data = self.full.new_empty(0)

    def post_forward(self) -> None:
        # In a backward, checkpointing runs the forward again, and needs the parameters after it.
        if torch._C._current_graph_task_id() == -1:
            self.reshard()

    def post_backward(self) -> None:
        self.reduce_gradient()
        self.reshard()

    pre_forward = pre_backward = unshard
    post_step = reshard  # a unit that somebody unsharded by hand has the values from before the step


STAGES = (MiniStage0, MiniStage1, MiniStage2, MiniStage3)


# -- a model and its optimizer -----------------------------------------------------------------------------------------

def mini_shard(model: nn.Module, optimizer: Optimizer, stage: int) -> tuple[nn.Module, Optimizer]:
    """Shard both, in place. Then train as before, on every rank: `backward()`, `optimizer.step()`, `zero_grad()`.

    stage: 0 to 3. The optimizer has to work element by element, as Adam and SGD do. `model.mini_units` has the units;
    at stage 3 every rank calls their `unshard()` before it reads parameters. Raises BadInput for what mini cannot do.
    """
    refuse_what_is_not_plain(model, optimizer, stage)
    model.mini_units = [STAGES[stage](name, params) for name, params in cut(model).items()]
    for unit in model.mini_units:
        attach(unit, model.get_submodule(unit.name), optimizer)

    def zero_grad(set_to_none: bool = True) -> None:
        for unit in model.mini_units:
            unit.grad, unit.shard.grad, unit.arrived = None, None, set()

    model.zero_grad = optimizer.zero_grad = zero_grad
    optimizer.param_groups[0]["params"] = [unit.shard for unit in model.mini_units]
    return model, optimizer


def attach(unit: MiniStage0, module: nn.Module, optimizer: Optimizer) -> None:
    """Have PyTorch call the unit at its moments."""

    def after_forward(module: nn.Module, inputs: tuple, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        unit.post_forward()
        for tensor in output if isinstance(output, tuple) else [output]:
            if not isinstance(tensor, torch.Tensor):
                raise BadInput(f"{unit.name or 'root'} returns a {type(tensor).__name__}: let it return a tensor, or a tuple of them")
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: unit.pre_backward())

    module.register_forward_pre_hook(lambda *_: unit.pre_forward())
    module.register_forward_hook(after_forward)
    for param in unit.params.values():
        param.__class__ = MiniParameter
        param.register_post_accumulate_grad_hook(unit.on_gradient)
    optimizer.register_step_pre_hook(lambda *_: unit.pre_step())
    optimizer.register_step_post_hook(lambda *_: unit.post_step())


def cut(model: nn.Module) -> dict[str, dict[str, nn.Parameter]]:
    """The parameters of each unit: {"h.0": {"h.0.ln.weight": ..., ...}, "h.1": ..., "": those of the root}."""
    units: dict[str, dict[str, nn.Parameter]] = {name: {} for name in [*block_names(model), ""]}
    home_name: dict[nn.Parameter, str] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        unit_name = next((block for block in units if name.startswith(f"{block}.")), "")
        if param not in home_name:
            home_name[param], units[unit_name][name] = unit_name, param
        elif home_name[param] != unit_name:  # a weight that is tied within one unit is one parameter of it
            raise BadInput(f"{name!r} is tied over two units, {home_name[param] or 'root'} and {unit_name or 'root'}: untie it")
    return {name: params for name, params in units.items() if params}


def block_names(module: nn.Module, prefix: str = "") -> list[str]:
    """The entries of the outermost ModuleLists: h.0, h.1, ... (of a list of lists: the entries of the inner ones)."""
    names = []
    for name, child in module.named_children():
        is_block = isinstance(module, nn.ModuleList) and not isinstance(child, nn.ModuleList)
        names += [prefix + name] if is_block else block_names(child, f"{prefix}{name}.")
    return names


def refuse_what_is_not_plain(model: nn.Module, optimizer: Optimizer, stage: int) -> None:
    """Raise BadInput, a sentence, for what `zerocourse.shard` can do and mini cannot."""
    if type(stage) is not int or stage not in range(len(STAGES)):
        raise BadInput(f"stage is {stage!r}: say 0, 1, 2 or 3")
    if hasattr(model, "mini_units"):
        raise BadInput(f"the {type(model).__name__} is sharded already: build a new one")
    first = next(model.parameters())
    for name, param in model.named_parameters():
        if not param.requires_grad or param.dtype != first.dtype:
            raise BadInput(f"{name!r} is {param.dtype if param.requires_grad else 'frozen'}: mini trains every parameter, and all in "
                           f"one dtype, here {first.dtype}")
    if {"Adafactor", "LBFGS", "Lamb", "Muon", "SparseAdam"} & {kind.__name__ for kind in type(optimizer).__mro__}:
        raise BadInput(f"{type(optimizer).__name__} looks at whole tensors, and a rank steps slices: use one such as AdamW")
    groups, states = optimizer.param_groups, len(optimizer.state)
    if len(groups) > 1 or states:
        raise BadInput(f"the optimizer has {len(groups)} groups and {states} states: build a new one with one group")
    if different := set(groups[0]["params"]) ^ set(model.parameters()):
        raise BadInput(f"the optimizer and the model differ in {len(different)} parameters: build it from the model's")
