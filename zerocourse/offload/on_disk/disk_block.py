"""Tensors that lie in files on the disk, and have memory only for as long as they are used. It communicates nothing.

    file NAME.params     parameters, where they are on the disk too
    file NAME.states     master weights | first state | second state ...

The tensors stay the same objects, so that an optimizer can keep them: it is their storage that gets the memory of a
staging buffer, and gives it back. Who reads them meanwhile reads NaN, where the system allows that
(`memory/nan_pages`).
"""

from collections.abc import Sequence
from contextlib import suppress

import torch

from ...measure import tier_registry
from ...measure.storages import swap_memory
from ...memory.nan_pages import NanPages
from ..tiers import Tier
from .aligned import whole_blocks
from .block_file import DiskError
from .disk import Disk, DiskTransfer
from .staging import StagingBuffers

PARAMS, STATES = "params", "states"  # its files
ALIGNMENT = 16  # bytes: no element is larger


Files = dict[str, dict[str, torch.dtype]]  # by file, in order, the dtypes of the tensors in it, by name


def lay_out(numel: int, files: Files) -> tuple[dict[str, int], dict[str, slice], int]:
    """The first byte of each tensor (numel,), each file's bytes, and how many there are. Files are whole disk blocks."""
    starts, ranges, at = {}, {}, 0
    for file, dtypes in files.items():
        begin = at
        for key, dtype in dtypes.items():
            starts[key] = at
            at += -(-numel * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        at = begin + whole_blocks(at - begin)
        ranges[file] = slice(begin, at)
    return starts, ranges, at


class DiskBlock:
    """The tensors (numel,) of one flat buffer that are on the disk. One staging buffer has room for all of them.

    tensors: by name; there once the block has had memory.   nbytes: of the files together, in whole blocks of the disk.
    """

    def __init__(self, name: str, numel: int, files: Files, disk: Disk, tier: Tier):
        self.name, self.numel, self.files, self.disk = name, numel, files, disk
        self.storage = torch.UntypedStorage(0)
        with tier_registry.taking(tier):
            tier.adopt(torch.empty(0, dtype=torch.uint8).set_(self.storage))
        self.tensors: dict[str, torch.Tensor] = {}
        self.transfers: list[DiskTransfer] = []  # reads or writes under way
        self._nan: NanPages | None = None
        self._lent: tuple[StagingBuffers | None, torch.Tensor] | None = None  # whose memory it has
        self.starts, self.ranges, self.nbytes = lay_out(numel, files)
        if not self.nbytes:
            self.make_tensors()

    def add_states(self, dtypes: dict[str, torch.dtype]) -> None:
        """Further tensors, behind those that are there. They are zeros after the next `move` or `lend`."""
        self.files.setdefault(STATES, {}).update(dtypes)
        self.starts, self.ranges, self.nbytes = lay_out(self.numel, self.files)
        self._nan = None  # it needs more of them

    def make_tensors(self) -> None:
        """Those that are not there yet."""
        dtypes = {key: dtype for of_file in self.files.values() for key, dtype in of_file.items()}
        for key in dtypes.keys() - self.tensors.keys():
            tensor = self.tensors[key] = torch.empty(0, dtype=dtypes[key])
            if self.nbytes:
                tensor.set_(self.storage, self.starts[key] // tensor.itemsize, (self.numel,)).zero_()
        if self._nan is None:
            self._nan = NanPages.of(self.storage)

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
        self.make_tensors()

    def move(self, buffer: torch.Tensor, pool: StagingBuffers) -> None:
        """To a larger buffer, with all values."""
        (before, old), self._lent = self._lent, (pool, buffer)
        swap_memory(old.untyped_storage(), self.storage)
        buffer[: old.numel()].copy_(old)
        swap_memory(self.storage, buffer.untyped_storage())
        if before is not None:
            before.give(old)

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
