"""Whole parameters from their slices, and back: all-gathers a unit at a time. Collective: every rank must call it."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import nn

from ...comm.torch_private import EXTRA_STATE_KEY
from ...errors import BadInput
from ..buffers.buffer import FlatBuffer
from ..ddp import DataParallel
from ..buffers.buffer import SHARDED
from ..passes.written import checksum
from .expert_rows import joined, own_rows, whole_shape
from ..buffers.unit import Unit


@contextmanager
def whole(stage: DataParallel, *units: Unit) -> Iterator[None]:
    """The parameters of these units are gathered inside (below stage 3 they always are), also after a forward in between."""
    fetched = [unit for unit in units if not unit.gathered]
    try:
        for unit in fetched:
            stage.unshard_unit(unit)
        for unit in units:
            unit.holds += 1
        yield
    finally:
        for unit in units:
            unit.holds -= 1
        for unit in reversed(fetched):
            stage.reshard_unit(unit)


@contextmanager
def gathered(*modules: nn.Module | nn.Parameter, write: bool = False) -> Iterator[None]:
    """Inside, the parameters of these parts of a sharded model are whole on every rank. Collective.

    The model can be run inside, and does not free them. To run it often, `generating` is the shorter way.
    write: what rank 0 wrote into them is kept, on all ranks. Without it they are there to be read: raises BadInput at the end
    that names a parameter which was written. At stages 0 to 2 parameters are always whole, and the rest is the same.
    An update that an offload has delayed is applied first.
    """
    params = {param for part in modules for param in ([part] if isinstance(part, nn.Parameter) else part.parameters())}
    stages = {getattr(param, SHARDED)() for param in params if hasattr(param, SHARDED)}
    if len(stages) != 1:
        raise BadInput("gathered() takes modules or parameters of one sharded model, and these are of "
                       f"{'several' if stages else 'none'}")
    stage = stages.pop()
    stage.settle()
    chosen = [(flat, key) for flat in stage.flats for key, param in flat.params.items() if param in params]
    with whole(stage, *dict.fromkeys(stage.unit_of[flat] for flat, _ in chosen)):
        before = {key: checksum(flat.views[key]) for flat, key in chosen if not write}
        yield
        with torch.no_grad():
            if write:
                for flat in dict.fromkeys(flat for flat, _ in chosen):
                    flat.groups.broadcast(flat.full, flat.name)
                    flat.keep_written()
                    stage.written.seen.add(flat)
            stage.written.note_shards()
            for flat, key in chosen:
                stage.written.note(flat, key)
            differ = [checksum(flat.views[key]) != before[key] for flat, key in chosen if not write]
            for key, differs in zip(before, torch.stack(differ).tolist() if differ else (), strict=True):
                if differs:  # all are read from the device at once
                    raise BadInput(f"parameter {key!r} was written inside gathered(), which forgets it: say gathered(..., write=True) "
                                   "to keep what rank 0 writes")


def names(model: nn.Module) -> dict[str, object]:
    """What the model's own `state_dict` names: its parameters and buffers themselves, and whatever else it adds."""
    return type(model).state_dict(model, keep_vars=True)


def state_dict(model: nn.Module, rank_0_only: bool = False, exclude_frozen: bool = False) -> dict[str, torch.Tensor]:
    """What `model.state_dict()` would be on one process: whole parameters and persistent buffers, on every rank.

    rank_0_only: on the CPU of the first rank; the others take part and get an empty dictionary.
    exclude_frozen: leave out parameters that do not require gradients, as of a base model under LoRA.
    Parameters are copies in their training dtype, with the experts of all ranks; tied names share one tensor. Raises BadInput
    for an entry that the model made out of parameters of which this rank has only slices.
    """
    stage, values = model.zero, {}
    stage.settle()
    keeps, where = not rank_0_only or not any(comm.rank for comm in stage.groups.comms), "cpu" if rank_0_only else stage.device
    wanted = {param for param in model.parameters() if param.requires_grad or not exclude_frozen}
    for unit in [unit for unit in stage.units if wanted & {*unit.params.values()}]:
        with whole(stage, unit):
            for flat in unit.flats:
                views = {flat.params[key]: view.detach() for key, view in flat.views.items() if flat.params[key] in wanted}
                every = {param: joined(param, view, flat.name) for param, view in views.items()}
                values |= {param: view.to(where, copy=True) for param, view in every.items()} if keeps else {}
    if not keeps:
        return {}
    state = {}
    for name, kept in names(model).items():
        if isinstance(kept, nn.Parameter):
            if kept in wanted:
                state[name] = values[kept]
        elif isinstance(kept, torch.Tensor):
            state[name] = kept.detach().to("cpu" if rank_0_only else kept.device, copy=True)
        else:
            state[name] = deepcopy(kept)
    return state


def load_state_dict(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Set parameters and persistent buffers from whole tensors (the same on every rank).

    What the model itself adds to its state, other than by `get_extra_state`, is passed over: only the model knows how to
    load it. Raises BadInput, before anything changes, that names a missing, unexpected or wrongly shaped tensor.
    """
    stage, mine = model.zero, names(model)
    stage.settle()
    for name in [*mine, *state]:
        if name not in state or name not in mine:
            raise BadInput(f"the state to load {'lacks' if name in mine else 'has an unexpected'} {name!r}")
        if isinstance(mine[name], torch.Tensor):
            given = tuple(state[name].shape) if isinstance(state[name], torch.Tensor) else f"a {type(state[name]).__name__}"
            if given != tuple(whole_shape(mine[name])):
                raise BadInput(f"{name!r} is {given} in the state to load, {tuple(whole_shape(mine[name]))} in the model")
    by_param = {kept: own_rows(kept, state[name]) for name, kept in mine.items() if isinstance(kept, nn.Parameter)}
    with torch.no_grad():
        for name, kept in mine.items():
            if name.endswith(EXTRA_STATE_KEY):
                model.get_submodule(name.removesuffix(EXTRA_STATE_KEY).removesuffix(".")).set_extra_state(state[name])
            elif isinstance(kept, torch.Tensor) and not isinstance(kept, nn.Parameter):
                kept.copy_(state[name])
        for unit in stage.units:
            with whole(stage, unit):
                for flat in unit.flats:
                    write_whole(flat, {key: by_param[param] for key, param in flat.params.items() if param in by_param})
        stage.written.note_shards()


def write_whole(flat: FlatBuffer, given: dict[str, torch.Tensor]) -> None:
    """Whole values of some of a gathered buffer's parameters, the same on every rank: for the model rounded, for the optimizer not."""
    for key, value in given.items():
        flat.views[key].copy_(value)
    with flat.at_hand(writes=True):
        flat.keep_written()
        for part in flat.shard_params if flat.steps_masters else []:
            if part.name in given:
                flat.master_of(part).copy_(given[part.name].reshape(-1)[part.start : part.stop])
