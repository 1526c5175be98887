"""The parent's side of a launch: its processes, what they have told us, and the end of them all.

A `Job` owns a folder that only this user can read and a mark in the environment of every process it starts.
"""

import collections
import contextlib
import functools
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import time

from . import payload
from .channels import Inbox
from .failures import Failure, RankDied, where
from .cleanup import FOLDER, MARK, end_all, marked
from .parent import PACKAGE_FOLDER, QUIET, boot_text, cores, import_path, owner, uninterrupted

TORCHRUN_SETS = {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                 "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
KEPT_LINES = 100_000  # of a job's output, in `Results.lines`
SAME_TIME = 0.1  # seconds; what a rank's death does to the others may be seen before the death itself
FIRST_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
FAILED = re.compile(r"\(local_rank: (\d+)\)\s+exitcode\s+: (-?\d+)")


class Results(list):
    """What the ranks returned, in rank order (of this node's ranks, on several nodes).

    `.records`: `(rank, dict)` of every `report(...)`; `.lines`: `(rank, text)` of the output, the last 100,000;
    `.seconds`: how long it took.
    """

    def __init__(self, values=(), records=(), lines=(), seconds: float = 0.0):
        super().__init__(values)
        self.records, self.lines, self.seconds = list(records), list(lines), seconds


class Job:
    """The processes of one launch on this machine. `pump` takes what they sent; nothing here waits for a rank."""

    def __init__(self, nproc: int, env=None, cwd=None):
        boss = owner()
        number = next(boss.numbers)
        self.nproc, self.mark, self.cwd = nproc, f"{boss.mark}{number}/", os.path.abspath(cwd or os.getcwd())
        self.folder, self.closed, self.processes = boss.folder / str(number), False, []
        self.folder.mkdir(mode=0o700)
        self.env = QUIET | {
            key: value for key, value in os.environ.items() if key not in TORCHRUN_SETS
            and not key.startswith("TORCHELASTIC_") and not value.startswith("module://")  # MPLBACKEND
        }
        self.env |= {MARK: self.mark, FOLDER: str(self.folder)}
        self.env |= {key: str(value) for key, value in (env or {}).items()}
        self.env.setdefault("OMP_NUM_THREADS", str(max(1, cores() // nproc)))
        self.pids, self.local_ranks = {}, {}  # process id by rank, rank by local rank
        self.forked = {}  # process ids by rank, of ranks that were forked and so do not carry the job's own mark
        self.ready, self.gone, self.gone_first = set(), [], []  # ranks; `gone_first` before any failure of another
        self.on_line = self.on_progress = lambda *_: None
        self.expect()
        self.inbox = Inbox(self.folder, self._hello, self._event, self._output, self._gone)
        self.pump, self.drain, self.send = self.inbox.pump, self.inbox.drain, self.inbox.send
        boss.jobs.add(self)

    def expect(self) -> None:
        """Forget what earlier work has brought."""
        self.done, self.failures, self.failed_at = {}, [], math.inf  # "done" events by rank; failures with their time
        self.records, self.lines = [], collections.deque(maxlen=KEPT_LINES)

    # Starting ----------------------------------------------------------------------------------------------------

    def boot(self, **spec) -> str:
        """Write the program that each rank runs, and return its path."""
        spec |= {"address": self.inbox.address, "token": self.inbox.token, "folder": str(self.folder), "cwd": self.cwd}
        path = self.folder / "boot.py"
        path.write_text(boot_text("zerocourse.launch.worker", spec))
        return str(path)

    def write_work(self, **work) -> None:
        """Leave what the ranks are to do in their folder, with what makes them see code as the caller does."""
        work |= {"cwd": self.cwd, "import_path": import_path(), "sources": payload.cell_sources()}
        (self.folder / "work").write_bytes(pickle.dumps(work))

    def start(self, command: list[str], env=None) -> subprocess.Popen:
        """Start a process in a session of its own; what it says outside the channels goes to `agent_text`."""
        with open(self.folder / "agent.txt", "ab") as log:
            process = subprocess.Popen(command, env=env or self.env, cwd=self.cwd, stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log, start_new_session=True)
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

    # What the ranks say ------------------------------------------------------------------------------------------

    def _hello(self, rank: int, hello: dict) -> None:
        self.pids[rank], self.local_ranks[hello["local_rank"]] = hello["pid"], rank

    def _gone(self, rank: int) -> None:
        self.gone.append(rank)
        if time.monotonic() - self.failed_at < SAME_TIME:
            self.gone_first.append(rank)

    def _output(self, rank: int, text: str) -> None:
        self.lines.append((rank, text))
        self.on_line(rank, text)

    def _event(self, rank: int, event: dict) -> None:
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
                self.failed_at = min(self.failed_at, time.monotonic())
                self.failures.append((event.pop("time"), Failure(rank, **event)))

    def values(self) -> list:
        """What each rank returned, in rank order; each is read once."""
        values = []
        for rank in sorted(self.pids):
            path = self.folder / f"value{rank}"
            values.append(payload.load(path) if self.done.get(rank, {}).get("value") else None)
            path.unlink(missing_ok=True)
        return values

    # What went wrong ---------------------------------------------------------------------------------------------

    def failed(self) -> list[Failure]:
        """Every failure, the first to happen first; where all ranks say the same, which one came first is no news."""
        alike = len({(failure.kind, failure.message) for _, failure in self.failures}) == 1
        return [f for _, f in sorted(self.failures, key=lambda pair: pair[1].rank if alike else pair[0])]

    def agent_text(self) -> str:
        """What torchrun, or Python before the channels were up, had to say."""
        path = self.folder / "agent.txt"
        return path.read_text(errors="replace") if path.exists() and path.stat().st_size else ""

    def exit_codes(self) -> dict[int, int]:
        """Exit codes of ranks that did not end well, as far as who started them has told."""
        text = self.agent_text()
        codes = {self.local_ranks.get(int(local), int(local)): int(code) for local, code in FAILED.findall(text)}
        first = FIRST_FAILED.search(text)
        return codes | ({self.first_failed(): int(first[1])} if first else {})

    def first_failed(self) -> int | None:
        """The rank that torchrun saw fail first."""
        first = FIRST_FAILED.search(self.agent_text())
        return self.local_ranks.get(int(first[2]), int(first[2])) if first else None

    def in_trouble(self) -> bool:
        """Whether torchrun has seen a rank fail; ending the others can take it half a minute, so we do not wait."""
        return "closing signal" in (text := self.agent_text()) or FIRST_FAILED.search(text) is not None

    def death(self, certain: bool = True) -> RankDied | None:
        """The error for a rank that ended without a word, before any other rank failed. None: there is no such rank.

        Who started the ranks knows exit codes a little later than we see ranks go, so this may wait a second.
        `certain=False`: ranks without a bad exit code count as having ended well (a script that calls os._exit(0)).
        """
        failures = self.failed()
        told = {*self.done, *(failure.rank for failure in failures)}
        suspects = [rank for rank in self.gone_first if rank not in told]
        self._await_codes(suspects)
        codes, root = self.exit_codes(), self.first_failed()
        # Torchrun ends the peers of a rank that failed with SIGTERM: such a death is not the cause.
        suspects = [r for r in suspects if not (codes.get(r) == -signal.SIGTERM and root not in (None, r))]
        if not certain:
            suspects = [rank for rank in suspects if rank in codes]
        if not suspects and not failures:
            suspects = [root] if root is not None else [*codes] or [r for r in self.gone if certain and r not in told]
        if not suspects:
            return None
        after = "; ".join(f"rank {f.rank}: {f.kind}: {f.message}" for f in failures)
        detail = f"after it, {after}" if after else "" if self.pids else self.agent_text()[-3000:]
        return RankDied(suspects[0], codes.get(suspects[0]), detail)

    def _await_codes(self, suspects: list[int]) -> None:
        """Wait up to a second for the exit code of one of `suspects`.

        Torchrun tells only when the other ranks have ended, so those that do not within 0.3 s are killed.
        """
        started = time.monotonic()
        while suspects and not any(rank in self.exit_codes() for rank in suspects):
            waited = time.monotonic() - started
            if waited > 1:
                break
            for rank in self.inbox.channels if waited > 0.3 else ():
                with contextlib.suppress(OSError):
                    os.kill(self.pids[rank], getattr(signal, "SIGKILL", signal.SIGTERM))
            self.pump(0.05)

    def where(self, ranks, timeout: float = 0.5) -> dict[int, str]:
        """Where each of `ranks` is now: faulthandler answers even from a collective that is stuck in C++."""
        if not hasattr(signal, "SIGUSR1"):
            return {rank: "(where is not known on this system)" for rank in ranks}
        dumps = {rank: self.folder / f"stack{rank}" for rank in ranks if rank in self.pids}
        for rank in dumps:
            with contextlib.suppress(OSError):
                os.kill(self.pids[rank], signal.SIGUSR1)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and not all(d.exists() and d.stat().st_size for d in dumps.values()):
            time.sleep(0.02)
        time.sleep(0.05)  # a dump is written in pieces
        launcher = (str(self.folder / "boot.py"), f"{PACKAGE_FOLDER}/processes/", f"{PACKAGE_FOLDER}/worker.py",
                    f"{PACKAGE_FOLDER}/distributed.py")
        texts = {rank: dump.read_text(errors="replace") if dump.exists() else "" for rank, dump in dumps.items()}
        return {rank: where(texts[rank], launcher) if rank in texts else "(still starting)" for rank in ranks}

    # The end -----------------------------------------------------------------------------------------------------

    def close(self, grace: float = 0.3) -> None:
        """End every process, wait until there is none, hang up and remove the folder. Safe to call twice."""
        if self.closed:
            return
        self.on_line = self.on_progress = lambda *_: None
        with uninterrupted():
            end_all(self._living, grace)
            for process in self.processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1)
            self.inbox.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            self.closed = True

    def _living(self) -> list[int]:
        started = [p.pid for p in self.processes if p.poll() is None]
        if os.path.isdir("/proc/self"):
            return list({*started, *marked(self.mark, set(self.forked.values()))})
        return [*started, *(pid for rank, pid in self.pids.items() if rank not in self.gone and pid not in started)]
