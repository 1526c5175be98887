"""The disk as a tier: files in a folder, read and written beside the computation, every byte counted.

    disk = Disk("/fast/scratch", budget="100GiB")
    disk.write("h.0", states).wait()
    disk.read("h.0", states).wait()

A few threads move pieces of some MiB each. Python costs nothing there, because reading, writing and checksums leave the
interpreter to other threads. With a `rate` the disk is simulated: a thread sleeps after each piece as long as it would have taken.
Source: Rajbhandari et al. 2021, arXiv 2104.07857 (ZeRO-Infinity), section 6.3.
"""

import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import torch
import torch.distributed as dist

from ...comm.events import Recorder
from ...errors import BadInput
from ...formulas.units import gib, parse_bytes
from ..host_link import LIMIT_SECONDS
from ..link_transfer import LinkTransfer
from ..tiers import FileTier
from .aligned import BLOCK, whole_blocks
from .block_file import DiskError, FileReading, FileVersion, FileWriting, TensorFile, is_direct
from .io_threads import IoThreads

READ, WRITE = "read", "write"


class DiskTransfer(LinkTransfer):
    """One reading or writing under way. It keeps its tensor alive until it is over; `wait` raises what went wrong."""

    def __init__(self, disk: "Disk", verb: str, name: str, tensor: torch.Tensor, file: TensorFile,
                 then: Callable[[], object] | None):
        super().__init__(disk, verb, name, tensor, tensor)
        self.file, self.then = file, then
        self.after: list[DiskTransfer] = []  # what must be over before this one begins
        self.before: list[DiskTransfer] = []  # what waits for this one
        self.failure: BaseException | None = None
        self.is_told = False  # has somebody waited for it, and so heard of its failure?
        self._left, self._has_begun, self._lock = max(1, len(file.pieces)), False, threading.Lock()

    def move(self, piece: tuple[int, int] | None) -> None:
        """Move one piece (None: there is none). Called by the disk's threads; the last piece concludes."""
        begun = time.perf_counter()
        with self._lock:
            if not self._has_begun:
                self._has_begun, self.begun = True, begun
        try:
            if self.link.is_closed:
                raise DiskError(f"{self.name} was not {self.file.verb}: the disk was closed before")
            if self.failure is None and piece is not None:
                self.file.move(*piece)
                self.link.keep_to_rate(self.verb, whole_blocks(piece[1] - piece[0]), begun)
        except BaseException as error:
            self.failure = self.failure or error
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self.conclude()

    def conclude(self) -> None:
        """All pieces have been moved, or one has failed."""
        try:
            if self.failure is None:
                self.file.finish()
        except BaseException as error:
            self.failure = error
        if self.failure is not None:
            self.file.abandon()
        file, self.file = self.file, None
        file.memory = None
        self.link.conclude(self, file)
        try:
            if self.then is not None:
                self.then()
        except BaseException as error:
            self.failure = self.failure or error
        self.then = None
        self.end(self.failure)
        self.link.go_on(self)

    def wait(self, notes: bool = True) -> None:
        """Block until it is over; a second call returns at once. Raises DiskError, each time.

        notes: record the event, which only the thread that trains may do; another one leaves that to a later call.
        """
        if not self.over.wait(self.link.limit):
            raise DiskError(f"{self.nbytes:,} bytes of {self.name} were not {'read' if self.verb == READ else 'written'} "
                            f"after {self.link.limit:g} s: take a faster disk, or give it a longer limit")
        self.is_told = True
        if self.error is not None:
            raise self.error
        self.note(notes)


class Disk:
    """A folder on a disk: a tier with a budget, and a link with a rate.

    folder: each rank makes a folder of its own in it, which is removed when the disk is closed, or forgotten, or when
        the process ends, even by a kill: it is memory, and no checkpoint.
    budget: bytes of files, or "100GiB", above which OutOfMemory is raised; None: no limit. While a file is written
        anew, its older version is there as well.
    rate: bytes per second each way, simulated; None: as fast as the disk is.
    workers: threads each way.   block_bytes: of the pieces that they move, or "8MiB"; a multiple of 4096.
    limit: seconds that a wait for one transfer may take.
    direct: past the page cache, where the file system can do that; False: never.
    system: in place of `os`, such as one that misbehaves (`offload.on_disk.misbehaving`).

    direct: is the page cache passed by? If not, it is emptied of each file, as far as the system does that when asked.
    tier: has `bytes`, `peak` and `budget` of the files, padding included; in the ledger it is the column "disk".
    bytes: what has been "read" and "written" so far by system calls, padding included. With `direct` the kernel counts
        the same (/proc/self/io), and of what it writes for the file system itself some blocks more.
    """

    def __init__(self, folder: str | Path, budget: int | str | None = None, rate: float | None = None, workers: int = 4,
                 block_bytes: int | str = 8 << 20, limit: float = LIMIT_SECONDS, direct: bool = True, system=os):
        block_bytes = parse_bytes(block_bytes) if isinstance(block_bytes, str) else block_bytes
        if rate is not None and not rate > 0:
            raise BadInput(f"the rate of the disk is {rate!r}: it must be bytes per second, above 0, or None")
        if workers < 1:
            raise BadInput(f"the disk has {workers} workers: it needs at least 1")
        if block_bytes < 1 or block_bytes % BLOCK:
            raise BadInput(f"the disk's block_bytes are {block_bytes:,}: they must be a multiple of {BLOCK:,}")
        rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix=f"rank{rank}-", dir=folder)).resolve()
        except OSError as error:
            raise BadInput(f"the disk's folder {str(folder)!r} cannot be used ({error.strerror}): name one that can be "
                           "written") from error
        self.rate, self.workers, self.block_bytes, self.limit, self.system = rate, workers, block_bytes, limit, system
        self.tier = FileTier("disk", budget)
        self.threads = IoThreads(self.folder, workers, self.tier)
        self.close = weakref.finalize(self, self.threads.close)  # also when the process ends
        self.direct = direct and is_direct(self.folder)
        self.bytes = {READ: 0, "written": 0}
        self.recorder = Recorder()
        self._versions: dict[str, FileVersion] = {}
        self._writes: dict[str, DiskTransfer] = {}  # by name, the last one, if it is not over or has failed
        self._reads: dict[str, list[DiskTransfer]] = {}  # by name, those that are not over
        self._free = {READ: 0.0, WRITE: 0.0}  # when the disk has moved everything so far, if it has a rate
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return (f"Disk({str(self.folder)!r}, {'direct' if self.direct else 'through the page cache'}): "
                f"{gib(self.bytes[READ])} read, {gib(self.bytes['written'])} written; {self.tier!r}")

    def __enter__(self) -> "Disk":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        return self.threads.closing.is_set()

    def path(self, name: str) -> Path:
        return self.folder / f"{quote(name, safe='')}.tensor"

    def nbytes(self, name: str) -> int:
        """Bytes of the tensor that was written under this name last, or is being written. Raises BadInput."""
        with self._lock:
            write = self._writes.get(name)
            if write is not None and not write.over.is_set():
                return write.nbytes
            if name in self._versions:
                return self._versions[name].nbytes
        raise BadInput(f"the disk has nothing named {name!r}: write it first")

    # -- reading and writing ------------------------------------------------------------------------------------------

    def write(self, name: str, tensor: torch.Tensor, parts: Sequence[tuple[str, int]] = (),
              then: Callable[[], object] | None = None) -> DiskTransfer:
        """Write a contiguous tensor on the CPU, which must stay as it is until the transfer is over.

        It begins when what has been asked for under this name before is over.
        parts: (name, bytes) in order, whose these bytes are, to be named where they turn out damaged.
        then: called by a thread of the disk when the transfer is over, or has failed.
        Raises OutOfMemory over the budget; the transfer's `wait` raises DiskFull and other DiskErrors.
        """
        self.check(name, tensor)
        file = FileWriting(self.path(name), tensor, self.block_bytes, parts, direct=self.direct, system=self.system)
        transfer = DiskTransfer(self, WRITE, name, tensor, file, then)
        self.tier.take(whole_blocks(tensor.nbytes))
        with self._lock:
            self.begin(transfer, [*filter(None, [self._writes.get(name)]), *self._reads.get(name, ())])
            self._writes[name] = transfer
        return transfer

    def read(self, name: str, into: torch.Tensor, start: int = 0,
             then: Callable[[], object] | None = None) -> DiskTransfer:
        """Fill a contiguous tensor on the CPU with the bytes from `start` on of what was written last under this name.

        Bytes are checked; of a part of a file, those segments that lie in it as a whole (see `block_file.segments_of`).
        then: as in `write`. Raises BadInput for bytes that were not written; the transfer's `wait` raises DamagedFile
        and other DiskErrors.
        """
        self.check(name, into)
        if start < 0 or start + into.nbytes > self.nbytes(name):
            raise BadInput(f"bytes {start:,} to {start + into.nbytes:,} of {name!r} cannot be read: it has "
                           f"{self.nbytes(name):,}")
        file = FileReading(self.path(name), into, self.block_bytes, start=start, direct=self.direct, system=self.system)
        transfer = DiskTransfer(self, READ, name, into, file, then)
        with self._lock:
            self._reads.setdefault(name, []).append(transfer)
            self.begin(transfer, [*filter(None, [self._writes.get(name)])])
        return transfer

    def remove(self, name: str) -> None:
        """Delete what was written under this name, once nothing reads or writes it any more. Raises BadInput."""
        self.nbytes(name)
        with self._lock:
            under_way = [*filter(None, [self._writes.get(name)]), *self._reads.get(name, ())]
        for transfer in under_way:
            transfer.over.wait(self.limit)
        with self._lock:
            self._writes.pop(name, None)
            version = self._versions.pop(name, None)
        if version is not None:
            self.path(name).unlink(missing_ok=True)
            self.tier.gave_back(whole_blocks(version.nbytes))

    def check(self, name: str, tensor: torch.Tensor) -> None:
        if self.is_closed:
            raise DiskError(f"{name} can neither be read nor written: the disk is closed")
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            what = "not contiguous" if tensor.device.type == "cpu" else f"on {tensor.device}"
            raise BadInput(f"the tensor for {name!r} is {what}: the disk reads and writes contiguous tensors on the CPU")

    # -- what its threads call ----------------------------------------------------------------------------------------

    def begin(self, transfer: DiskTransfer, others: list[DiskTransfer]) -> None:
        """Let a transfer begin when those of the others are over that touch the same file."""
        transfer.after = [other for other in others if not other.over.is_set() or not other.is_told]
        waiting = [other for other in transfer.after if not other.over.is_set()]
        for other in waiting:
            other.before.append(transfer)
        transfer.waits_for = len(waiting)
        if not waiting:
            self.enqueue(transfer)

    def enqueue(self, transfer: DiskTransfer) -> None:
        file = transfer.file
        if transfer.verb == READ:
            # A writing that failed, and of which nobody has heard, must not pass for an older version.
            untold = [other.error for other in transfer.after if other.verb == WRITE and not other.is_told]
            transfer.failure = untold[0] if untold else None
            file.version = self._versions.get(transfer.name)
        transfer.after = []
        for piece in file.pieces or [None]:
            self.threads.put(transfer.verb, transfer, piece)

    def conclude(self, transfer: DiskTransfer, file: TensorFile) -> None:
        """Take note of what a transfer has done to the disk."""
        with self._lock:
            if transfer.verb == READ:
                self.bytes[READ] += file.moved
                self._reads[transfer.name].remove(transfer)
                return
            self.bytes["written"] += file.moved
            over = whole_blocks(transfer.nbytes)  # what is gone now: the partial file, or the older version
            if transfer.failure is None:
                older = self._versions.get(transfer.name)
                over = 0 if older is None else whole_blocks(older.nbytes)
                self._versions[transfer.name] = file.version
            self.tier.gave_back(over)

    def go_on(self, transfer: DiskTransfer) -> None:
        """A transfer is over: those that have waited for it may begin."""
        with self._lock:
            for other in transfer.before:
                other.waits_for -= 1
                if not other.waits_for:
                    self.enqueue(other)
            transfer.before = []
            if transfer.error is None and self._writes.get(transfer.name) is transfer:
                del self._writes[transfer.name]  # it knows the disk, which could not be forgotten then

    def keep_to_rate(self, verb: str, nbytes: int, begun: float) -> None:
        if self.rate is not None:
            with self._lock:
                self._free[verb] = until = max(self._free[verb], begun) + nbytes / self.rate
            self.threads.closing.wait(max(0.0, until - time.perf_counter()))
