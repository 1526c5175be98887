"""Giving a tensor's memory back while views of it live on, and making what is read then NaN. It communicates nothing.

Stage 3 frees a unit's parameters after use and gathers them again later. The modules' parameters, and everything that
autograd saved of them, are views of one storage; so it is the storage that gives its memory back and later gets new
memory. PyTorch lets a freed storage be read, at address zero: the process dies. Here a freed storage on the CPU points
at pages full of NaN instead, a few physical megabytes mapped over and over (Linux). A tensor that someone kept then
reads as NaN, which no loss survives unseen. Each storage has pages of its own, so a write into one harms no other.
"""

import ctypes
import functools
import os
import sys
import weakref

import torch

from ..measure.storages import swap_memory
from . import pool

_PIECE = 4 << 20  # bytes of physical memory behind any amount of NaN; all bits set is NaN in every float format
_MOST_PIECES = 30_000  # a process may have some 65,000 mappings
_DONTNEED = 4  # madvise: forget what was written into these pages
_unused: dict[int, list[int]] = {}  # by size in bytes: pages whose storage is gone
_mapped = 0  # pieces


@functools.cache
def _libc() -> tuple[ctypes.CDLL, int] | None:
    """The C library and a file of NaN, or None where the system cannot map one."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    file = os.memfd_create("nan")
    os.write(file, b"\xff" * _PIECE)
    return libc, file


def _nan_pages(nbytes: int) -> int | None:
    """The address of `nbytes` (a multiple of the piece) of NaN that nobody else uses; None where there can be none."""
    global _mapped
    if _unused.get(nbytes):
        return _unused[nbytes].pop()
    if _libc() is None or _mapped + nbytes // _PIECE > _MOST_PIECES:
        return None
    _mapped += nbytes // _PIECE
    libc, file = _libc()
    none, read_write, private, fixed, anonymous = 0, 3, 0x02, 0x10, 0x20
    start = libc.mmap(None, nbytes, none, private | anonymous, -1, 0)
    if start is None or start == ctypes.c_void_p(-1).value:  # MAP_FAILED
        return None
    for offset in range(0, nbytes, _PIECE):  # private: a write stays in this process and in these pages
        libc.mmap(start + offset, _PIECE, read_write, private | fixed, file, 0)
    return start


class FreeableStorage:
    """The storage of one tensor: `free()` and `allocate()` by turns. While free, it holds 0 bytes."""

    def __init__(self, tensor: torch.Tensor):
        self.storage, self.nbytes = tensor.untyped_storage(), tensor.untyped_storage().nbytes()
        self._pooled: torch.UntypedStorage | None = None  # what the storage swapped for memory of the pool
        self._nan, self._span = None, -(-self.nbytes // _PIECE) * _PIECE
        if tensor.device.type == "cpu" and self.nbytes and hasattr(self.storage, "_swap_data_ptr_"):
            self._address = _nan_pages(self._span)
            if self._address is not None:
                self._nan = torch._C._construct_storage_from_data_pointer(self._address, tensor.device, 0)
                # Only the pages that no view can reach any more may go to another storage.
                weakref.finalize(self.storage, _unused.setdefault(self._span, []).append, self._address).atexit = False

    @property
    def held(self) -> bool:
        return self.storage.nbytes() == self.nbytes

    @property
    def readable(self) -> bool:
        """Does it read as NaN while free? Where it does not, reading it ends the process."""
        return self._nan is not None

    def free(self) -> None:
        if self.nbytes and self.held:
            if self._pooled is None:
                self.storage.resize_(0)
            else:
                swap_memory(self.storage, self._pooled)
                self._pooled = None  # the last reference: the memory goes back to the pool
            if self._nan is not None:
                _libc()[0].madvise(self._address, self._span, _DONTNEED)
                self.storage._swap_data_ptr_(self._nan)

    def allocate(self) -> None:
        """New memory, its content undefined."""
        if self.nbytes and not self.held:
            if self._nan is not None:
                self.storage._swap_data_ptr_(self._nan)
            swaps = hasattr(self.storage, "_swap_data_ptr_")
            self._pooled = pool.memory(self.nbytes, self.storage.device) if swaps else None
            if self._pooled is None:
                self.storage.resize_(self.nbytes)
            else:
                swap_memory(self.storage, self._pooled)
