"""Cuts a model's experts among the ranks of a group, in place: each keeps E/ep of them, and tokens travel to theirs.

The seam is the forward of a module of experts, `experts(x_NC, experts_Nk, weights_Nk)` with 3-D parameters: ours, and those of
Hugging Face's Mixtral and Qwen MoE. The module's own forward then runs on the rows that arrive, one expert a row with weight 1,
and the router's weights are applied at home. Router and shared experts stay whole on every rank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import wraps

from torch import Tensor, nn

from ...comm import Comm
from ...errors import BadInput
from .routing import by_expert, weighted_sum
from .token_exchange import announce, back_home, to_experts


@dataclass(frozen=True)
class ExpertPlan:
    """modules: names of the modules of experts, with * for a block's number. Their parameters have the experts along dimension 0, and
    `count` is the attribute with their number."""

    modules: str
    count: str = "num_experts"


def expert_parallel(model: nn.Module, comm: Comm, plan: ExpertPlan | None = None) -> nn.Module:
    """Cut the experts of `model`, which every rank has whole and alike, among the ranks of `comm`. Collective in each forward and
    backward from then on. Returns the model.

    The ranks have different samples. Afterwards gradients are to be averaged: of parameters with `expert_comm` over the ranks that
    have the same experts, of all others over all ranks (see `token_exchange`; `expert_groups` says so to ZeRO).
    Parameters stay the same objects, so an optimizer may be made before or afterwards.
    plan: where the experts are; None: modules with a number of experts and 3-D parameters, as transformers has them.
    Raises BadInput where there are none, where the ranks do not divide them, and for experts that were cut before or have no values yet.
    """
    found = experts_of(model, plan)
    count = "num_experts" if plan is None else plan.count
    for name, module in found.items():
        check(name, module, count, comm)
    for name, module in found.items():
        cut(name, module, count, comm)
    return model


def experts_of(model: nn.Module, plan: ExpertPlan | None) -> dict[str, nn.Module]:
    """Modules of experts by name. Raises BadInput where there are none."""
    if plan is not None:
        found = {name: module for name, module in model.named_modules() if fnmatchcase(name, plan.modules)}
        if not found:
            raise BadInput(f"the plan names {plan.modules!r}, which matches no module of this {type(model).__name__}")
        return found
    found = {name: module for name, module in model.named_modules()
             if isinstance(getattr(module, "num_experts", None), int) and any(param.dim() == 3 for param in module.parameters(recurse=False))}
    if not found:
        raise BadInput(f"{type(model).__name__} has no module with `num_experts` and 3-D parameters: give expert_parallel a `plan`, an "
                       "ExpertPlan with the name of its modules of experts")
    return found


def check(name: str, module: nn.Module, count: str, comm: Comm) -> None:
    experts = getattr(module, count)
    for key, param in module.named_parameters(recurse=False):
        if hasattr(param, "expert_comm"):
            raise BadInput(f"{name}.{key} was cut before: experts are cut once, when they are still whole")
        if param.is_meta:
            raise BadInput(f"{name}.{key} is on the meta device: every rank would draw the same experts for its part, so give it its "
                           "values before it is cut")
        if len(param) != experts:
            raise BadInput(f"{name}.{key} has {len(param)} rows, and {name} has {experts} experts: each parameter must have them "
                           "along its first dimension")
    if experts % comm.world_size:
        raise BadInput(f"{name} has {experts} experts, which {comm.world_size} ranks do not divide: every rank has equally many")


def cut(name: str, module: nn.Module, count: str, comm: Comm) -> None:
    """This rank's part of one module of experts, whose forward exchanges rows from then on."""
    experts, ranks = getattr(module, count), comm.world_size
    for param in module.parameters(recurse=False):  # the same objects, because an optimizer may have them already
        param.data, param.grad = param.detach().chunk(ranks)[comm.rank].clone(), None
        if ranks > 1:
            param.expert_comm = comm
    setattr(module, count, experts // ranks)
    if ranks > 1:
        module.forward = exchanging(module, name, experts, comm)


def exchanging(module: nn.Module, name: str, experts: int, comm: Comm) -> Callable:
    """The forward of a module of E/ep experts, as that of E."""
    forward = module.forward

    @wraps(forward)
    def run(x_NC: Tensor, experts_Nk: Tensor, weights_Nk: Tensor) -> Tensor:
        pairs = by_expert(experts_Nk, experts)
        coming = announce(pairs.counts_E, comm, name, experts_Nk.numel())
        rows_AC = to_experts(x_NC[pairs.tokens(experts_Nk.shape[1])], coming.trip, comm, name)
        made_AC = forward(rows_AC, coming.local_A[:, None], rows_AC.new_ones(len(rows_AC), 1))
        if not len(rows_AC):  # a loop over the experts that were chosen has computed nothing here, and the other ranks' backward waits for this one's
            made_AC = made_AC + rows_AC + sum(param.flatten()[:0].sum() for param in module.parameters(recurse=False))
        return weighted_sum(back_home(made_AC, coming.trip, comm, name), pairs, weights_Nk)

    return run
