"""Tensors that lie in files on the disk, and have memory only for as long as they are used. It communicates nothing.

    file NAME.params     parameters, where they are on the disk too
    file NAME.states     master weights | first state | second state ...

The tensors stay the same objects, so that an optimizer can keep them: it is their storage that gets the memory of a staging
buffer, and gives it back. Who reads them meanwhile reads NaN, where the system allows that (`zero/extras/nan_pages`).
"""

from collections.abc import Sequence
from contextlib import suppress

import torch

from ..measure import tier_registry
from ..measure.storages import swap_memory
from ..zero.extras.nan_pages import NanPages
from .aligned import StagingBuffers, whole_blocks
from .block_file import DiskError
from .disk import Disk, DiskTransfer
from .tiers import Tier

PARAMS, STATES = "params", "states"  # its files
ALIGNMENT = 16  # bytes: no element is larger


class DiskBlock:
    """The tensors (numel,) of one flat buffer that are on the disk. In memory one buffer has room for all of them.

    files: by file, in order, the dtypes of the tensors in it, by name.
    tensors: by name; there once the block has had memory.
    nbytes: of the files together, each of them whole blocks of the disk.
    """

    def __init__(self, name: str, numel: int, files: dict[str, dict[str, torch.dtype]], disk: Disk, tier: Tier):
        self.name, self.numel, self.files, self.disk = name, numel, files, disk
        self.starts: dict[str, int] = {}  # by tensor: the byte of the block at which it begins
        self.ranges: dict[str, slice] = {}  # by file: bytes of the block
        at = 0
        for file, dtypes in files.items():
            begin = at
            for key, dtype in dtypes.items():
                self.starts[key] = at
                at += -(-numel * dtype.itemsize // ALIGNMENT) * ALIGNMENT
            at = begin + whole_blocks(at - begin)
            self.ranges[file] = slice(begin, at)
        self.nbytes = at
        self.storage = torch.UntypedStorage(0)
        with tier_registry.taking(tier):
            tier.adopt(torch.empty(0, dtype=torch.uint8).set_(self.storage))
        self.tensors: dict[str, torch.Tensor] = {}
        self.transfers: list[DiskTransfer] = []  # reads or writes under way
        self._nan: NanPages | None = None
        self._lent: tuple[StagingBuffers | None, torch.Tensor] | None = None  # whose memory it has
        if not self.nbytes:
            self.make_tensors()

    def make_tensors(self) -> None:
        for dtypes in self.files.values():
            for key, dtype in dtypes.items():
                empty = torch.empty(0, dtype=dtype)
                self.tensors[key] = empty.set_(self.storage, self.starts[key] // dtype.itemsize, (self.numel,)) if self.nbytes else empty

    # -- memory -------------------------------------------------------------------------------------------------------

    @property
    def has_memory(self) -> bool:
        return not self.nbytes or self._lent is not None

    def lend(self, buffer: torch.Tensor, pool: StagingBuffers | None = None) -> None:
        """The tensors have this buffer's memory from now on, its content undefined."""
        if self._nan is not None:
            self._nan.take(self.storage)
        self._lent = pool, buffer
        swap_memory(self.storage, buffer.untyped_storage())
        if not self.tensors:
            self.make_tensors()
            self._nan = NanPages.of(self.storage)

    def abandon(self) -> None:
        """Give the memory back, whatever becomes of what is under way, as soon as that is over."""
        while self.transfers:
            with suppress(DiskError):
                self.transfers.pop().wait(notes=False)
        self.release()

    def release(self) -> None:
        """Give the memory back. What it held is lost, unless it was written."""
        if self._lent is None:
            return
        (pool, buffer), self._lent = self._lent, None
        swap_memory(buffer.untyped_storage(), self.storage)
        if self._nan is not None:
            self._nan.put(self.storage)
        if pool is not None:
            pool.give(buffer)

    # -- the disk -----------------------------------------------------------------------------------------------------

    def read(self, *files: str) -> None:
        """Start reading; the values are there after `wait`."""
        for file in files:
            if self.nbytes:
                self.transfers.append(self.disk.read(f"{self.name}.{file}", self.bytes_of(file)))

    def write(self, parts: dict[str, Sequence[tuple[str, int]]]) -> None:
        """Start writing these files; they are on the disk after `wait`.

        parts: by file, (name, bytes) in order: whose bytes these are, for the sentence if some are damaged.
        """
        for file, owners in parts.items():
            if self.nbytes:
                self.transfers.append(self.disk.write(f"{self.name}.{file}", self.bytes_of(file), parts=owners))

    def bytes_of(self, file: str) -> torch.Tensor:
        within = self.ranges[file]
        return torch.empty(0, dtype=torch.uint8).set_(self.storage, within.start, (within.stop - within.start,))

    @property
    def done(self) -> bool:
        return all(transfer.done for transfer in self.transfers)

    def wait(self) -> None:
        """Block until what was started is over. Raises DiskError."""
        while self.transfers:
            self.transfers.pop(0).wait()
