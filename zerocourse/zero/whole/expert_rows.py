"""Parameters of which other ranks have other rows: those of experts, which `parallel.experts` cuts. `joined` communicates.

Such a parameter has an attribute `expert_comm`, the Comm of the ranks that have the others. They have equally many rows, in the order
of their ranks, so that a checkpoint knows every expert by its number in the whole model.
"""

import torch
from torch import Tensor, nn

from ...errors import BadInput
from ...layout.rankmap import Layout
from ..buffers.groups import Groups


def whole_shape(param: nn.Parameter) -> torch.Size:
    """That of all ranks' rows together."""
    comm = getattr(param, "expert_comm", None)
    return param.shape if comm is None else torch.Size((len(param) * comm.world_size, *param.shape[1:]))


def first_element(param: nn.Parameter) -> int:
    """Where this rank's elements begin in the whole parameter."""
    comm = getattr(param, "expert_comm", None)
    return 0 if comm is None else comm.rank * param.numel()


def own_rows(param: nn.Parameter, whole: Tensor) -> Tensor:
    """This rank's rows of a whole tensor."""
    comm = getattr(param, "expert_comm", None)
    return whole if comm is None else whole.chunk(comm.world_size)[comm.rank]


def joined(param: nn.Parameter, values: Tensor, name: str) -> Tensor:
    """All ranks' rows of a tensor of the parameter's shape; `values` itself where this rank has all. Collective."""
    comm = getattr(param, "expert_comm", None)
    if comm is None:
        return values
    layout = Layout.split(values.numel() * comm.world_size, comm.world_size)
    every = values.new_empty(layout.padded)
    every[layout.slice(comm.rank)] = values.reshape(-1)
    comm.all_gather(every, layout, f"experts of {name}").wait()
    return every.view(-1, *values.shape[1:])


def check_experts(model: nn.Module, groups: Groups, owner: dict[str, int] | None, offload) -> None:
    """Raises BadInput where experts are cut and the groups do not say who has the same ones, and for what does not go with them."""
    cut = next((name for name, param in model.named_parameters() if hasattr(param, "expert_comm")), None)
    if cut is None:
        return
    if groups.experts is None:
        raise BadInput(f"{cut!r} has the experts of this rank alone: say comm=expert_groups(comms), from zerocourse.parallel.experts, so "
                       "that they are averaged over the ranks that have the same ones")
    if groups.replicate is not None or owner is not None:
        raise BadInput("experts that are cut go with flat slices over one group: leave out replicate and rank_map")
    if getattr(offload, "delays", False):
        raise BadInput("experts that are cut do not go with delayed updates: leave out delay_after")
