"""Bytes that travel between the processor and its memory, counted while they do, and the formulas they must equal.

An operation of PyTorch reads each of its tensors from memory and writes each result to it: `of_torch` watches the
operations and adds up. A kernel moves what its loads and stores name, without what their masks leave out: `of_triton`
adds that up in Triton's interpreter. Caches are ignored on both sides, because what matters are tensors that do not fit
into them.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy
import torch

from ..comm.torch_private import TorchDispatchMode, tree_leaves
from ..errors import BadInput

ACCESSES = {  # of Triton's interpreter: does it read, does it write? Descriptors of tensors come to the first two
    "create_masked_load": (True, False), "create_masked_store": (False, True),
    "create_atomic_rmw": (True, True), "create_atomic_cas": (True, True)}


@dataclass
class Traffic:
    """Bytes read from memory and written to it."""

    read: int = 0
    written: int = 0

    @property
    def total(self) -> int:
        return self.read + self.written


def adamw_bytes(n: int, element_size: int = 4) -> Traffic:
    """The fused step on n elements: reads p, g, m, v and writes p, m, v; p and g of `element_size`, m and v fp32."""
    return Traffic(n * (2 * element_size + 8), n * (element_size + 8))


def layer_norm_bytes(R: int, C: int, element_size: int = 4) -> tuple[Traffic, Traffic]:
    """The fused forward, which reads x and writes y; and backward, which reads dy and x and writes dx.

    Weights, their gradients and the two numbers per row are left out: for C and R in the hundreds they are about 1 %.
    """
    row = R * C * element_size
    return Traffic(row, row), Traffic(2 * row, row)


class _Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.traffic = Traffic()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        inputs = {id(leaf): leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if func.is_view or not outputs:  # a view moves nothing
            return result
        overwritten = func.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten.fill_, torch.ops.aten.zero_)
        self.traffic.read += sum(tensor.untyped_storage().nbytes() if 0 in tensor.stride() else tensor.nbytes
                                 for tensor in inputs.values() if not (overwritten and tensor is args[0]))
        self.traffic.written += sum(tensor.nbytes for tensor in outputs if "empty" not in func.name())
        return result


def of_torch(work: Callable[[], object]) -> Traffic:
    """What the PyTorch operations of `work()` move, autograd's included. A broadcast tensor is read once."""
    with _Watch() as watch:
        work()
    return watch.traffic


def of_triton(work: Callable[[], object]) -> Traffic:
    """What the kernels that `work()` runs in Triton's interpreter load and store, by pointers or by descriptors of tensors. An atomic
    operation reads and writes. Raises BadInput in a process whose kernels are compiled."""
    from .backend import INTERPRETED

    if not INTERPRETED:
        raise BadInput("a kernel's bytes are counted in Triton's interpreter: "
                       "set TRITON_INTERPRET=1 in the environment before Python starts")
    return of_interpreter(work)


def of_interpreter(work: Callable[[], object]) -> Traffic:
    """The same of kernels that `interpreted` has made, in any process."""
    from triton.runtime.interpreter import InterpreterBuilder

    traffic = Traffic()

    def counted(name: str, reads: bool, writes: bool) -> Callable:
        own = getattr(InterpreterBuilder, name)
        names = inspect.signature(own)  # by name, because Triton's versions differ in what else they hand over

        @functools.wraps(own)
        def counts(*args, **kwargs):
            given = names.bind(*args, **kwargs).arguments
            pointers, mask = given["ptrs" if "ptrs" in given else "ptr"], given.get("mask")
            elements = pointers.data.size if mask is None else int(numpy.asarray(mask.data).sum())
            nbytes = elements * pointers.dtype.element_ty.primitive_bitwidth // 8
            traffic.read += nbytes * reads
            traffic.written += nbytes * writes
            return own(*args, **kwargs)
        return counts

    counting: dict[str, Any] = {name: counted(name, *ways) for name, ways in ACCESSES.items()}
    with mock.patch.multiple(InterpreterBuilder, **counting):
        work()
    return traffic
