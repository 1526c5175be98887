"""In which form autograd keeps tensors from the forward to the backward.

    with keeping(model, Int8()):
        loss = model(tokens, targets)
    loss.backward()

A packing turns a tensor that is saved into something smaller, or into something elsewhere, and back. Around a model whose
blocks are checkpointed (`checkpoint_blocks`) it gets their inputs alone, and all else is computed again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn


class Packing(Protocol):
    """How a saved tensor is kept. Every rank packs and unpacks the same tensors in the same order."""

    def pack(self, tensor: Tensor) -> object:
        """What is kept in place of the tensor, without any reference to it."""

    def unpack(self, packed: object) -> Tensor:
        """The tensor again, of its shape, dtype and device."""


@contextmanager
def keeping(model: nn.Module, packing: Packing, at_least: int = 1024) -> Iterator[None]:
    """Inside it, `packing` keeps what autograd saves of this model: floating-point tensors of `at_least` bytes.

    Parameters stay as they are: they are there anyway, and at stage 3 they come back when they are gathered. A tensor
    that is kept as it is must not be changed in place before the backward: RuntimeError, as autograd itself raises.
    """
    weights = {storage_of(param) for param in model.parameters()}

    def pack(tensor: Tensor) -> object:
        if not tensor.is_floating_point() or tensor.nbytes < at_least or storage_of(tensor) in weights:
            return tensor.detach(), tensor._version  # autograd must not keep the very tensor: it would keep itself
        return packing.pack(tensor.detach())

    def unpack(kept: object) -> Tensor:
        if not isinstance(kept, tuple):
            return packing.unpack(kept)
        tensor, version = kept
        if tensor._version != version and storage_of(tensor) not in weights:
            raise RuntimeError(f"a tensor of shape {tuple(tensor.shape)} that the backward needs has been modified by an "
                               f"inplace operation: it is at version {tensor._version}, and was saved at {version}")
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def storage_of(tensor: Tensor) -> int:
    """What views of one storage share."""
    return tensor.untyped_storage()._cdata
