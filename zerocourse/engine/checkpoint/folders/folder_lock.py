"""A lock that one process at a time holds, and that ends with it: two runs do not write to one place. It communicates
nothing.

The lock is flock's, on a file that says who holds it. A process that is killed holds nothing any more; its file stays,
and means nothing, until the next holder removes it. Where the file system has no such locks, nothing is locked.
"""

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from ....errors import BadInput

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

POLL_SECONDS = 0.05


class FolderLock:
    """The lock that `file` stands for.

    what, instead: what its holder does there, and what one can do then, as in "is saving under this name", "use another".
    run: a name of the run, if it has one.
    """

    def __init__(self, file: Path, what: str, instead: str, run: str = ""):
        self.file, self.what, self.instead, self.run, self.descriptor = file, what, instead, run, None

    @property
    def held(self) -> bool:
        return self.descriptor is not None

    def take(self, same_run_seconds: float = 0.0) -> None:
        """Raises BadInput that says who holds it. It is waited for only while the holder is an earlier attempt of this run,
        so many seconds at most."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        until = time.monotonic() + same_run_seconds
        while not self.held:
            descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o666)  # no program that this one starts inherits it
            try:
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                who, since, run = [*os.read(descriptor, 1000).decode(errors="replace").split("\n"), "", "", ""][:3]
                os.close(descriptor)
                if not (self.run and run == self.run) or time.monotonic() > until:
                    raise BadInput(f"{who or 'another process'} {self.what}{since} and holds {self.file}: {self.instead}") from None
                time.sleep(POLL_SECONDS)
                continue
            except OSError:
                pass  # this file system has no locks
            if is_at(descriptor, self.file):
                self.descriptor = descriptor
            else:  # the last holder has removed it since we opened it
                os.close(descriptor)
        os.ftruncate(self.descriptor, 0)
        with suppress(OSError):  # on a full disk it says nothing, and is a lock all the same
            said = f"process {os.getpid()} on {socket.gethostname()}\n since {time.strftime('%H:%M:%S')}\n{self.run}"
            os.write(self.descriptor, said.encode())

    def release(self) -> None:
        """It may be taken again, whoever else has inherited the open file. Without a lock, nothing."""
        if not self.held:
            return
        descriptor, self.descriptor = self.descriptor, None
        with suppress(OSError):  # somebody has removed the folder, or there are no locks
            self.file.unlink()  # while it is still ours
        with suppress(OSError):
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(self, *_) -> None:
        self.release()


def is_at(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False
