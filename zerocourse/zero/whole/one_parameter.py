"""One parameter of a sharded model: its fp32 value, its gradient and its optimizer's states, whole or this rank's part of them.

DeepSpeed's names. Those with `full` are collective: every rank must call them, for the same parameter; they sum one tensor over
the ranks, or send nothing. Those with `local` communicate nothing. All work at each stage, and wherever an offload keeps things.
Of experts that were cut (`parallel.experts`) `full` is all that the ranks with the same ones have, as in DeepSpeed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ...errors import BadInput
from ...layout.rankmap import ShardRange
from ..buffers.buffer import FlatBuffer
from ..ddp import DataParallel
from ..buffers.buffer import SHARDED
from ..optimizer import elementwise_states
from .consolidate import whole, write_whole

VALUE, GRADIENT = "fp32 value", "gradient"  # what is asked for; else the name of an optimizer's state


def safe_get_full_fp32_param(param: nn.Parameter) -> torch.Tensor | None:
    """The whole parameter as the optimizer steps it, in the parameter's shape: the fp32 master weights of half precision.
    Collective. None for integers, and for a parameter of no sharded model."""
    return get_full(param, VALUE)


def safe_get_full_grad(param: nn.Parameter) -> torch.Tensor | None:
    """The whole gradient, between backward and step: averaged over the ranks and added up over the micro-batches so far, in the
    dtype in which it is added up; in fp16 times the loss scale. Collective. None where there is none."""
    return get_full(param, GRADIENT)


def safe_get_full_optimizer_state(param: nn.Parameter, optim_state_key: str) -> torch.Tensor | None:
    """A whole state of the optimizer that has an element for each of the parameter's ("exp_avg"). Collective. None before the
    parameter's first step; raises BadInput for a name that the optimizer does not have."""
    return get_full(param, optim_state_key)


def safe_set_full_fp32_param(param: nn.Parameter, value: torch.Tensor) -> None:
    """Write the whole parameter, as `safe_get_full_fp32_param` returns it: in the optimizer, and rounded in the model.
    Collective: `value` is the same on every rank. Raises BadInput for a wrong shape."""
    set_full(param, value, VALUE)


def safe_set_full_grad(param: nn.Parameter, value: torch.Tensor) -> None:
    """Write the whole gradient. Collective. Raises BadInput where there is none yet, or for a wrong shape."""
    set_full(param, value, GRADIENT)


def safe_set_full_optimizer_state(param: nn.Parameter, value: torch.Tensor, optim_state_key: str) -> None:
    """Write a whole state of the optimizer. Collective. Raises BadInput where there is none yet, or for a wrong shape."""
    set_full(param, value, optim_state_key)


def safe_update_full_grad_vectorized(param_list: list[nn.Parameter], update_func: Callable) -> None:
    """Each parameter's whole gradient becomes `update_func(gradient, param)`; one without a gradient is passed over. Collective."""
    for param in param_list:
        gradient = get_full(param, GRADIENT)
        if gradient is not None:
            set_full(param, update_func(gradient, param), GRADIENT)


def safe_get_local_fp32_param(param: nn.Parameter) -> torch.Tensor | None:
    """This rank's part (1-D, empty where it has none) of what `safe_get_full_fp32_param` returns, as a copy."""
    return get_local(param, VALUE)


def safe_get_local_grad(param: nn.Parameter) -> torch.Tensor | None:
    """This rank's part (1-D) of the gradient, as a copy. Raises BadInput while it is not reduced (stages 0 and 1, between the
    micro-batches of a window)."""
    return get_local(param, GRADIENT)


def safe_get_local_optimizer_state(param: nn.Parameter, optim_state_key: str) -> torch.Tensor | None:
    """This rank's part (1-D) of a state of the optimizer, as a copy."""
    return get_local(param, optim_state_key)


def safe_set_local_fp32_param(param: nn.Parameter, value: torch.Tensor) -> None:
    """Write this rank's part (1-D). Raises BadInput below stage 3, where the other ranks have a copy of it."""
    set_local(param, value, VALUE)


def safe_set_local_grad(param: nn.Parameter, value: torch.Tensor) -> None:
    """Write this rank's part (1-D) of the gradient."""
    set_local(param, value, GRADIENT)


def safe_set_local_optimizer_state(param: nn.Parameter, value: torch.Tensor, optim_state_key: str) -> None:
    """Write this rank's part (1-D) of a state of the optimizer."""
    set_local(param, value, optim_state_key)


# -- what is behind them ---------------------------------------------------------------------------------------------------


def home_of(param: nn.Parameter) -> tuple[DataParallel, FlatBuffer, str] | None:
    """The stage, the buffer and the name of a parameter; None if it is not sharded, or of integers."""
    stage = getattr(param, SHARDED)() if hasattr(param, SHARDED) else None
    for flat in stage.flats if stage is not None else []:
        for key, each in flat.params.items():
            if each is param:
                return (stage, flat, key) if each.dtype.is_floating_point or each.dtype.is_complex else None
    return None


@torch.no_grad()
def get_full(param: nn.Parameter, what: str) -> torch.Tensor | None:
    home = home_of(param)
    if home is None or not prepare(*home, what):
        return None
    stage, flat, key = home
    dtype = flat.grad_dtype if what is GRADIENT else flat.master.dtype
    result = torch.zeros(param_numel(flat, key), dtype=dtype, device=flat.full.device)
    with parts_of(stage, flat, key, what) as parts:
        for part, values in parts.items():
            result[part.start : part.stop] = values
    if stage.shards_optimizer:
        flat.comm.all_reduce(result)  # each element is on one rank, and zero on the others
    return result.view(flat.layout.shapes[key])


@torch.no_grad()
def set_full(param: nn.Parameter, value: torch.Tensor, what: str) -> None:
    home = home_of(param)
    must_have(home, what, home is not None and prepare(*home, what))
    stage, flat, key = home
    check_shape(value, flat.layout.shapes[key], key)
    if what is not VALUE:
        with parts_of(stage, flat, key, what, writes=True) as parts:
            for part, values in parts.items():
                values.copy_(value.reshape(-1)[part.start : part.stop])
        return
    with whole(stage, stage.unit_of[flat]):
        write_whole(flat, {key: value})
    stage.written.note_shards()


@torch.no_grad()
def get_local(param: nn.Parameter, what: str) -> torch.Tensor | None:
    home = home_of(param)
    if home is None or what is GRADIENT and home[2] not in home[1].has_grad:
        return None
    check_local(*home, what)
    with parts_of(*home, what) as parts:
        if not parts:
            return home[1].full.new_empty(0, dtype=home[1].master.dtype) if what in (VALUE, GRADIENT) else None
        return torch.cat([values.to(param.device) for values in parts.values()])


@torch.no_grad()
def set_local(param: nn.Parameter, value: torch.Tensor, what: str) -> None:
    home = home_of(param)
    must_have(home, what, home is not None and (what is not GRADIENT or home[2] in home[1].has_grad))
    stage, flat, key = home
    check_local(*home, what)
    if what is VALUE and (not stage.shards_parameters or flat.gathered and flat.storage.nbytes):
        raise BadInput(f"safe_set_local_fp32_param({key!r}) would write this rank's part of what all ranks hold: call "
                       "safe_set_full_fp32_param on every rank")
    with parts_of(stage, flat, key, what, writes=True) as parts:
        must_have(home, what, bool(parts))
        check_shape(value, (sum(values.numel() for values in parts.values()),), key)
        for values, own in zip(parts.values(), value.split([values.numel() for values in parts.values()]), strict=True):
            values.copy_(own)
        if what is VALUE:
            flat.round_masters()
    stage.written.note_shards()


def prepare(stage: DataParallel, flat: FlatBuffer, key: str, what: str) -> bool:
    """Bring what is asked for up to date, on all ranks. Is it there? Raises BadInput for a state that the optimizer lacks."""
    if what is GRADIENT:
        stage.flush()
        return key in flat.has_grad and stage.backward is None
    stage.settle()
    if what is VALUE:
        return True
    with flat.at_hand():
        mine = sorted({name for part in ranges(flat, key) for name in elementwise_states(stage.optimizer, flat.shard_params[part])})
    found = sorted(set(sum(stage.groups.all_gather_object(mine), [])))
    if found and what not in found:
        raise BadInput(f"the optimizer has no state {what!r} for each element of {key!r}: there are {', '.join(found)}")
    return bool(found)


def ranges(flat: FlatBuffer, key: str) -> list[ShardRange]:
    return [part for part in flat.shard_params if part.name == key]


@contextmanager
def parts_of(stage: DataParallel, flat: FlatBuffer, key: str, what: str,
             writes: bool = False) -> Iterator[dict[ShardRange, torch.Tensor]]:
    """What this rank has of it (each 1-D), to be read, or written as well."""
    if what is GRADIENT:
        own = flat.reduced_gradient()
        yield {} if own is None else {part: flat.shard_view_of(own, part) for part in ranges(flat, key)}
        if writes:
            flat.gradient_was_written()
        return
    with flat.at_hand(writes=writes):
        if what is VALUE:
            yield {part: flat.master_of(part) for part in ranges(flat, key)}
        else:
            states = {part: elementwise_states(stage.optimizer, flat.shard_params[part]) for part in ranges(flat, key)}
            yield {part: of_part[what].view(-1) for part, of_part in states.items() if what in of_part}


def param_numel(flat: FlatBuffer, key: str) -> int:
    return flat.layout.shapes[key].numel()


def must_have(home: tuple | None, what: str, has: bool) -> None:
    if not has:
        raise BadInput(f"there is no {what} of {repr(home[2]) if home else 'this tensor'} to write: a value is a sharded parameter's, a "
                       "gradient is there between backward and step, and the optimizer's states from a parameter's first step on")


def check_local(stage: DataParallel, flat: FlatBuffer, key: str, what: str) -> None:
    if what is GRADIENT and (flat.unreduced or flat.deferred or flat.reduction is not None or flat.replicas.waiting is not None):
        raise BadInput(f"the gradient of {key!r} is not reduced yet: call safe_get_full_grad or safe_set_full_grad on every rank")
    if what is not GRADIENT and getattr(flat, "is_updating", False):
        raise BadInput(f"an update of {key!r} is under way (delay_after): call the function with `full` in its name on every rank, "
                       "which waits for it")


def check_shape(value: object, shape: tuple[int, ...], key: str) -> None:
    if not isinstance(value, torch.Tensor) or tuple(value.shape) != tuple(shape):
        given = tuple(value.shape) if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
        raise BadInput(f"what is to be written for {key!r} is {given}: it must be a tensor {tuple(shape)}")
