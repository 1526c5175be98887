"""Values that an `__init__` gives a parameter by itself: `nn.Parameter(torch.ones(4))`. It communicates nothing.

Under `deferred_init` a parameter loses its memory when its module registers it. Mostly there is nothing in it: layers take
`torch.empty`, and fill it by initialisers that run again later. What was made by `torch.ones`, `torch.randn` and the like, or
computed from such, is kept beside the parameter, for where no initialiser fills it. Memory of which nobody knows that it was
filled counts as empty.
"""

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from ..comm.torch_private import tree_leaves

VALUES = "_zerocourse_given"  # of a parameter on the meta device: its values (in its shape)
FACTORIES = {"ones", "zeros", "full", "eye", "arange", "linspace", "logspace", "tensor", "as_tensor", "scalar_tensor", "from_numpy", "rand",
             "randn", "randint", "randperm", "normal"}
FACTORIES |= {f"{name}_like" for name in FACTORIES} | {f"new_{name}" for name in FACTORIES}
FILLS = {"fill_", "zero_", "normal_", "uniform_", "copy_", "random_", "bernoulli_", "exponential_", "log_normal_", "cauchy_", "geometric_"}
EMPTY = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}


class GivenValues(TorchFunctionMode):
    """Knows which memory has been filled by the operations inside."""

    def __init__(self):
        super().__init__()
        self.filled: dict[int, StorageWeakRef] = {}  # a reference keeps the key from being used for another storage

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "")
        if name not in EMPTY:
            for tensor in tree_leaves(result):
                if type(tensor) in (Tensor, torch.nn.Parameter) and not tensor.is_meta and self.fills(name, tensor, args, kwargs):
                    reference = StorageWeakRef(tensor.untyped_storage())
                    self.filled[reference.cdata] = reference
        return result

    def fills(self, name: str, result: Tensor, args: tuple, kwargs: dict | None) -> bool:
        if name in FACTORIES:
            return True
        if name in FILLS:
            return result.numel() * result.element_size() == result.untyped_storage().nbytes()
        given = [each for each in tree_leaves((args, kwargs or {})) if isinstance(each, Tensor)]
        return bool(given) and all(each in self for each in given)

    def __contains__(self, tensor: Tensor) -> bool:
        """Was all of the memory that this tensor stands on filled?"""
        if tensor.is_meta or type(tensor) not in (Tensor, torch.nn.Parameter):
            return False
        return StorageWeakRef(tensor.untyped_storage()).cdata in self.filled
