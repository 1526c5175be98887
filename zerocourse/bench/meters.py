"""Meters for two numbers that no program can count itself: the heap's peak, and the bytes on the loopback interface.

Both need help from outside the process: a small C library that is preloaded, and a network namespace of one's own, so
that nobody else's traffic is in the counter. Where the machine has neither, the numbers are None. The heap is the host's, and
a bench computes on the CPU: of a GPU's memory these meters know nothing (see `measure.ledger.Ledger.device_peak`).
"""

import ctypes
import fcntl
import shutil
import socket
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("heap.c")
NAMESPACES = (["unshare", "--net"], ["unshare", "--map-root-user", "--net"])  # as root; as any user, where allowed


def build_heap_meter(folder: Path) -> Path | None:
    """Compile heap.c into `folder`; None when there is no C compiler or no glibc."""
    library = folder / "heap.so"
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    options = ["-O2", "-shared", "-fPIC", "-fno-builtin"]
    if subprocess.run([compiler, *options, "-o", library, SOURCE], capture_output=True).returncode:
        return None
    # A libc without these functions is noticed only when the library is loaded.
    runs = subprocess.run(["true"], env={"LD_PRELOAD": str(library), "PATH": "/usr/bin:/bin"}, capture_output=True)
    return library if runs.returncode == 0 and not runs.stderr else None


class Heap:
    """Bytes of this process's heap, in blocks of at least 16 KiB, and of the blocks in use of `memory.pool`, which takes its
    memory from the system and not from malloc. `here`: is the meter preloaded?"""

    def __init__(self):
        self._library = ctypes.CDLL(None)
        self.here = hasattr(self._library, "heap_peak")
        if self.here:
            from ..memory import pool

            self._library.heap_peak.restype = self._library.heap_held.restype = ctypes.c_long
            pool.meters.add(count_pooled)

    def held(self) -> int | None:
        return self._library.heap_held() if self.here else None

    def peak(self) -> int | None:
        """Since `reset_peak`."""
        return self._library.heap_peak() if self.here else None

    def reset_peak(self) -> None:
        if self.here:
            self._library.heap_reset_peak()


def count_pooled(nbytes: int) -> None:
    """Tell the meter, which must be preloaded, of bytes that the pool took or (below 0) was given back."""
    ctypes.CDLL(None).heap_count(ctypes.c_long(nbytes))


def private_network() -> list[str] | None:
    """The words before a command that run it in a network of its own, or None where that is not permitted."""
    for words in NAMESPACES:
        if shutil.which(words[0]) and subprocess.run([*words, "true"], capture_output=True).returncode == 0:
            return words
    return None


def bring_loopback_up() -> None:
    """In a new network namespace even the loopback interface is down."""
    get_flags, set_flags, up = 0x8913, 0x8914, 1
    with socket.socket() as handle:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(handle, get_flags, request))[1]
        fcntl.ioctl(handle, set_flags, struct.pack("16sH14x", b"lo", flags | up))


def loopback_bytes() -> int:
    """Bytes that all processes of this network namespace have sent over loopback, headers included.

    Read from /proc/net/dev: /sys shows the host's interfaces.
    """
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])  # eight counters of what came, then of what went, bytes first
    raise OSError("/proc/self/net/dev has no line for lo")
