"""Small models for the checks of chapter 02: tied, frozen, with buffers, and on the meta device."""

import torch
from torch import Tensor, nn


def planned(model: nn.Module, buffers: bool = False) -> nn.Module:
    """The model as `deferred_init()` leaves it: parameters on the meta device, ties kept, buffers real.

    It is made real first, since the first random numbers on the meta device import much of torch, in each process anew.
    buffers: these on the meta device too, as under `torch.device("meta")`.
    """
    meta = {param: nn.Parameter(torch.empty_like(param, device="meta"), param.requires_grad)
            for param in model.parameters()}
    for module in model.modules():
        module._parameters.update({key: meta.get(param) for key, param in module._parameters.items()})
        if buffers:
            module._buffers.update({key: buffer.to("meta") for key, buffer in module._buffers.items()})
    return model


def tables(tied: bool = True) -> nn.Module:
    """An embedding, a layer, a head of the embedding's shape, which may be tied."""
    model = nn.ModuleDict({"embed": nn.Embedding(10, 4), "norm": nn.LayerNorm(4),
                           "head": nn.Linear(4, 10, bias=False)})
    if tied:
        model["head"].weight = model["embed"].weight
    return model


def zeroed(model: nn.Module) -> nn.Module:
    for param in model.parameters():
        param.data.zero_()
    return model


def three_names() -> nn.Module:
    """One tensor under three names, another under two; the names are not in alphabetical order."""
    model = nn.ModuleDict({"words": nn.Embedding(10, 4), "target": nn.Embedding(10, 4), "mix": nn.Linear(4, 4),
                           "copy": nn.Linear(4, 4), "head": nn.Linear(4, 10)})
    model["copy"].weight = model["mix"].weight
    model["target"].weight = model["head"].weight = model["words"].weight
    return model


def twice() -> nn.Module:
    """One module registered in two places."""
    first = nn.Linear(4, 4)
    return nn.ModuleDict({"first": first, "other": nn.Linear(4, 4), "again": first})


def frozen() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 2))


def half_planned() -> nn.Module:
    return nn.Sequential(planned(nn.Linear(3, 5)), nn.Linear(2, 3))


def buffered() -> nn.Module:
    """Three buffers, of 4, 1 and 8 bytes an element, not in alphabetical order; the last is in no checkpoint."""
    model = nn.ModuleDict({"layer": nn.Linear(3, 2)})
    model.register_buffer("mean", torch.zeros(5))
    model.register_buffer("seen", torch.zeros(3, dtype=torch.bool))
    model.register_buffer("positions", torch.arange(7), persistent=False)
    return model


def all_names(model: nn.Module) -> dict[str, Tensor]:
    """Parameters under every name, then buffers."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
