"""Whole parameters from their slices, and back: all-gathers a unit at a time. Collective: every rank must call it."""

from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import nn

from ..errors import BadInput
from .ddp import DataParallel

EXTRA = torch.nn.modules.module._EXTRA_STATE_KEY_SUFFIX  # of what `get_extra_state` returns


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


def names(model: nn.Module) -> dict[str, object]:
    """What the model's own `state_dict` names: its parameters and buffers themselves, and whatever else it adds."""
    return type(model).state_dict(model, keep_vars=True)


def state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """What `model.state_dict()` would be on one process: whole parameters and persistent buffers, on every rank.

    Parameters are copies in their training dtype; tied names share one tensor. Raises BadInput for an entry that the
    model made out of parameters of which this rank has only slices.
    """
    stage, whole = model.zero, {}
    for unit in stage.units:
        with gathered(stage, unit):
            for flat in unit.flats:
                whole |= {flat.params[key]: view.detach().clone() for key, view in flat.views.items()}
    found = {}
    for name, kept in names(model).items():
        if isinstance(kept, nn.Parameter):
            found[name] = whole[kept]
        elif isinstance(kept, torch.Tensor):
            if kept.numel() and not kept.untyped_storage().nbytes():
                raise BadInput(f"{type(model).__name__}.state_dict() makes {name!r} out of a parameter of which a rank has a slice: "
                               "name the parameter itself")
            found[name] = kept.detach().clone()
        else:
            found[name] = deepcopy(kept)
    return found


def load_state_dict(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Set parameters and persistent buffers from whole tensors (the same on every rank).

    What the model itself adds to its state, other than by `get_extra_state`, is passed over: only the model knows how to
    load it. Raises BadInput, before anything changes, that names a missing, unexpected or wrongly shaped tensor.
    """
    stage, mine = model.zero, names(model)
    for name in [*mine, *state]:
        if name not in state or name not in mine:
            raise BadInput(f"the state to load {'lacks' if name in mine else 'has an unexpected'} {name!r}")
        if isinstance(mine[name], torch.Tensor):
            given = tuple(state[name].shape) if isinstance(state[name], torch.Tensor) else f"a {type(state[name]).__name__}"
            if given != tuple(mine[name].shape):
                raise BadInput(f"{name!r} is {given} in the state to load, {tuple(mine[name].shape)} in the model")
    by_param = {kept: state[name] for name, kept in mine.items() if isinstance(kept, nn.Parameter)}
    with torch.no_grad():
        for name, kept in mine.items():
            if name.endswith(EXTRA):
                model.get_submodule(name.removesuffix(EXTRA).removesuffix(".")).set_extra_state(state[name])
            elif isinstance(kept, torch.Tensor) and not isinstance(kept, nn.Parameter):
                kept.copy_(state[name])
        for unit in stage.units:
            with gathered(stage, unit):
                for flat in unit.flats:
                    given = {key: by_param[param] for key, param in flat.params.items() if param in by_param}
                    for key, value in given.items():
                        flat.views[key].copy_(value)
                    flat.shard.copy_(flat.full[flat.own])
                    for place in flat.shard_ranges if flat.steps_copies else []:
                        if place.name in given:
                            flat.part(flat.master, place).copy_(given[place.name].reshape(-1)[place.start : place.stop])
