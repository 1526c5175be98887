"""Finds the first tensor on this rank that is not finite: NaN or infinite. It communicates nothing, and frees nothing.

A NaN spreads. One step later every parameter of every rank has it, and nothing says any more where it began. So each
rank looks at what it computes itself, before anything of it is sent: the outputs of its modules in the forward, and the
gradients of its parameters in the backward. It reads values, so on a GPU every look, one a module and one a parameter,
waits for the GPU: it is for finding a mistake, and not for training.
"""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn


class NotFinite:
    """While it is entered, notes the first tensor that is not finite: `with NotFinite(model) as watched: ...`

    first: ("output", module's name) or ("gradient", parameter's name); None as long as everything was finite. The model
    itself has the name "the model". A parameter of which the user's code takes the gradient elsewhere is not seen.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.first: tuple[str, str] | None = None
        self._handles: list = []

    def __enter__(self) -> "NotFinite":
        for name, module in self.model.named_modules():
            look = partial(self._look, "output", name or "the model")
            self._handles.append(module.register_forward_hook(lambda _, __, out, look=look: look(out)))
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                self._handles.append(param.register_hook(partial(self._look, "gradient", name)))
        return self

    def __exit__(self, *exception) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _look(self, what: str, name: str, value: object) -> None:
        if self.first is None and not all(is_finite(tensor) for tensor in tensors_in(value)):
            self.first = what, name


def is_finite(tensor: Tensor) -> bool:
    """Integers always are."""
    return bool(torch.isfinite(tensor.detach()).all())


def tensors_in(value: object) -> Iterable[Tensor]:
    """The tensors in a module's output: itself, or those in lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(each)
