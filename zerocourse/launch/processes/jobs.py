"""The parent's side of a launch: its processes, what they have sent, and how all of them are ended.

A `Job` owns a folder that only this user can read and a run id in the environment of every process it starts.
"""

import collections
import contextlib
import math
import os
import pickle
import shutil
import signal
import subprocess
import time

from . import payload
from .attempts import Attempt, reason
from .cleanup import FOLDER_VARIABLE, RUN_VARIABLE, end_processes, find_processes
from .exits import ChildExits, ForkExits, TorchrunExits
from .failures import Failure, LaunchTimeout, RankDied, RankError
from .listener import Listener
from .parent import QUIET, boot_text, cores, current_parent, import_path, uninterrupted
from .position import STARTING, Position, dumped_position, waiting_text

TORCHRUN_SETS = {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                 "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
KEPT_LINES = 100_000  # how many lines of a job's output `Results.lines` keeps
EXIT_CODE_SECONDS = 3.0  # seconds in which whoever started a rank must say how it ended: enough on a busy machine
SAME_TIME = 0.1  # seconds, because the failures that a rank's death causes may be seen before the death
NOTICE_SECONDS = 5.0  # seconds after a rank returned, until a notice says that another still waits in a collective


class Results(list):
    """What the ranks returned, in rank order (of this node's ranks, on several nodes).

    `.records`: `(rank, dict)` of every `report(...)`; `.lines`: `(rank, text)` of the output, the last 100,000;
    `.seconds`: how long it took. `.attempts`: after restarts what was sent in each attempt; all else is the last one's.
    """

    def __init__(self, values=(), records=(), lines=(), seconds: float = 0.0, earlier=()):
        super().__init__(values)
        self.records, self.lines, self.seconds = list(records), list(lines), seconds
        self.attempts = [*earlier, Attempt(len(earlier) + 1, "", self.records, self.lines)]


class Job:
    """The processes of one launch on this machine. `poll` handles what they sent; nothing here waits for a rank.

    `verb` is the word for a rank that is done: a function has "returned", a script or a cell has "finished".
    """

    def __init__(self, nproc: int, env=None, cwd=None):
        parent = current_parent()
        number = next(parent.numbers)
        self.nproc, self.run_id, self.cwd = nproc, f"{parent.run_id}{number}/", os.path.abspath(cwd or os.getcwd())
        self.folder, self.closed, self.processes = parent.folder / str(number), False, []
        self.folder.mkdir(mode=0o700)
        self.env = QUIET | {
            key: value for key, value in os.environ.items() if key not in TORCHRUN_SETS
            and not key.startswith("TORCHELASTIC_") and not value.startswith("module://")  # MPLBACKEND
        }
        self.env |= {RUN_VARIABLE: self.run_id, FOLDER_VARIABLE: str(self.folder)}
        self.env |= {key: str(value) for key, value in (env or {}).items()}
        self.env.setdefault("OMP_NUM_THREADS", str(max(1, cores() // nproc)))
        self.pids, self.local_ranks = {}, {}  # process id by rank, rank by local rank
        self.forked = {}  # process ids by rank, of ranks that were forked and so do not carry the job's own run id
        self.torchrun = self.exits = TorchrunExits(self.folder / "torchrun.txt", self.local_ranks)
        self.ready, self.gone, self.gone_first = set(), [], []  # ranks; `gone_first` before any failure of another
        self.on_line = self.on_progress = self.on_notice = lambda *_: None
        self.earlier: list[Attempt] = []  # of an elastic launch: those before the present one
        self.reset()
        self.listener = Listener(self.folder, self._hello, self._event, self._output, self._disconnected)
        self.poll, self.drain, self.send = self.listener.poll, self.listener.drain, self.listener.send
        parent.jobs.add(self)

    def reset(self, verb: str = "returned") -> None:
        """Forget the results of earlier work."""
        self.verb = verb
        self.begun, self.done = set(), {}  # ranks that run the caller's code, or did; "done" events by rank
        self.failures, self.failed_at = [], math.inf  # failures with their time
        self.positions_told, self.notice_at = {}, math.inf
        self.records, self.lines = [], collections.deque(maxlen=KEPT_LINES)

    # Starting ----------------------------------------------------------------------------------------------------

    def boot(self, **spec) -> str:
        """Write the program that each rank runs, and return its path."""
        spec |= {"address": self.listener.address, "token": self.listener.token, "folder": str(self.folder),
                 "cwd": self.cwd}
        path = self.folder / "boot.py"
        path.write_text(boot_text("zerocourse.launch.rank_process", spec))
        return str(path)

    def write_work(self, **work) -> None:
        """Write the ranks' work into their folder, with what they need to see code as the caller sees it."""
        work |= {"cwd": self.cwd, "import_path": import_path(), "sources": payload.cell_sources()}
        (self.folder / "work").write_bytes(pickle.dumps(work))

    def start(self, command: list[str], env=None) -> subprocess.Popen:
        """Start a process in a session of its own; what it prints outside the connections goes to torchrun's log."""
        with open(self.torchrun.log, "ab") as log:
            process = subprocess.Popen(command, env=env or self.env, cwd=self.cwd, stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)
        return process

    def spawn(self, command: list[str], environments: list[dict]) -> None:
        """Start one process per rank."""
        self.exits = ChildExits([self.start(command, environment) for environment in environments])

    def fork(self, server, boot: str, environments: list[dict]) -> None:
        """Have the fork server `server` fork one process per rank."""
        self.forked = dict(enumerate(server.fork(boot, environments, self.cwd)))
        self.exits = ForkExits(server, self.forked)

    # What the ranks send -----------------------------------------------------------------------------------------

    def _hello(self, rank: int, hello: dict) -> None:
        if hello["local_rank"] in self.local_ranks:
            self._begin_attempt(rank)
        self.pids[rank], self.local_ranks[hello["local_rank"]] = hello["pid"], rank

    def _begin_attempt(self, rank: int) -> None:
        """Torchrun has started the ranks again, and `rank` is here: forget what the ranks before them sent."""
        kept = self.listener.connections.keys() - {rank}  # a rank of the new attempt that had none in the last
        why = reason(self.failed(), self.gone_first, self.torchrun)
        self.earlier.append(Attempt(len(self.earlier) + 1, why, self.records, list(self.lines)))
        done, begun = {each: self.done[each] for each in self.done.keys() & kept}, self.begun & kept
        self.reset(self.verb)
        self.done, self.begun, self.gone, self.gone_first = done, begun, [], []
        for local_rank in [each for each, of_node in self.local_ranks.items() if of_node not in kept]:
            self.pids.pop(self.local_ranks.pop(local_rank), None)
        self.torchrun.forget()
        self.on_notice(f"(attempt {len(self.earlier) + 1}: {why}, so torchrun has started the ranks again)")

    def _disconnected(self, rank: int) -> None:
        self.gone.append(rank)
        if time.monotonic() - self.failed_at < SAME_TIME:
            self.gone_first.append(rank)

    def _output(self, rank: int, text: str) -> None:
        if text.startswith("[Gloo] Rank ") and " is connected to " in text:  # up to torch 2.10 gloo says so for every group
            return
        self.lines.append((rank, text))
        self.on_line(rank, text)

    def _event(self, rank: int, event: dict) -> None:
        match event.pop("event"):
            case "ready":
                self.ready.add(rank)
            case "begun":
                self.begun.add(rank)
            case "record":
                self.records.append((rank, event["record"]))
            case "progress":
                self.on_progress(rank, event["step"], event["total"], event["info"])
            case "position":
                self.positions_told[rank] = Position(**event)
            case "done":
                self.done[rank] = event
                self.notice_at = time.monotonic() + NOTICE_SECONDS
            case "error":
                self.failed_at = min(self.failed_at, time.monotonic())
                position = Position(**event.pop("position"))
                self.failures.append((event.pop("time"), Failure(rank, **event, position=position)))

    def values(self, load=payload.load) -> list:
        """What each rank returned, in rank order; each is read once, by `load(path)`."""
        values = []
        for rank in sorted(self.pids):
            path = self.folder / f"value{rank}"
            values.append(load(path) if self.done.get(rank, {}).get("value") else None)
            path.unlink(missing_ok=True)
        return values

    # Who still waits, and where ----------------------------------------------------------------------------------

    def returned(self) -> dict[int, float]:
        """Seconds that the caller's code took, by rank, of the ranks that came to its end."""
        return {rank: event["seconds"] for rank, event in self.done.items() if event["ok"]}

    def timeout(self, seconds: float) -> LaunchTimeout:
        """The error that says which ranks were done when the time was up, and where the others were."""
        positions = self.positions()
        return LaunchTimeout(seconds, self.returned(), positions, self.verb)

    def notice_waiting(self) -> None:
        """Say once, through `on_notice`, that a rank waits in a collective for a rank that returned long ago."""
        if time.monotonic() < self.notice_at or len(self.done) == self.nproc:
            return
        positions = self.positions()
        if any(position.collective for position in positions.values()):
            self.on_notice(f"({waiting_text(self.returned(), positions, self.verb)})")
            self.notice_at = math.inf
        else:  # the others compute, and may still reach a collective
            self.notice_at = time.monotonic() + NOTICE_SECONDS

    def positions(self, timeout: float = 0.5) -> dict[int, Position]:
        """Where each rank is now that is not done. A rank that does not answer is looked up by faulthandler, from C."""
        asked = {rank for rank in self.begun & self.pids.keys() if rank not in self.done}
        self.positions_told = {}
        self.send({"kind": "position"})
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and asked - self.positions_told.keys() - self.done.keys():
            self.poll(0.02)
        silent = asked - self.positions_told.keys()
        told = self.positions_told | self._dumped(silent)
        first = next((rank - local_rank for local_rank, rank in self.local_ranks.items()), 0)  # of this node's ranks
        return {rank: told[rank] if rank in asked else STARTING
                for rank in range(first, first + self.nproc) if rank not in self.done}

    def _dumped(self, ranks, timeout: float = 0.3) -> dict[int, Position]:
        dumps = {rank: self.folder / f"stack{rank}" for rank in ranks}
        for rank in dumps if hasattr(signal, "SIGUSR1") else ():
            with contextlib.suppress(OSError):
                os.kill(self.pids[rank], signal.SIGUSR1)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and not all(d.exists() and d.stat().st_size for d in dumps.values()):
            time.sleep(0.02)
        if dumps:
            time.sleep(0.05)  # a dump is written in pieces
        return {rank: dumped_position(d.read_text(errors="replace") if d.exists() else "") for rank, d in dumps.items()}

    # What went wrong ---------------------------------------------------------------------------------------------

    def failed(self) -> list[Failure]:
        """Every failure, the first to happen first; where all ranks say the same, which one came first is no news."""
        alike = len({(failure.kind, failure.message) for _, failure in self.failures}) == 1
        return [f for _, f in sorted(self.failures, key=lambda pair: pair[1].rank if alike else pair[0])]

    def rank_error(self) -> RankError:
        """The error for exceptions that ranks raised."""
        return RankError(self.failed(), self.returned(), self.verb)

    def rank_died(self, certain: bool = True) -> RankDied | None:
        """The error for a rank that ended without an exception before any other failed; None if there is no such rank.

        The exit codes are known a little later than the end of the connections, so this may wait.
        `certain=False`: ranks without a bad exit code count as having ended well (a script that calls os._exit(0)).
        """
        failures = self.failed()
        told = {*self.done, *(failure.rank for failure in failures)}
        suspects = [rank for rank in self.gone_first if rank not in told]
        self._await_codes(suspects)
        codes, first_failed = self.exits.codes(), self.exits.first_failed()
        # Torchrun ends the peers of a rank that failed with SIGTERM: such a death is not the cause.
        suspects = [r for r in suspects if not (codes.get(r) == -signal.SIGTERM and first_failed not in (None, r))]
        if not certain:
            suspects = [rank for rank in suspects if rank in codes]
        if not suspects and not failures:
            unexplained = [rank for rank in self.gone if certain and rank not in told]
            suspects = [first_failed] if first_failed is not None else [*codes] or unexplained
        if not suspects:
            return None
        after = "; ".join(f"rank {f.rank}: {f.kind}: {f.message}" for f in failures)
        detail = f"after it, {after}" if after else "" if self.pids else self.torchrun.text()[-3000:]
        return RankDied(suspects[0], codes.get(suspects[0]), detail)

    def _await_codes(self, suspects: list[int]) -> None:
        """Wait up to EXIT_CODE_SECONDS for the exit code of one of `suspects`.

        Torchrun tells only when the other ranks have ended, so those that do not within 0.3 s are killed.
        """
        started = time.monotonic()
        while suspects and not any(rank in self.exits.codes() for rank in suspects):
            waited = time.monotonic() - started
            if waited > EXIT_CODE_SECONDS:
                break
            for rank in self.listener.connections if waited > 0.3 else ():
                with contextlib.suppress(OSError):
                    os.kill(self.pids[rank], getattr(signal, "SIGKILL", signal.SIGTERM))
            self.poll(0.05)

    # The end -----------------------------------------------------------------------------------------------------

    def close(self, grace: float = 0.3) -> None:
        """End every process, wait until there is none, close the connections, remove the folder. Safe to call twice."""
        if self.closed:
            return
        self.on_line = self.on_progress = self.on_notice = lambda *_: None
        with uninterrupted():
            end_processes(self._living, grace)
            for process in self.processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1)
            self.listener.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            self.closed = True

    def _living(self) -> list[int]:
        started = [p.pid for p in self.processes if p.poll() is None]
        if os.path.isdir("/proc/self"):
            return list({*started, *find_processes(self.run_id, set(self.forked.values()))})
        return [*started, *(pid for rank, pid in self.pids.items() if rank not in self.gone and pid not in started)]
