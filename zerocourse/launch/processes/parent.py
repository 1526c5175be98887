"""This process in its role as a parent: its mark, its folder, and the guard that outlives it."""

import atexit
import contextlib
import functools
import itertools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path

from .cleanup import FOLDER, MARK

QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # of every rank, unless somebody says otherwise
PACKAGE_FOLDER = str(Path(__file__).parents[1])


class Owner:
    """What all jobs of this process share. `mark` begins the mark of each, `folder` holds theirs."""

    def __init__(self):
        outer = os.environ.get(MARK, "")
        self.pid, self.mark, self.numbers = os.getpid(), f"{outer}{secrets.token_hex(8)}/", itertools.count(1)
        home = os.environ.get(FOLDER, "")
        self.folder = Path(tempfile.mkdtemp(prefix="zc-", dir=home if os.path.isdir(home) else None))
        self.jobs = weakref.WeakSet()
        if os.path.isdir("/proc/self"):
            command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))]
            nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)  # or a pipe of ours stays open
            self.guard = subprocess.Popen([*command, str(self.pid), self.mark, str(self.folder)], cwd="/", **nowhere,
                                          start_new_session=True)
        atexit.register(self.close)

    def close(self) -> None:
        """End every job; for the end of the process."""
        if os.getpid() != self.pid:  # a fork of us that ends has nothing to close
            return
        for job in list(self.jobs):
            job.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@functools.cache
def _owner_of(pid: int) -> Owner:
    return Owner()


def owner() -> Owner:
    """The one of this process; a fork gets its own."""
    return _owner_of(os.getpid())


@contextlib.contextmanager
def uninterrupted():
    """Hold back Ctrl-C until the block is done, so that a second one cannot stop the cleaning up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = []
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
    if pressed:
        raise KeyboardInterrupt


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def import_path() -> list[str]:
    """This process's `sys.path` as another process can use it, with the package on it."""
    path = [os.path.abspath(entry) if entry in ("", ".") else entry for entry in sys.path]
    root = os.path.dirname(PACKAGE_FOLDER)
    return path if root in path else [*path, root]


def boot_text(module: str, *args) -> str:
    """A program that runs `module.main(*args)` under this process's import path; spawned copies of it do nothing."""
    words = ", ".join(map(repr, args))
    return (f"import sys\nif __name__ == '__main__':\n    sys.path[:] = {import_path()!r}\n"
            f"    from {module} import main\n    main({words})\n")
