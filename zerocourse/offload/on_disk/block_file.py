"""A tensor in a file: a crash leaves the old file or the new one, and no wrong byte is read without being noticed.

Files are read and written in whole blocks at multiples of a block, past the page cache where the file system can do
that (O_DIRECT). Writing: a new file under another name, all its bytes, fdatasync, rename, fsync of the folder. Each
system call may move less than it was asked to, so reading and writing go on until all bytes have been moved.

Checksums (crc32) stay with the writer, in memory, because nobody else reads these files, and because there they also
tell an older version of the file, or another file, from the one that was written last.
"""

import errno
import os
import threading
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import torch

from ...errors import BadInput, OutOfMemory
from ..link_transfer import TransferError
from .aligned import BLOCK, aligned_empty, whole_blocks

PARTIAL = ".partial"  # ends the name of a file that is being written


class DiskError(TransferError):
    """Reading or writing a file failed."""


class DamagedFile(DiskError):
    """A file has other bytes than were written."""


class DiskFull(DiskError, OutOfMemory):
    """The file system has no room for a file."""


@dataclass(frozen=True)
class Segment:
    """Bytes [start, stop) of a file, with one checksum.   part: whose they are, such as a parameter; may be empty."""

    start: int
    stop: int
    part: str


@dataclass(frozen=True)
class FileVersion:
    """What is known of a file that was written. nbytes: without the padding of its last block. crcs: one a segment."""

    nbytes: int
    segments: tuple[Segment, ...]
    crcs: tuple[int, ...]


def segments_of(nbytes: int, piece_bytes: int, parts: Sequence[tuple[str, int]] = ()) -> tuple[Segment, ...]:
    """[0, nbytes), cut at every multiple of `piece_bytes` and at the end of each part. Raises BadInput.

    parts: (name, bytes) in order.
    """
    names, ends = [name for name, _ in parts], [*accumulate(size for _, size in parts)]
    if ends and ends[-1] > nbytes:
        raise BadInput(f"the parts have {ends[-1]:,} bytes together, and the tensor has {nbytes:,}: name none that is not in "
                       "the tensor")
    cuts = sorted({*range(0, nbytes, piece_bytes), *(end for end in ends if end < nbytes), 0, nbytes})
    names.append("")  # for bytes after the last part
    ends.append(nbytes)
    return tuple(Segment(start, stop, names[bisect_left(ends, start + 1)]) for start, stop in pairwise(cuts))


def flags(direct: bool) -> int:
    return os.O_CLOEXEC | (os.O_DIRECT if direct else 0)


def is_direct(folder: Path) -> bool:
    """Can files in this folder be read and written past the page cache? Tries it with one block."""
    if not hasattr(os, "O_DIRECT"):
        return False
    path, block = folder / f"probe{PARTIAL}", memory_of(aligned_empty(BLOCK, torch.uint8))
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | flags(True), 0o600)
        try:
            return os.pwritev(fd, [block], 0) == BLOCK and os.preadv(fd, [block], 0) == BLOCK
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, without a copy."""
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())


_own = threading.local()


def bounce_buffer(nbytes: int) -> memoryview:
    """Aligned memory of this thread's own, for tensors that are not aligned and for the end of those that are."""
    if len(getattr(_own, "buffer", b"")) < nbytes:
        _own.buffer = memory_of(aligned_empty(whole_blocks(nbytes), torch.uint8))
    return _own.buffer[:nbytes]


class TensorFile:
    """One reading or writing of a file under way, piece by piece. Pieces may be moved in any order, on any thread.

    tensor: on the CPU, contiguous, unchanged (or unread) until it is over.   start: its first byte's place in the file.
    piece_bytes: the file is moved between multiples of it; a multiple of BLOCK.   direct: with O_DIRECT.
    system: has the functions of `os` that are used, such as a disk's that misbehaves (`misbehaving`).
    moved: bytes that system calls have moved, padding included: with O_DIRECT those that the kernel counts.
    bounced: how many of the tensor's bytes took the way over another buffer, because they were not aligned.
    """

    verb = ""

    def __init__(self, path: Path, tensor: torch.Tensor, piece_bytes: int, start: int = 0, direct: bool = True,
                 system=os):
        self.path, self.system, self.direct = Path(path), system, direct
        self.memory, self.address = memory_of(tensor), tensor.data_ptr()
        self.start, self.stop = start, start + tensor.nbytes
        cuts = sorted({start, *range(-(-start // piece_bytes) * piece_bytes, self.stop, piece_bytes), self.stop})
        self.pieces = [*pairwise(cuts)]
        self.fd: int | None = None
        self.moved = self.bounced = 0
        self._lock = threading.Lock()

    def run(self) -> None:
        """All of it, on this thread. Raises DiskError, and leaves nothing half done."""
        try:
            for piece in self.pieces:
                self.move(*piece)
            self.finish()
        except BaseException:
            self.abandon()
            raise

    def move(self, start: int, stop: int) -> None:
        """Move one piece. Raises DiskError."""
        with self._lock:
            if self.fd is None:
                self.open()
        view = self.memory[start - self.start : stop - self.start]
        aligned = (self.address + start - self.start) % BLOCK == start % BLOCK == 0
        straight = len(view) // BLOCK * BLOCK if aligned else 0
        if straight:
            self.go_on(view[:straight], start)
        if straight < len(view):
            low, high = (start + straight) // BLOCK * BLOCK, whole_blocks(stop)
            inside = slice(start + straight - low, stop - low)
            buffer = bounce_buffer(high - low)
            self.over(buffer, view[straight:], inside, low)
            with self._lock:
                self.bounced += len(view) - straight

    def go_on(self, view: memoryview, offset: int) -> None:
        """One system call after the other, until all bytes of the view have been moved. Raises DiskError."""
        done = 0
        while done < len(view):
            with self.told():
                count = self.call(view[done:], offset + done)
            with self._lock:
                self.moved += count
            # A direct call must begin at a block, so what it moved of one beyond whole blocks is moved again.
            step = count if done + count == len(view) else count // BLOCK * BLOCK
            if step <= 0:
                raise DiskError(f"{self.path}: {self.verb} {done + count:,} of {len(view):,} bytes at byte {offset:,}, and no "
                                "more: the file or the disk is damaged, so go on from the last checkpoint")
            done += step

    def close(self) -> None:
        if self.fd is not None:
            fd, self.fd = self.fd, None
            if not self.direct and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # else a read would be of the page cache
            with self.told():
                self.system.close(fd)

    @contextmanager
    def told(self) -> Iterator[None]:
        """An OSError becomes a DiskError, with the file in its sentence."""
        try:
            yield
        except OSError as error:
            raise self.failed(error) from error

    def failed(self, error: OSError) -> DiskError:
        return DiskError(f"{self.path} could not be {self.verb}: {error.strerror or error}")


class FileReading(TensorFile):
    """Read bytes [start, start + tensor.nbytes) of a file into a tensor.

    version: as its writing left it, to check what is read: each segment that is read as a whole. None: no check.
    """

    verb = "read"

    def __init__(self, path: Path, tensor: torch.Tensor, piece_bytes: int, version: FileVersion | None = None,
                 **options):
        super().__init__(path, tensor, piece_bytes, **options)
        self.version = version

    def open(self) -> None:
        with self.told():
            self.fd = self.system.open(self.path, os.O_RDONLY | flags(self.direct))

    def move(self, start: int, stop: int) -> None:
        super().move(start, stop)
        if self.version is not None:
            self.check(start, stop)

    def call(self, view: memoryview, offset: int) -> int:
        return self.system.preadv(self.fd, [view], offset)

    def over(self, buffer: memoryview, view: memoryview, inside: slice, offset: int) -> None:
        self.go_on(buffer, offset)
        view[:] = buffer[inside]

    def check(self, start: int, stop: int) -> None:
        """Raises DamagedFile."""
        segments = self.version.segments
        for index in range(bisect_left(segments, start, key=lambda each: each.start), len(segments)):
            segment = segments[index]
            if segment.stop > stop:
                break
            found = zlib.crc32(self.memory[segment.start - self.start : segment.stop - self.start])
            if found != self.version.crcs[index]:
                part, written = f" ({segment.part})" if segment.part else "", self.version.crcs[index]
                raise DamagedFile(f"{self.path}: bytes {segment.start:,} to {segment.stop:,}{part} are not those that were "
                                  f"written: their crc32 is {found:08x} and was {written:08x}, so go on from the last "
                                  "checkpoint")

    def finish(self) -> None:
        self.close()

    def abandon(self) -> None:
        with suppress(DiskError):
            self.close()


class FileWriting(TensorFile):
    """Write a tensor into a file, in place of what is there. `version` is known when it has finished.

    parts: (name, bytes) in order, whose bytes these are, for the sentence if some of them are damaged.
    """

    verb = "written"

    def __init__(self, path: Path, tensor: torch.Tensor, piece_bytes: int, parts: Sequence[tuple[str, int]] = (),
                 **options):
        super().__init__(path, tensor, piece_bytes, **options)
        self.partial = self.path.with_name(self.path.name + PARTIAL)
        self.segments = segments_of(tensor.nbytes, piece_bytes, parts)
        self.crcs = [0] * len(self.segments)
        self.version: FileVersion | None = None

    def open(self) -> None:
        with self.told():
            self.fd = self.system.open(self.partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | flags(self.direct), 0o600)
            self.system.ftruncate(self.fd, whole_blocks(self.stop))  # so that pieces in any order only fill it

    def move(self, start: int, stop: int) -> None:
        # Before it is written, so that somebody who changes the tensor too early is noticed as well.
        for index in range(bisect_left(self.segments, start, key=lambda each: each.start), len(self.segments)):
            segment = self.segments[index]
            if segment.start >= stop:
                break
            self.crcs[index] = zlib.crc32(self.memory[segment.start : segment.stop])
        super().move(start, stop)

    def call(self, view: memoryview, offset: int) -> int:
        return self.system.pwritev(self.fd, [view], offset)

    def over(self, buffer: memoryview, view: memoryview, inside: slice, offset: int) -> None:
        buffer[inside] = view
        buffer[inside.stop :] = bytes(len(buffer) - inside.stop)
        self.go_on(buffer, offset)

    def finish(self) -> None:
        if self.fd is None:
            self.open()  # a tensor without elements
        with self.told():
            # Before the rename, so that the name never stands for bytes that are missing.
            getattr(self.system, "fdatasync", os.fsync)(self.fd)
            self.close()
            self.system.replace(self.partial, self.path)
            folder = self.system.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self.system.fsync(folder)  # the new name is on the disk as well
            finally:
                self.system.close(folder)
        self.version = FileVersion(self.stop, self.segments, tuple(self.crcs))

    def abandon(self) -> None:
        """Leave nothing of it behind; the file that was there before stays."""
        with suppress(DiskError):
            self.close()
        with suppress(OSError):
            self.system.unlink(self.partial)

    def failed(self, error: OSError) -> DiskError:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return super().failed(error)
        # The partial file goes only when no other thread writes into it any more, but its bytes count as free.
        room = self.system.statvfs(self.path.parent)
        free = room.f_bavail * room.f_frsize + (os.fstat(self.fd).st_blocks * 512 if self.fd is not None else 0)
        return DiskFull(f"the disk has no room for {self.path}: {whole_blocks(self.stop):,} bytes are needed beside its "
                        f"older version, and {free:,} are free: make room, or put the folder on a larger disk")
