"""The parent's side of a launch: its processes, their channels to us, and the end of them all.

A `Job` owns a folder that only this user can read, a mark in the environment of every process it starts, and two
connections from each rank: events as JSON lines, and output as raw bytes that are cut into lines here. Nothing here
ever waits for a rank: `pump` takes what has come.
"""

import atexit
import collections
import contextlib
import functools
import itertools
import json
import os
import pickle
import re
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path

from . import payload
from .failures import Failure, RankDied, where
from .guard import MARK, end_all, marked

LONGEST_PIECE = 1 << 20  # bytes of output without a newline that are held before they are shown as a line
KEPT_LINES = 100_000  # of a job's output, in `Results.lines`
TORCHRUN_SETS = {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                 "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
PACKAGE_FOLDER = str(Path(__file__).parents[1])


class Results(list):
    """What the ranks returned, in rank order (of this node's ranks, on several nodes).

    `.records`: `(rank, dict)` of every `report(...)`; `.lines`: `(rank, text)` of the output, the last 100,000;
    `.seconds`: how long it took.
    """

    def __init__(self, values=(), records=(), lines=(), seconds: float = 0.0):
        super().__init__(values)
        self.records, self.lines, self.seconds = list(records), list(lines), seconds


class _Owner:
    """This process in its role as a parent: one mark, one folder, and one guard that outlives it."""

    def __init__(self):
        outer = os.environ.get(MARK, "")
        self.pid, self.mark, self.numbers = os.getpid(), f"{outer}{secrets.token_hex(8)}/", itertools.count(1)
        self.folder, self.jobs = Path(tempfile.mkdtemp(prefix="zc-")), weakref.WeakSet()
        if os.path.isdir("/proc/self"):
            command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))]
            self.guard = subprocess.Popen([*command, str(os.getpid()), self.mark, str(self.folder)], cwd="/",
                                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
        atexit.register(self.close)

    def close(self):
        if os.getpid() != self.pid:  # a fork of us that ends has nothing to close
            return
        for job in list(self.jobs):
            job.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@functools.cache
def _owner_of(pid: int) -> _Owner:
    return _Owner()


def owner() -> _Owner:
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


class _Lines:
    """Cuts a stream of chunks into lines; a line longer than `longest` bytes comes in pieces."""

    def __init__(self, longest: int | None = None):
        self.parts, self.size, self.longest = [], 0, longest

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes; an empty chunk is the end, and completes what is left."""
        self.parts.append(chunk)
        self.size += len(chunk)
        full = self.longest and self.size > self.longest
        if chunk and b"\n" not in chunk and not full:
            return []
        *lines, rest = b"".join(self.parts).split(b"\n")
        if rest and (not chunk or (self.longest and len(rest) > self.longest)):
            lines, rest = [*lines, rest], b""
        self.parts, self.size = [rest], len(rest)
        return lines


class Job:
    """The processes of one launch on this machine, and everything they have told us."""

    def __init__(self, nproc: int, env=None, cwd=None):
        boss = owner()
        number = next(boss.numbers)
        self.nproc, self.mark, self.cwd = nproc, f"{boss.mark}{number}/", os.path.abspath(cwd or os.getcwd())
        self.folder, self.token = boss.folder / str(number), secrets.token_hex(16)
        self.folder.mkdir(mode=0o700)
        self.selector, self.processes, self.closed = selectors.DefaultSelector(), [], False
        self.pids, self.channels, self.local_ranks = {}, {}, {}  # by rank, by rank, rank by local rank
        self.forked = {}  # rank: process id, of ranks that were forked and so do not carry the job's own mark
        self.ready, self.gone, self.done = set(), [], {}  # ranks; ranks; rank: its last "done" event
        self.failures, self.records, self.lines = [], [], collections.deque(maxlen=KEPT_LINES)
        self.on_line = self.on_progress = lambda *_: None
        self.env = {key: value for key, value in os.environ.items() if key not in TORCHRUN_SETS
                    and not key.startswith("TORCHELASTIC_") and not value.startswith("module://")}  # MPLBACKEND
        self.env |= {MARK: self.mark, **{key: str(value) for key, value in (env or {}).items()}}
        self.env.setdefault("OMP_NUM_THREADS", str(max(1, cores() // nproc)))
        self.env.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        self.server, self.address = _listen(self.folder)
        self.selector.register(self.server, selectors.EVENT_READ, self._accept)
        boss.jobs.add(self)

    def boot(self, module: str, **spec) -> str:
        """Write the program that each process runs: `module.main(spec)` under the caller's import path."""
        spec |= {"address": self.address, "token": self.token, "folder": str(self.folder), "cwd": self.cwd}
        path = self.folder / "boot.py"
        path.write_text(f"import sys\nif __name__ == '__main__':\n    sys.path[:] = {import_path()!r}\n"
                        f"    from {module} import main\n    main({spec!r})\n")
        return str(path)

    def start(self, command: list[str], env=None, **pipes) -> subprocess.Popen:
        """Start a process in a session of its own; what it says outside the channels goes to `agent_text`."""
        with open(self.folder / "agent.txt", "ab") as log:
            process = subprocess.Popen(command, env=env or self.env, cwd=self.cwd, start_new_session=True,
                                       **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log} | pipes)
        self.processes.append(process)
        return process

    def spawn(self, command: list[str], environments: list[dict]) -> None:
        """Start one process a rank."""
        started = [self.start(command, environment) for environment in environments]
        self.exit_codes = lambda: {rank: p.returncode for rank, p in enumerate(started) if p.poll() is not None}

    def adopt(self, home, boot: str, environments: list[dict]) -> None:
        """Have one process a rank forked by the nursery `home`."""
        self.forked = dict(enumerate(home.fork(boot, environments, self.cwd)))
        codes = {rank: functools.partial(home.exit_code, pid) for rank, pid in self.forked.items()}
        self.exit_codes = lambda: {rank: code() for rank, code in codes.items() if code() is not None}

    def write_work(self, **work) -> None:
        """Leave what the ranks are to do in their folder, with what makes them see code as the caller does."""
        work |= {"cwd": os.getcwd(), "import_path": import_path(), "sources": payload.cell_sources()}
        (self.folder / "work").write_bytes(pickle.dumps(work))

    def values(self) -> list:
        """What each rank returned, in rank order; each is read once."""
        values = []
        for rank in sorted(self.pids):
            path = self.folder / f"value{rank}"
            values.append(payload.load(path) if self.done[rank].get("value") else None)
            path.unlink(missing_ok=True)
        return values

    def death(self) -> RankDied:
        """The error for a rank that is gone, once its exit code is known or a second has passed."""
        deadline = time.monotonic() + 1
        while not (codes := self.exit_codes()) and time.monotonic() < deadline:
            self.pump(0.05)
        rank = next((rank for rank in self.gone if rank in codes), next(iter(codes or self.gone)))
        after = ", ".join(f"rank {f.rank}: {f.kind}: {f.message}" for f in self.failed())
        return RankDied(rank, codes.get(rank), f"after it, {after}" if after else "")

    def agent_text(self) -> str:
        """What torchrun, or Python before the channels were up, had to say."""
        path = self.folder / "agent.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def exit_codes(self) -> dict[int, int]:
        """Exit codes of ranks that failed, as torchrun saw them; it is torchrun that ends the others then."""
        seen = re.findall(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)", self.agent_text())
        return {self.local_ranks.get(int(local), int(local)): int(code) for code, local in seen}

    def send(self, message: dict) -> None:
        """Say something to every rank; a rank that is gone hears nothing."""
        line = json.dumps(message).encode() + b"\n"
        for channel in self.channels.values():
            with contextlib.suppress(OSError):
                channel.sendall(line)

    def pump(self, timeout: float) -> bool:
        """Take what has come, waiting at most `timeout` seconds for it; says whether anything had."""
        ready = self.selector.select(timeout)
        for key, _ in ready:
            key.data(key.fileobj)
        return bool(ready)

    def drain(self) -> None:
        """Take all that has come. What a rank wrote before it said "done" is here when that is."""
        while self.pump(0):
            pass

    def _accept(self, server) -> None:
        connection, _ = server.accept()
        self.selector.register(connection, selectors.EVENT_READ, self._first)

    def _first(self, connection) -> None:
        """A connection's first line says whose it is and what for; without the job's token it is turned away."""
        connection.settimeout(5)  # of a line of 100 bytes that a rank sends as soon as it connects
        with contextlib.suppress(OSError, ValueError, KeyError):
            hello = json.loads(_read_line(connection))
            if secrets.compare_digest(hello["token"], self.token):
                rank = hello["rank"]
                if hello["use"] == "events":
                    self.pids[rank], self.channels[rank] = hello["pid"], connection
                    self.local_ranks[hello["local_rank"]] = rank
                    take, lines = self._event, _Lines()
                else:
                    take, lines = self._output, _Lines(LONGEST_PIECE)
                connection.settimeout(None)
                self.selector.modify(connection, selectors.EVENT_READ, functools.partial(self._read, rank, lines, take))
                return
        self._drop(connection)

    def _read(self, rank: int, lines: _Lines, take, connection) -> None:
        try:
            chunk = connection.recv(1 << 16)
        except OSError:
            chunk = b""
        for line in lines.feed(chunk):
            take(rank, line)
        if not chunk:
            self._drop(connection)
            if self.channels.get(rank) is connection:
                del self.channels[rank]
                self.gone.append(rank)

    def _drop(self, connection) -> None:
        self.selector.unregister(connection)
        connection.close()

    def _output(self, rank: int, line: bytes) -> None:
        # What a progress bar overwrote with carriage returns was never meant to be kept.
        text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
        self.lines.append((rank, text))
        self.on_line(rank, text)

    def _event(self, rank: int, line: bytes) -> None:
        event = json.loads(line)
        match event.pop("event"):
            case "ready":
                self.ready.add(rank)
            case "record":
                self.records.append((rank, event["record"]))
            case "progress":
                self.on_progress(rank, event["step"], event["total"], event["info"])
            case "done":
                self.done[rank] = event
            case "error":
                self.failures.append((event.pop("time"), Failure(rank, **event)))

    def failed(self) -> list[Failure]:
        """Every failure, the first to happen first."""
        return [failure for _, failure in sorted(self.failures, key=lambda pair: pair[0])]

    def where(self, ranks, timeout: float = 0.5) -> dict[int, str]:
        """Where each of `ranks` is now: faulthandler answers even from a collective that is stuck in C++."""
        dumps = {rank: self.folder / f"stack{rank}" for rank in ranks if rank in self.pids}
        if not hasattr(signal, "SIGUSR1"):
            return {rank: "(where is not known on this system)" for rank in ranks}
        for rank in dumps:
            with contextlib.suppress(OSError):
                os.kill(self.pids[rank], signal.SIGUSR1)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and not all(d.exists() and d.stat().st_size for d in dumps.values()):
            time.sleep(0.02)
        time.sleep(0.05)  # a dump is written in pieces
        launcher = (str(self.folder / "boot.py"), f"{PACKAGE_FOLDER}/worker.py", f"{PACKAGE_FOLDER}/processes/")
        texts = {rank: dump.read_text(errors="replace") if dump.exists() else "" for rank, dump in dumps.items()}
        return {rank: where(texts[rank], launcher) if rank in texts else "(still starting)" for rank in ranks}

    def kill(self, grace: float = 0.3) -> None:
        """End every process of the job and wait until there is none."""
        self.on_line = self.on_progress = lambda *_: None
        with uninterrupted():
            end_all(self._living, grace)
            for process in self.processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1)

    def _living(self) -> list[int]:
        started = [p.pid for p in self.processes if p.poll() is None]
        if os.path.isdir("/proc/self"):
            return list({*started, *marked(self.mark, set(self.forked.values()))})
        return [*started, *(pid for rank, pid in self.pids.items() if rank not in self.gone and pid not in started)]

    def close(self) -> None:
        """Kill, hang up and remove the folder. Safe to call twice."""
        if self.closed:
            return
        try:
            self.kill()
        finally:
            self.closed = True
            for key in list(self.selector.get_map().values()):
                self._drop(key.fileobj)
            self.selector.close()
            shutil.rmtree(self.folder, ignore_errors=True)


def import_path() -> list[str]:
    """This process's `sys.path` as another process can use it, with the package on it."""
    path = [os.path.abspath(entry) if entry in ("", ".") else entry for entry in sys.path]
    root = os.path.dirname(PACKAGE_FOLDER)
    return path if root in path else [*path, root]


def free_port() -> int:
    """A TCP port of this machine that nobody listened on a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _listen(folder: Path):
    """A listening socket and its address: a path in `folder`, or TCP on loopback where paths cannot be had."""
    path = str(folder / "s")
    if hasattr(socket, "AF_UNIX") and len(path.encode()) < 100:  # the kernel's limit is 108 bytes, 104 on macOS
        server, address = socket.socket(socket.AF_UNIX), path
        server.bind(path)
    else:
        server = socket.socket()
        server.bind(("127.0.0.1", 0))
        address = server.getsockname()[1]
    server.listen(128)
    return server, address


def _read_line(connection) -> bytes:
    """One line, and not a byte of what follows it."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 1000:
        if not (byte := connection.recv(1)):
            break
        line += byte
    return line
