"""A disk that misbehaves, to see that a fault is noticed: it has the functions of `os`, of which some go wrong.

    Disk(folder, system=Misbehaving("flipped byte", after=3))
"""

import errno
import itertools
import os

from ...errors import BadInput
from .aligned import whole_blocks

FAULTS = {
    "short reads": "each read brings half of what was asked for, as any read may",
    "short writes": "each write takes half of what it was given, as any write may",
    "no bytes": "a read brings nothing",
    "flipped byte": "a read brings all bytes, one of them wrong",
    "torn write": "a write says that it took everything, and has kept half of it at most",
    "full": "the disk has no room any more",
}


class Misbehaving:
    """An `os` with one fault.

    fault: one of FAULTS.   after: so many reads, or writes, go well before it.   once: only one of them goes wrong.
    """

    def __init__(self, fault: str, after: int = 0, once: bool = False):
        if fault not in FAULTS:
            raise BadInput(f"{fault!r} is no fault that a disk can have here: choose {' or '.join(map(repr, FAULTS))}")
        self.fault, self.after, self.once = fault, after, once
        self._reads, self._writes = itertools.count(), itertools.count()  # several threads count

    def __getattr__(self, name: str):
        return getattr(os, name)

    def is_wrong(self, call: int, *faults: str) -> bool:
        return self.fault in faults and (call == self.after if self.once else call >= self.after)

    def preadv(self, fd: int, buffers: list[memoryview], offset: int) -> int:
        buffer, call = buffers[0], next(self._reads)
        if self.is_wrong(call, "no bytes"):
            return 0
        if self.is_wrong(call, "short reads"):
            buffer = half(buffer)
        count = os.preadv(fd, [buffer], offset)
        if self.is_wrong(call, "flipped byte"):
            buffer[0] ^= 1
        return count

    def pwritev(self, fd: int, buffers: list[memoryview], offset: int) -> int:
        buffer, call = buffers[0], next(self._writes)
        if self.is_wrong(call, "full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.is_wrong(call, "torn write"):
            if len(kept := half(buffer)) < len(buffer):
                os.pwritev(fd, [kept], offset)
            return len(buffer)
        return os.pwritev(fd, [half(buffer) if self.is_wrong(call, "short writes") else buffer], offset)


def half(buffer: memoryview) -> memoryview:
    """The first half, in whole blocks, of which one is left whole."""
    return buffer[: min(whole_blocks(len(buffer) // 2), len(buffer))]
