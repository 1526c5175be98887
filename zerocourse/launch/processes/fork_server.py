"""A process that has imported torch and forks ranks on request, so that a rank starts in 0.2 s instead of 2 s.

There is one for each parent. It is started with the first `Ranks`, or in a notebook already by `%load_ext zerocourse`, so
that it imports torch while the reader reads. It never computes and never touches a GPU, since
neither threads nor a CUDA context survive a fork; if it notices that it has them it says so, and each rank is
started as a new Python process. It ends with its parent, when its standard input closes.
"""

import contextlib
import functools
import gc
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping

from .cleanup import RUN_VARIABLE
from .parent import QUIET, Parent, boot_text, current_parent

READ_AT_IMPORT = ("TORCH_", "TRITON_")  # the prefixes of variables that torch and triton read once, when imported


class ForkServer:
    """The parent's side. It is started at once, and waited for when it is first used."""

    def __init__(self, parent: Parent):
        boot = parent.folder / "boot.py"
        boot.write_text(boot_text("zerocourse.launch.processes.fork_server"))
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment = QUIET | os.environ | single | {RUN_VARIABLE: f"{parent.run_id}fork_server/"}
        with open(parent.folder / "fork_server.txt", "wb") as log:
            self.process = subprocess.Popen([sys.executable, str(boot)], stdin=subprocess.PIPE, stderr=log,
                                            stdout=subprocess.PIPE, start_new_session=True, env=environment)
        self.lock, self.codes, self.requests = threading.Lock(), {}, itertools.count()
        self.settings = _import_settings(environment)

    @functools.cached_property
    def usable(self) -> bool:
        """Is forking safe there? Waits until it has imported torch."""
        answer = self._receive()
        return bool(answer and answer["safe"])

    def fork(self, boot: str, environments: list[dict], cwd: str) -> list[int]:
        """Process ids of new ranks, each with its environment, that run `boot`."""
        with self.lock:
            number = next(self.requests)
            request = {"number": number, "boot": boot, "environments": environments, "cwd": cwd}
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            while answer := self._receive():
                if answer.get("number") == number:  # after an interrupt an earlier answer may still be unread
                    for pid in answer["pids"]:  # the system reuses process ids, so this code might be an earlier rank's
                        self.codes.pop(pid, None)
                    return answer["pids"]
        raise OSError("the fork server is gone: it ended before it had forked the ranks")

    def exit_code(self, pid: int) -> int | None:
        """The exit code of a rank that it forked; None while the rank runs."""
        with self.lock:
            while pid not in self.codes and select.select([self.process.stdout], [], [], 0)[0] and self._receive():
                pass
        return self.codes.get(pid)

    def _receive(self) -> dict | None:
        # Byte by byte from the descriptor: what a buffered reader holds would be invisible to select.
        line = b""
        while byte := os.read(self.process.stdout.fileno(), 1):
            if byte == b"\n":
                answer = json.loads(line)
                if "exit" in answer:
                    self.codes[answer["exit"]] = answer["code"]
                return answer
            line += byte
        return None


@functools.cache
def _fork_server(pid: int) -> ForkServer:
    return ForkServer(current_parent())


def start_fork_server() -> ForkServer | None:
    """The fork server of this process, which may still be importing torch; None where there can be none."""
    if sys.platform != "linux":
        return None
    server = _fork_server(os.getpid())
    if server.process.poll() is not None:
        _fork_server.cache_clear()
        server = _fork_server(os.getpid())
    return server


def fork_server(environment: Mapping[str, str]) -> ForkServer | None:
    """The fork server of this process; None where forking is not safe or `environment` has other settings for torch."""
    server = start_fork_server()
    return server if server and server.settings == _import_settings(environment) and server.usable else None


def _import_settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key.startswith(READ_AT_IMPORT)}


# In the fork server ------------------------------------------------------------------------------------------------

def main() -> None:
    """Import torch, then fork on request and report how each child ended."""
    import torch
    import torch._dynamo  # torch's compiler: each rank's first optimizer would import it, for 2 s and more
    import torch.distributed  # noqa: F401  # children have it too

    gc.collect()
    gc.freeze()  # children need not look at what was here before them, nor copy its pages
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _send({"safe": _may_fork()})
    buffer = b""
    while True:
        ready, _, _ = select.select([0, reader], [], [])
        if reader in ready:
            os.read(reader, 4096)
            _reap()
        if 0 in ready:
            chunk = os.read(0, 1 << 16)
            if not chunk:
                break
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                request = json.loads(line)
                pids = [_fork(request, environment) for environment in request["environments"]]
                _send({"number": request["number"], "pids": pids})


def _send(message: dict) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _may_fork() -> bool:
    """Whether forking is safe: there is one thread, and no GPU driver is open."""
    handles = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            handles.append(os.readlink(f"/proc/self/fd/{name}"))
    return len(os.listdir("/proc/self/task")) == 1 and not any("nvidia" in handle for handle in handles)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            _send({"exit": pid, "code": os.waitstatus_to_exitcode(status)})


def _fork(request: dict, environment: dict) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        _become_rank(request, environment)
    except BaseException:  # a rank that could not start: the fork server's log has the reason
        traceback.print_exc()
    finally:
        os._exit(70)


def _become_rank(request: dict, environment: dict) -> None:
    """Undo what makes this process a fork server, and run the boot file as a program."""
    import runpy

    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)  # else the parent would take what a rank prints early for the fork server's answers
    os.close(null)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["cwd"])
    sys.modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # every fork would draw the same numbers
    runpy.run_path(request["boot"], run_name="__main__")
