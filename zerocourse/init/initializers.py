"""Filling the parameters of one module as building it would have done. It communicates nothing and frees nothing."""

import inspect
import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..errors import BadInput

InitFn = Callable[[nn.Module], object]
RESETS = ("reset_parameters", "_reset_parameters")  # torch's own modules use both names


def initialise(around: Sequence[nn.Module], init_fn: InitFn | None) -> list[str]:
    """Fill the direct parameters of `around[0]`, and return the names of the functions that did it.

    around: the module, the module that contains it, and so on up to the whole model.
    init_fn: called alone if there is one. Otherwise everything that building the model would call is called in the same
    order: `reset_parameters()` of each of them from the inside out, and then for each of them the
    `_init_weights(module)` of the nearest model that contains it. (GPT-2's scaled residual projections, for example,
    are set by the attention that contains them, and so are T5's linear layers.) Raises BadInput when one of these
    functions reads parameters of another module, because those are on the meta device.
    """
    module = around[0]
    if init_fn is not None:
        return [_run(init_fn, "init_fn", module, module)]
    tried = []
    for node in around:
        resets = [reset for reset in RESETS if callable(getattr(node, reset, None))][:1]
        tried += [_run(getattr(node, reset), f"{type(node).__name__}.{reset}", module) for reset in resets]
    for index, node in enumerate(around):
        owner = next((outer for outer in around[index:] if _fills_modules(outer)), None)
        if owner is not None:
            tried.append(_run(owner._init_weights, f"{type(owner).__name__}._init_weights", module, node))
    return list(dict.fromkeys(tried))


def _run(initialiser: Callable, said: str, module: nn.Module, *args) -> str:
    try:
        initialiser(*args)
    except (RuntimeError, TypeError) as error:
        if not misses_values(error):
            raise
        raise BadInput(f"{said} cannot fill the {type(module).__name__} it is asked for, because it reads or replaces "
                       f"other parameters, which are hidden meanwhile ({error}): let it write in place") from error
    return said


def _fills_modules(module: nn.Module) -> bool:
    """Does it have an `_init_weights` that takes a module? (Others take no argument and fill their own parameters.)"""
    method = getattr(module, "_init_weights", None)
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind(module)
    except (TypeError, ValueError):
        return False
    return True


def misses_values(error: Exception) -> bool:
    """Does torch complain that a tensor on the meta device has no values?"""
    return re.search(r"(\b|_)meta\b|incompatible tensor type", str(error)) is not None


def unset(like: Tensor) -> Tensor:
    """A tensor of that shape on the CPU, in fp32 or wider, filled with a value that no initialiser writes."""
    low = like.dtype.is_floating_point and like.dtype.itemsize < 4
    memory = torch.empty_like(like, device="cpu", dtype=torch.float32 if low else like.dtype).detach()
    return memory.fill_(_mark(memory.dtype))


def is_unset(value: Tensor) -> bool:
    """Is any float still NaN, or are all integers still the largest one? (Booleans have no spare value.)"""
    if not value.numel() or value.dtype is torch.bool:
        return False
    value = torch.view_as_real(value.detach()) if value.is_complex() else value.detach()
    least = value.amin()  # NaN if any is, and unlike isnan() it takes no memory
    return bool(least.isnan()) if value.is_floating_point() else least.item() == _mark(value.dtype)


def _mark(dtype: torch.dtype) -> float | int:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return True if dtype is torch.bool else torch.iinfo(dtype).max
