"""Whole parameters from their slices, and back: all-gathers a unit at a time. Collective: every rank must call it."""

from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import nn

from .errors import BadInput
from .zero.ddp import DataParallel


@contextmanager
def gathered(stage: DataParallel, unit):
    """The unit's parameters are whole inside."""
    was = unit.gathered
    if stage.shards_parameters:
        stage.gather(unit)
    try:
        yield
    finally:
        if stage.shards_parameters and not was:
            stage.release(unit)


def state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """What `model.state_dict()` would be on one process: whole parameters and persistent buffers, on every rank.

    Parameters are copies in their training dtype; tied names share one tensor.
    """
    stage, whole = model.zero, {}
    for unit in stage.units:
        with gathered(stage, unit):
            for flat in unit.flats:
                whole |= {flat.params[key]: view.detach().clone() for key, view in flat.views.items()}
    named = dict(model.named_parameters(remove_duplicate=False))
    return {name: whole[named[name]] if name in named else deepcopy(kept) for name, kept in type(model).state_dict(model).items()}


def load_state_dict(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Set parameters and persistent buffers from whole tensors (the same on every rank).

    Raises BadInput, before anything changes, that names a missing, unexpected or wrongly shaped tensor.
    """
    stage, named = model.zero, dict(model.named_parameters(remove_duplicate=False))
    mine = type(model).state_dict(model)
    for name in [*mine, *state]:
        if name not in state or name not in mine:
            raise BadInput(f"the state to load {'lacks' if name in mine else 'has an unexpected'} {name!r}")
        if state[name].shape != mine[name].shape:
            raise BadInput(f"{name!r} is {tuple(state[name].shape)} in the state to load, {tuple(mine[name].shape)} in the model")
    by_param = {named[name]: state[name] for name in mine if name in named}
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in state:
                buffer.copy_(state[name])
        for unit in stage.units:
            with gathered(stage, unit):
                for flat in unit.flats:
                    for key, param in flat.params.items():
                        flat.views[key].copy_(by_param[param])
                    flat.shard.copy_(flat.full[flat.own])
                    for place in flat.places if flat.steps_copies else []:
                        value = by_param[flat.params[place.name]].reshape(-1)[place.start : place.stop]
                        flat.part(flat.master, place).copy_(value)
