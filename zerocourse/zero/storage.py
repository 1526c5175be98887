"""Giving a tensor's memory back while views of it live on, and making what is read then NaN.

Stage 3 frees a unit's parameters after use and gathers them again later. The modules' parameters, and everything that
autograd saved of them, are views of one storage; so it is the storage that gives its memory back and later gets new
memory. PyTorch lets a freed storage be read, at address zero: the process dies. Here a freed storage on the CPU
points at pages full of NaN instead, one physical megabyte mapped over and over (Linux). A tensor that someone kept
then reads as NaN, which no loss survives unseen.
"""

import ctypes
import functools
import os
import sys

import torch

_PAGES = 1 << 20  # bytes of physical memory behind any amount of NaN; all bits set is NaN in every float format


@functools.cache
def _nan_pages(nbytes: int) -> int | None:
    """The address of `nbytes` of NaN, or None where the system cannot map them. `nbytes` is a power of two."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    none, read_write, private, fixed, anonymous = 0, 3, 0x02, 0x10, 0x20
    file = os.memfd_create("nan")
    os.write(file, b"\xff" * _PAGES)
    start = libc.mmap(None, nbytes, none, private | anonymous, -1, 0)
    for offset in range(0, nbytes, _PAGES):  # private: a write into freed memory stays where it is and harms nobody
        libc.mmap(start + offset, _PAGES, read_write, private | fixed, file, 0)
    os.close(file)
    return start


class FreeableStorage:
    """The memory of one tensor: `free()` and `allocate()` by turns. While free, its storage holds 0 bytes."""

    def __init__(self, tensor: torch.Tensor):
        self.storage, self.nbytes = tensor.untyped_storage(), tensor.untyped_storage().nbytes()
        self._nan = None
        if tensor.device.type == "cpu" and self.nbytes and hasattr(self.storage, "_swap_data_ptr_"):
            address = _nan_pages(max(_PAGES, 1 << (self.nbytes - 1).bit_length()))
            if address is not None:
                self._nan = torch._C._construct_storage_from_data_pointer(address, tensor.device, 0)

    @property
    def held(self) -> bool:
        return self.storage.nbytes() == self.nbytes

    @property
    def readable(self) -> bool:
        """Does it read as NaN while free? Where it does not, reading it ends the process."""
        return self._nan is not None

    def free(self) -> None:
        if self.nbytes and self.held:
            self.storage.resize_(0)
            if self._nan is not None:
                self.storage._swap_data_ptr_(self._nan)

    def allocate(self) -> None:
        """New memory, its content undefined."""
        if self.nbytes and not self.held:
            if self._nan is not None:
                self.storage._swap_data_ptr_(self._nan)
            self.storage.resize_(self.nbytes)
