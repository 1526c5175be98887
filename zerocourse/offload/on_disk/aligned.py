"""Memory that a disk reads and writes without a copy in between: it begins at a page, and its length is whole blocks.

A file opened with O_DIRECT moves whole blocks between the disk and such memory, past the page cache. `torch.empty` is
aligned to 64 bytes only.

Page-locked memory stays where it is, so that a GPU copies from it and to it by itself, while the processor goes on.
torch's own (`pin_memory=True`) is rounded up to a power of two, 5 GB to 8; what is locked here has the size that was asked for.
"""

import mmap
import weakref
from contextlib import suppress

import torch

from ...errors import OutOfMemory

BLOCK = 4096  # bytes: no disk has larger logical blocks, and no page is smaller


def whole_blocks(nbytes: int) -> int:
    """nbytes, rounded up to whole blocks."""
    return -(-nbytes // BLOCK) * BLOCK


def aligned_empty(numel: int, dtype: torch.dtype, locked_for: torch.device | None = None) -> torch.Tensor:
    """(numel,), zeros, on the CPU. Its memory begins at a page and goes on to the end of the last block.

    locked_for: the GPU that copies it: page-locked as long as the memory lives. Raises OutOfMemory where the system does not lock
        so much.
    """
    memory = mmap.mmap(-1, max(whole_blocks(numel * dtype.itemsize), BLOCK))
    tensor = torch.frombuffer(memory, dtype=dtype, count=max(numel, 1))  # which keeps the memory as long as it lives
    if locked_for is not None and numel:
        lock_pages(memory, tensor.data_ptr(), locked_for)
    return tensor if numel else tensor[:0]  # no operation on it, which a ledger would see before its tier knows it


def lock_pages(memory: mmap.mmap, address: int, device: torch.device) -> None:
    """Until the memory is given back. Raises OutOfMemory."""
    cuda = torch.cuda.cudart()
    if error := int(cuda.cudaHostRegister(address, len(memory), 0)):
        forget_error(device)
        raise OutOfMemory(f"{len(memory):,} bytes of host memory cannot be page-locked (CUDA error {error}): use less, or pin_memory=False")
    weakref.finalize(memory, unlock_pages, address, device).atexit = False  # a process that ends gives back everything


def unlock_pages(address: int, device: torch.device) -> None:
    """On whichever thread has dropped the last reference, which may have another device as its own."""
    torch.cuda.synchronize(device)  # the last copy out of it may still be under way
    torch.cuda.cudart().cudaHostUnregister(address)


def forget_error(device: torch.device) -> None:
    """CUDA remembers the error of a call that has failed until somebody asks for it. Torch asks after it has started a kernel, and
    would report this one as that kernel's: let a kernel do so here. (`torch.cuda.cudart()` has no cudaGetLastError.)"""
    with suppress(RuntimeError):
        torch.zeros(1, device=device)
