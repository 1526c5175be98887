"""Memory that reads as NaN. Needed by: `kept = block.weight.data`, read after stage 3 has freed the block.

PyTorch lets a storage without memory be read, at address zero: the process dies. So a freed storage on the CPU points at
pages full of NaN, a few physical megabytes mapped over and over (Linux), and a tensor that someone kept reads as NaN,
which no loss survives unseen. Each storage has pages of its own, so a write into one harms no other.

On a GPU there are none: a kernel that reads such a tensor ends with "an illegal memory access", and with it all of CUDA in the
process. It is a plain tensor, of which only its kernels know that they read it, so nothing says a sentence before. With
CUDA_LAUNCH_BLOCKING=1 the error comes at the line that reads. (The parameter itself is hidden meanwhile: see `hidden`.)
"""

import ctypes
import functools
import os
import sys
import weakref

import torch

from ..comm.torch_private import storage_from_pointer

_PIECE = 4 << 20  # bytes of physical memory behind any amount of NaN; all bits set is NaN in every float format
_MOST_PIECES = 30_000  # a process may have some 65,000 mappings
_DONTNEED = 4  # madvise: forget what was written into these pages
_unused: dict[int, list[int]] = {}  # by size in bytes: pages whose storage is gone
_mapped = 0  # pieces


class NanPages:
    """The pages of one storage. `put` points the storage at them, `take` points it back; by turns."""

    def __init__(self, storage: torch.UntypedStorage, address: int, nbytes: int):
        self._address, self._nbytes = address, nbytes
        self._pages = storage_from_pointer(address, torch.device("cpu"), 0)
        # Only the pages that no view can reach any more may go to another storage.
        weakref.finalize(storage, _unused.setdefault(nbytes, []).append, address).atexit = False

    @classmethod
    def of(cls, storage: torch.UntypedStorage) -> "NanPages | None":
        """Pages for this storage; None where there can be none: on a GPU, on other systems than Linux, for 0 bytes."""
        if storage.device.type != "cpu" or not storage.nbytes() or not hasattr(storage, "_swap_data_ptr_"):
            return None
        nbytes = -(-storage.nbytes() // _PIECE) * _PIECE
        address = _unused[nbytes].pop() if _unused.get(nbytes) else _map(nbytes)
        return None if address is None else cls(storage, address, nbytes)

    def put(self, storage: torch.UntypedStorage) -> None:
        _libc()[0].madvise(self._address, self._nbytes, _DONTNEED)
        storage._swap_data_ptr_(self._pages)

    def take(self, storage: torch.UntypedStorage) -> None:
        storage._swap_data_ptr_(self._pages)


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


def _map(nbytes: int) -> int | None:
    """The address of `nbytes` (a multiple of the piece) of NaN that nobody else uses."""
    global _mapped
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
