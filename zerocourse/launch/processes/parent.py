"""This process as the parent of ranks: its run id, its folder, and the cleanup process that outlives it."""

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

from ...errors import BadInput
from . import cleanup
from .cleanup import FOLDER_VARIABLE, RUN_VARIABLE

QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # in the environment of every rank, unless the caller sets it
SWITCH, PLACES = "ZEROCOURSE_DEVICE", ("cpu", "cuda", "auto")  # a rank reads it in `comm.bootstrap`; here nothing imports torch
_ROOT = str(Path(__file__).parents[3])  # the folder that holds the package


class Parent:
    """What all jobs of this process share. `run_id` begins the run id of each, `folder` holds their folders."""

    def __init__(self):
        outer = os.environ.get(RUN_VARIABLE, "")
        self.pid, self.run_id, self.numbers = os.getpid(), f"{outer}{secrets.token_hex(8)}/", itertools.count(1)
        outer_folder = os.environ.get(FOLDER_VARIABLE, "")
        self.folder = Path(tempfile.mkdtemp(prefix="zc-", dir=outer_folder if os.path.isdir(outer_folder) else None))
        self.jobs = weakref.WeakSet()
        if os.path.isdir("/proc/self"):
            command = [sys.executable, "-I", "-S", cleanup.__file__, str(self.pid), self.run_id, str(self.folder)]
            closed = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)  # or a pipe of ours stays open
            self.cleanup = subprocess.Popen(command, cwd="/", **closed, start_new_session=True)
        atexit.register(self.close)

    def close(self) -> None:
        """End every job; called when the process ends."""
        if os.getpid() != self.pid:  # a fork of this process has its own jobs
            return
        for job in list(self.jobs):
            job.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@functools.cache
def _parent(pid: int) -> Parent:
    return Parent()


def current_parent() -> Parent:
    """The `Parent` of this process, made with the first call; a fork gets its own."""
    return _parent(os.getpid())


@contextlib.contextmanager
def uninterrupted():
    """Delay Ctrl-C until the block is done, so that a second one cannot stop the cleanup."""
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


def with_device(env, device: str | None) -> dict:
    """`env`, what is added to the environment of ranks, with where they compute; None leaves that to the environment.

    Raises BadInput for another word than "cpu", "cuda" and "auto".
    """
    if device not in (None, *PLACES):
        raise BadInput(f"device is {device!r}: it must be cpu, cuda or auto")
    return {**({} if device is None else {SWITCH: device}), **(env or {})}


def import_path() -> list[str]:
    """This process's `sys.path` as another process can use it, with the package on it."""
    path = [os.path.abspath(entry) if entry in ("", ".") else entry for entry in sys.path]
    return path if _ROOT in path else [*path, _ROOT]


def boot_text(module: str, *args) -> str:
    """A program that runs `module.main(*args)` under this process's import path; spawned copies of it do nothing."""
    arguments = ", ".join(map(repr, args))
    return (f"import sys\nif __name__ == '__main__':\n    sys.path[:] = {import_path()!r}\n"
            f"    from {module} import main\n    main({arguments})\n")
