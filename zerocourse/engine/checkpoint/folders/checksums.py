"""Checksums of the parts of a checkpoint's files, so that what is read is what was written. It communicates nothing.

Each chunk of a tensor and each small object has in the index the CRC-32 of its bytes in the file: whoever reads a part of
a checkpoint checks that part, and nothing else. Checkpoints of format 1 have one checksum for each file, so there the
whole file is checked before anything of it is used.
"""

import io
from dataclasses import dataclass
from pathlib import Path

from ....data.file_checksum import checksum_of


@dataclass(frozen=True)
class Span:
    """Bytes of a file, [at, at + bytes), and the CRC-32 with which they were written."""

    file: str
    at: int
    bytes: int
    crc32: int


def span_of(where: dict, files: dict[str, dict]) -> Span:
    """What must be checked before the bytes at `where`, a chunk or an object of the index, are used."""
    if "crc32" in where:
        return Span(where["file"], where["at"], where["bytes"], where["crc32"])
    return Span(where["file"], 0, files[where["file"]]["bytes"], files[where["file"]]["crc32"])


def is_as_written(folder: Path, span: Span) -> bool:
    """Reads it, a block after the other."""
    return checksum_of(folder / span.file, span.at, span.bytes) == span.crc32


class FileSection(io.RawIOBase):
    """Bytes [at, at + nbytes) of an open file, as a file to read."""

    def __init__(self, file: io.BufferedReader, at: int, nbytes: int):
        self.file, self.at, self.nbytes, self.position = file, at, nbytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.position = max(0, offset + (0, self.position, self.nbytes)[whence])
        return self.position

    def readinto(self, into: memoryview) -> int:
        self.file.seek(self.at + self.position)
        count = self.file.readinto(memoryview(into).cast("B")[:max(0, self.nbytes - self.position)])
        self.position += count
        return count
