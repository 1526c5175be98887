"""The checksum of a part of a file: what is read again is compared with it. It communicates nothing."""

import zlib
from pathlib import Path

READ_BYTES = 1 << 20  # at once


def checksum_of(file: Path, at: int = 0, nbytes: int | None = None) -> int:
    """The CRC-32 of bytes [at, at + nbytes) of a file, by default of all of it; of fewer, where the file ends earlier."""
    left = file.stat().st_size - at if nbytes is None else nbytes
    total, block = 0, memoryview(bytearray(max(0, min(left, READ_BYTES))))
    with file.open("rb") as stream:
        stream.seek(at)
        while count := stream.readinto(block[:left]):
            total, left = zlib.crc32(block[:count], total), left - count
    return total
