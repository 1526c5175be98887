"""Giving a tensor's memory back while views of it live on. It communicates nothing.

Stage 3 frees a unit's parameters after use and gathers them again later. The modules' parameters, and everything that
autograd saved of them, are views of one storage; so it is the storage that gives its memory back and later gets new
memory. Who reads it meanwhile reads NaN, where the system allows that (`extras/nan_pages`).
"""

import torch

from ..measure.storages import swap_memory
from . import pool
from .nan_pages import NanPages


class FreeableStorage:
    """The storage of one tensor: `free()` and `allocate()` by turns. While free, it holds 0 bytes."""

    def __init__(self, tensor: torch.Tensor):
        self.storage, self.nbytes = tensor.untyped_storage(), tensor.untyped_storage().nbytes()
        self._nan = NanPages.of(self.storage)
        self._pooled: torch.UntypedStorage | None = None  # what the storage has exchanged for memory of the pool

    @property
    def held(self) -> bool:
        return self.storage.nbytes() == self.nbytes

    @property
    def readable(self) -> bool:
        """Does it read as NaN while it is free? If not, reading it then ends the process."""
        return self._nan is not None or self.storage.device.type == "meta"  # a fake tensor has nothing to read

    def free(self) -> None:
        if self.nbytes and self.held:
            if self._pooled is None:
                self.storage.resize_(0)
            else:
                swap_memory(self.storage, self._pooled)
                self._pooled = None  # the last reference: the memory goes back to the pool
            if self._nan is not None:
                self._nan.put(self.storage)

    def allocate(self) -> None:
        """New memory, its content undefined."""
        if self.nbytes and not self.held:
            if self._nan is not None:
                self._nan.take(self.storage)
            self._pooled = pool.memory(self.nbytes, self.storage.device)
            if self._pooled is None:
                self.storage.resize_(self.nbytes)
            else:
                swap_memory(self.storage, self._pooled)
