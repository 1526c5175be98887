"""Memory for buffers that are taken and freed at every step, handed out again and again. Needed by: large units on a CPU.

A unit's bucket and its gathered parameters live for a moment, and the next unit, or the next step, wants as much again.
malloc gives such large blocks back to the system (glibc every block above 32 MiB) and takes them anew, and each page
that is taken anew costs a page fault, in which the system fills it with zeros. Here a block that nobody uses any more is
kept for the next buffer of its size, and the system is told that it may take the pages when it needs them (MADV_FREE): so
an idle block costs nothing that anybody else could use, and whoever gets the block finds its pages there, unless they were
needed. There are never more idle blocks than were once in use. A GPU's allocator does all this by itself.
"""

import mmap
import weakref
from collections.abc import Callable

import torch

SMALLEST = 1 << 20  # bytes: malloc keeps smaller blocks by itself
FREEABLE = all(hasattr(*each) for each in ((mmap, "MADV_FREE"), (mmap, "MAP_ANONYMOUS"), (torch.UntypedStorage, "_swap_data_ptr_")))
_idle: dict[int, list[mmap.mmap]] = {}  # by size in bytes: blocks that nobody uses
meters: set[Callable[[int], object]] = set()  # each is called with the bytes taken, or minus those given back


def memory(nbytes: int, device: torch.device) -> torch.UntypedStorage | None:
    """A storage of `nbytes`, its content undefined; None where the pool has no say: small blocks, and other devices."""
    if not FREEABLE or device.type != "cpu" or nbytes < SMALLEST:
        return None
    blocks = _idle.setdefault(nbytes, [])
    try:
        block = blocks.pop()
    except IndexError:
        block = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held = memoryview(block)  # the storage's memory keeps it alive, wherever the memory is swapped to
    weakref.finalize(held, _give_back, block).atexit = False
    for count in meters:
        count(nbytes)
    return torch.frombuffer(held, dtype=torch.uint8).untyped_storage()


def _give_back(block: mmap.mmap) -> None:
    block.madvise(mmap.MADV_FREE)
    _idle[len(block)].append(block)
    for count in meters:
        count(-len(block))


def empty(numel: int, like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """(numel,), of the dtype (unless one is given) and on the device of `like`, its content undefined."""
    dtype = dtype or like.dtype
    storage = memory(numel * dtype.itemsize, like.device) if type(like) is torch.Tensor else None  # not a fake one
    return like.new_empty(numel, dtype=dtype) if storage is None else like.new_empty(0, dtype=dtype).set_(storage)
