"""Ranks that are kept alive: the process group stays up, and a function or a cell answers in milliseconds."""

import functools
import itertools
import linecache
import os
import sys
import threading
import time

from ..errors import BadInput
from .processes import payload
from .processes.failures import LaunchInterrupted
from .processes.fork_server import fork_server
from .processes.jobs import Job, Results
from .processes.listener import free_port
from .processes.parent import SWITCH, cores, with_device

START_SECONDS = 120  # seconds to import torch from a slow disk and start the process group
IDLE_SECONDS = 600.0  # after which ranks that hold nothing leave: each has a few hundred MB
GRACE_SECONDS = 5.0  # later than that they leave, so that none leaves while it is given work
RANKS_A_CORE = 4  # more of them only on purpose
PEERS_SECONDS = {"call": 0.3, "cell": 1.0}  # seconds that the others have to return after one rank failed

_cells = itertools.count(1)


class Ranks:
    """`nproc` processes with `torch.distributed` initialised, which run functions and cells until closed.

    They start with the first use, and again by themselves after they were stopped: by an interrupt, a timeout, a
    rank that died or is stuck, or any failure in `run`. `timeout` (seconds, without the start of the ranks) is the
    default of each call, `env` adds to the environment, `device` is where they compute ("cpu", "cuda" or "auto", in place of
    the environment's ZEROCOURSE_DEVICE: see `comm.bootstrap`), `only` is the ranks whose lines `echo` shows, `quiet`
    shows none, `init=False` leaves the process group to the caller, `fork=False` starts each rank as a new Python.
    Ranks without work for `idle` seconds (None: for ever) leave, and the next call starts new ones; ranks that have run a
    cell stay, because they hold its variables.
    `as_json=True`: values come back as JSON and no pickle of a rank's is ever loaded, for ranks that run code of people
    whom the caller does not trust; what a function returns must be of numbers, strings, lists and dictionaries then.
    """

    def __init__(self, nproc: int = 2, *, timeout: float | None = None, env=None, echo=print, quiet: bool = False,
                 only=None, init: bool = True, fork: bool = True, oversubscribe: bool = False,
                 as_json: bool = False, idle: float | None = IDLE_SECONDS, device: str | None = None):
        self.nproc, self.timeout, self.env, self.init, self.fork = nproc, timeout, with_device(env, device), init, fork
        self.as_json, self.idle, self._last_used = as_json, idle, 0.0
        self.echo, self.quiet, self.only = echo, quiet, only  # may be changed between calls
        self._job, self._has_variables, self._lock = None, False, threading.Lock()
        check_nproc(nproc, oversubscribe)

    def run(self, fn, *args, timeout: float | None = None, **kwargs) -> Results:
        """Run `fn(*args, **kwargs)` on every rank, and return the results. Raises RankError, RankDied, LaunchTimeout.

        For each call the ranks are as if new: torch's seed is 0, and after a failure the ranks are started again.
        """
        call = payload.pack(fn, args, kwargs)
        with self._lock:
            return self._do("call", {"call": call}, timeout)

    def exec(self, code: str, *, name: str | None = None, timeout: float | None = None) -> Results:
        """Run the text of a cell on every rank; variables are kept for the next one, also after an exception in it.

        In a cell `rank`, `world_size`, `torch`, `dist`, `report` and `progress` are defined. A last line that is an
        expression is printed, and is the rank's value. `name` is the file name that tracebacks give.
        """
        name = name or f"<ranks cell {next(_cells)}>"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)  # for errors, here and there
        with self._lock:
            try:
                return self._do("cell", {"code": code, "name": name}, timeout)
            finally:
                self._has_variables = True

    def close(self) -> None:
        """End the ranks; the next use starts new ones."""
        job, self._job = self._job, None
        if job:
            job.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def pids(self) -> dict[int, int]:
        """The process id of each rank that runs now."""
        return dict(self._job.pids) if self._job else {}

    def _do(self, kind: str, work: dict, timeout: float | None) -> Results:
        started, limit = time.monotonic(), self.timeout if timeout is None else timeout
        try:
            job = self._living() or self._start()
            job.reset("returned" if kind == "call" else "finished")
            job.cwd = os.getcwd()
            self._connect_output(job)
            job.write_work(**work)
            job.send({"kind": kind})
            self._wait(job, limit, PEERS_SECONDS[kind])
            values = job.values(payload.load_json if self.as_json else payload.load)
            self._last_used = time.monotonic()
        except KeyboardInterrupt:
            self.close()
            raise LaunchInterrupted(f"interrupted: all {self.nproc} ranks were stopped") from None
        except BaseException:
            self.close()
            raise
        # Ranks that issued different numbers of collectives would pair the wrong ones from now on.
        counts = {done.get("calls") for done in job.done.values()}
        if len(counts) > 1 or (kind == "call" and (job.failures or (self.init and None in counts))):
            self.close()
        if job.failures:
            raise job.rank_error()
        return Results(values, job.records, job.lines, time.monotonic() - started)

    def _wait(self, job: Job, limit: float | None, peers_seconds: float) -> None:
        """Wait until every rank is done. Raises when one died or is stuck after another failed, and at the timeout."""
        started, failed_at = time.monotonic(), None
        while len(job.done) < self.nproc:
            job.poll(0.1)
            now = time.monotonic()
            if job.gone:
                raise job.rank_died() or job.rank_error()
            if job.failures:
                failed_at = failed_at or now
                if now - failed_at > peers_seconds:
                    raise job.rank_error()
            if limit is not None and now - started > limit:
                raise job.timeout(limit)
            job.notice_waiting()
        job.drain()

    def _living(self) -> Job | None:
        """The job, unless one of its ranks has died since it was last used, or all have left, or are about to."""
        if self._job and self.idle is not None and not self._has_variables and time.monotonic() - self._last_used > self.idle:
            self.close()
        if self._job:
            self._job.poll(0)
            if self._job.gone:
                self.close()
        return self._job

    def _connect_output(self, job: Job) -> None:
        """Show the job's lines and notices as this object is set to now."""
        job.on_notice = (lambda line: None) if self.quiet else self.echo
        job.on_line = (lambda rank, text: None) if self.quiet else line_printer(self.only, self.echo)

    def _start(self) -> Job:
        """Start the ranks and wait for their process group."""
        if self._has_variables:
            self._has_variables = False
            self.echo("(the ranks were started afresh: variables of earlier cells are gone)")
        for attempt in range(3):
            job = self._job = Job(self.nproc, self.env)
            self._connect_output(job)
            self._start_processes(job, free_port())
            deadline = time.monotonic() + START_SECONDS
            while len(job.ready) < self.nproc and not job.failures and not job.exits.codes():
                job.poll(0.1)
                if time.monotonic() > deadline:
                    raise job.timeout(START_SECONDS)
            if len(job.ready) == self.nproc:
                return job
            job.poll(0.5)
            port_taken = any("EADDRINUSE" in failure.message for failure in job.failed())
            if not (port_taken and attempt < 2):
                raise (None if job.failures else job.rank_died()) or job.rank_error()
            job.close()

    def _start_processes(self, job: Job, port: int) -> None:
        idle = None if self.idle is None else self.idle + GRACE_SECONDS
        boot = job.boot(kind="serve", init=self.init, as_json=self.as_json, idle=idle)
        world = {"WORLD_SIZE": self.nproc, "LOCAL_WORLD_SIZE": self.nproc, "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": port}
        environments = [{**job.env, **{key: str(value) for key, value in world.items()}, "RANK": str(rank),
                         "LOCAL_RANK": str(rank)} for rank in range(self.nproc)]
        server = fork_server(environments[0]) if self.fork else None
        if server:
            job.fork(server, boot, environments)
        else:
            job.spawn([sys.executable, boot], environments)


def line_printer(only, echo, label=str):
    """A function `(rank, text)` that has `echo` show the lines of the ranks in `only` (one, several; None: all).

    label(rank): what stands before a line.
    """
    wanted = {only} if isinstance(only, int) else only if only is None else set(only)
    return lambda rank, text: echo(f"[{label(rank)}] {text}") if wanted is None or rank in wanted else None


def check_nproc(nproc, oversubscribe: bool = False) -> None:
    """Raise BadInput unless this machine can reasonably run `nproc` ranks: four for each core, more if asked."""
    if isinstance(nproc, bool) or not isinstance(nproc, int) or nproc < 1:
        raise BadInput(f"nproc is {nproc!r}; it is the number of ranks, a positive integer")
    if nproc > RANKS_A_CORE * cores() and not oversubscribe:
        raise BadInput(f"nproc={nproc} is more than four ranks for each of the {cores()} cores of this machine; "
                       "ask for fewer, or pass oversubscribe=True")


def shared(nproc: int = 2, device: str | None = None) -> Ranks:
    """The ranks that everybody in this process who needs `nproc` of them, computing there, shares: checks, `%%ranks`, tests."""
    return _shared(nproc, device or os.environ.get(SWITCH, "auto"))


@functools.cache
def _shared(nproc: int, device: str) -> Ranks:
    return Ranks(nproc, device=device)
