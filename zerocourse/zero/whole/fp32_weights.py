"""The whole model in the precision that the optimizer steps: all-gathers the fp32 master weights, a buffer at a time. Collective."""

import torch
from torch import nn

from .expert_rows import joined
from .consolidate import names, state_dict


@torch.no_grad()
def fp32_state_dict(model: nn.Module, rank_0_only: bool = False) -> dict[str, torch.Tensor]:
    """As `state_dict`, with the fp32 master weights in place of parameters in half precision: what `convert` makes of a
    checkpoint, of a model that trains.

    rank_0_only: on the CPU of the first rank; the others take part and get an empty dictionary.
    """
    stage, state = model.zero, state_dict(model, rank_0_only)
    keeps, exact = bool(state), {}
    for flat in [flat for flat in stage.flats if flat.master.dtype is not flat.dtype]:
        full = torch.zeros(flat.layout.padded, dtype=flat.master.dtype, device=flat.full.device)
        with flat.at_hand():
            for part in flat.ranges():
                flat.view_of(full, part.name).view(-1)[part.start : part.stop] = flat.master_of(part)
        if stage.shards_optimizer:
            flat.comm.all_gather(full, flat.layout, flat.name).wait()
        for key, param in flat.params.items():
            every = joined(param, flat.view_of(full, key), key)
            if keeps:
                exact[param] = every.to("cpu" if rank_0_only else full.device, copy=True)
    for name, kept in names(model).items() if keeps else ():
        if isinstance(kept, nn.Parameter) and kept in exact:
            state[name] = exact[kept]
    return state
