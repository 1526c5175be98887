"""`launch(target)`: a function, a script or a module on several ranks, always under a real torchrun.

Lines are shown as they are printed, with their rank in front, and the values that functions return come back as a list.
When a launch has ended, however it ended, none of its processes is left, also after an interrupt, a timeout or the
death of the parent.

With `max_restarts` torchrun is elastic: when a rank dies or raises, it ends all ranks and starts new ones, which must
find by themselves where to go on, as `engine.load_checkpoint` does. What survives is torchrun, and no rank.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
import time
from collections.abc import Callable

from ..errors import BadInput
from .processes import payload
from .processes.failures import LaunchError, LaunchInterrupted
from .processes.jobs import Job, Results
from .processes.parent import with_device
from .progress_bar import progress_bar
from .ranks import check_nproc, line_printer

PEERS_SECONDS = 0.7  # seconds after one rank failed until the others count as stuck
# Torchrun's defaults are for clusters: 15 s until a node that is silent counts as gone, and then 30 s in which another
# may take its place, before the others go on without it.
KEEP_ALIVE = "keep_alive_interval=1,keep_alive_max_attempt=5,last_call_timeout=5"
# Else torchrun keeps one store for all attempts: it would hold addresses of ranks that are gone, and when another node
# becomes the first, the nodes would disagree on where the store is.
FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def launch(target, *args, nproc: int = 2, argv=(), timeout: float | None = None, env=None,
           nnodes: int | str = 1, node_rank: int = 0, rdzv_endpoint: str | None = None, max_restarts: int = 0,
           quiet: bool = False, only=None, progress: bool | Callable = True, cwd=None, echo=print, oversubscribe: bool = False,
           init: bool = True, device: str | None = None, **kwargs) -> Results:
    """Run `target` on `nproc` ranks of this machine and return what each returned (None for scripts and modules).

    target: a function (also one defined in a notebook cell), called with `args` and `kwargs` in every rank; a path to
        a script; or a module's name, "pkg.mod". Scripts and modules get `argv`.
    timeout: seconds for everything, the start included; None waits forever.
    env: added to the environment. OMP_NUM_THREADS is the rank's share of the cores unless it is set.
    nnodes, node_rank, rdzv_endpoint: the same command on each of several machines; "host:port" is on node 0. Each
        gets the results of its own ranks. nnodes="1:2" goes on with 1 node when the other is gone, and with 2 when
        it is back: all ranks start again at each such change. Node 0, where the nodes meet, must stay.
    max_restarts: how often torchrun may start all ranks again because one died or raised. Values and records are those
        of the last attempt; `Results.attempts` has the earlier ones, and why each of them ended.
    only: the ranks whose lines are shown; quiet: show none. `Results.lines` has them all. `echo` shows a line.
    progress: draw a bar when rank 0 calls `zerocourse.launch.progress`; or a function that is called with the step, the
        number of steps and a dictionary of the values that rank 0 gave.
    device: where the ranks compute, "cpu", "cuda" or "auto", in place of the environment's ZEROCOURSE_DEVICE; see `comm.bootstrap`.
    init: have `torch.distributed` initialised before a function is called; scripts and modules do so themselves.

    A function's rank ends as soon as it has returned; a script's ends as Python does, exit handlers and all.

    Raises RankError (a rank raised; it has that rank's traceback), RankDied (a rank ended without an exception),
    LaunchTimeout (which ranks were still running, and where), LaunchInterrupted, and BadInput.
    """
    check_nproc(nproc, oversubscribe)
    env = with_device(env, device)
    spec, work = _describe(target, args, kwargs, argv, os.path.abspath(cwd or os.getcwd()), init)
    least, most = _range_of_nodes(nnodes)
    command = _torchrun(nproc, least, most, node_rank, rdzv_endpoint, max_restarts)
    elastic = max_restarts > 0 or least < most
    started, job, bar = time.monotonic(), None, _ProgressBar(progress is True)
    try:
        job = Job(nproc, FRESH_STORE | env if elastic else env, cwd)
        job.verb = "returned" if spec["kind"] == "call" else "finished"
        job.on_progress = (lambda rank, *said: progress(*said)) if callable(progress) else bar.move
        if not quiet:
            job.on_notice = lambda line: bar.write(line, echo)
            job.on_line = line_printer(only, job.on_notice, lambda rank: _label(rank, len(job.earlier)))
        job.write_work(**work)
        # Without a folder for its logs torchrun makes one of its own, which nobody would remove.
        job.start([*command, f"--log-dir={job.folder / 'logs'}", job.boot(**spec)])
        _wait(job, spec["kind"], most, elastic, started, timeout)
        return Results(job.values(), job.records, job.lines, time.monotonic() - started, job.earlier)
    except LaunchError as error:
        raise error.in_attempt(len(job.earlier) + 1, max_restarts) from None
    except KeyboardInterrupt:
        raise LaunchInterrupted(f"interrupted: all {nproc} ranks were stopped") from None
    finally:
        bar.close()
        if job:
            job.close()


def _describe(target, args, kwargs, argv, cwd: str, init: bool) -> tuple[dict, dict]:
    """What a rank must do, and the packed call that it needs for that."""
    if callable(target):
        if argv:
            raise BadInput("argv goes to scripts and modules; a function takes arguments: launch(fn, 1, x=2)")
        return {"kind": "call", "init": init}, {"call": payload.pack(target, args, kwargs)}
    if args or kwargs:
        raise BadInput(f"arguments of a script or a module are given as argv=[...], not as {[*args, *kwargs]}")
    if not isinstance(target, str | os.PathLike):
        raise BadInput(f"target is {target!r}; it is a function, a path to a script, or a module's name")
    argv, path = [str(a) for a in argv], os.path.join(cwd, os.fspath(target))
    if os.path.isfile(path):
        return {"kind": "script", "target": path, "argv": argv}, {}
    if isinstance(target, str) and all(part.isidentifier() for part in target.split(".")) and _is_module(target, cwd):
        return {"kind": "module", "target": target, "argv": argv}, {}
    raise BadInput(f"there is no script {path!r} and no module {str(target)!r} to launch")


def _is_module(name: str, cwd: str) -> bool:
    """Whether `python -m name` would find it from `cwd`, without importing anything."""
    top, *rest = name.split(".")
    spec = importlib.machinery.PathFinder.find_spec(top, [cwd, *sys.path]) or importlib.util.find_spec(top)
    for part in rest:
        spec = spec and importlib.machinery.PathFinder.find_spec(part, list(spec.submodule_search_locations or ()))
    return spec is not None


def _label(rank: int, restarts: int) -> str:
    return f"{rank}, attempt {restarts + 1}" if restarts else str(rank)


def _range_of_nodes(nnodes: int | str) -> tuple[int, int]:
    """The least and the most nodes that a launch may have."""
    least, _, most = str(nnodes).partition(":")
    if not least.isdigit() or not (most or least).isdigit() or not 1 <= int(least) <= int(most or least):
        raise BadInput(f"nnodes is {nnodes!r}; it is the number of machines, or 'MIN:MAX' when they may come and go")
    return int(least), int(most or least)


def _torchrun(nproc: int, least: int, most: int, node_rank: int, rdzv_endpoint: str | None,
              max_restarts: int) -> list[str]:
    """The command, up to the program that ranks run."""
    if isinstance(max_restarts, bool) or not isinstance(max_restarts, int) or max_restarts < 0:
        raise BadInput(f"max_restarts is {max_restarts!r}; it is how often the ranks may start again, 0 or more")
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={nproc}",
               f"--max-restarts={max_restarts}"]
    if most == 1 and rdzv_endpoint is None:
        return [*command, "--standalone"]
    nodes = str(most) if least == most else f"{least}:{most}"
    if not rdzv_endpoint or ":" not in rdzv_endpoint:
        raise BadInput(f"rdzv_endpoint is {rdzv_endpoint!r}; for nnodes={nodes} it is 'host:port' of node 0")
    if not 0 <= node_rank < most:
        raise BadInput(f"node_rank={node_rank} is not one of the {most} nodes, 0 to {most - 1}")
    settings = f"is_host={node_rank == 0}" + (f",{KEEP_ALIVE}" if max_restarts or least < most else "")
    return [*command, f"--nnodes={nodes}", f"--node-rank={node_rank}", "--rdzv-backend=c10d", "--rdzv-id=zerocourse",
            f"--rdzv-endpoint={rdzv_endpoint}", f"--rdzv-conf={settings}"]


def _wait(job: Job, kind: str, nnodes: int, elastic: bool, started: float, timeout: float | None) -> None:
    """Wait until the work is done. Raises at the timeout, and when a rank failed, once the others had their time.

    elastic: what a failure means is torchrun's to decide, so it counts when torchrun has ended; but for bad input.
    """
    torchrun, failed_at = job.processes[0], None
    while True:
        over = torchrun.poll() is not None
        job.poll(0 if over else 0.1)
        now = time.monotonic()
        # A function is done when it has returned. A script is done when its process has ended, exit handlers too,
        # and other nodes need our torchrun until they are done themselves.
        if kind == "call" and len(job.done) == job.nproc and nnodes == 1:
            break
        if elastic and any(failure.kind == BadInput.__name__ for failure in job.failed()):
            break  # bad input stays bad, however often the ranks are started again
        lost = [rank for rank in job.gone if rank not in job.done and kind == "call"]
        if not elastic and (job.failures or lost or job.torchrun.any_failed()):
            failed_at = failed_at or now
        settled = {*job.done, *job.gone, *(failure.rank for failure in job.failed())}
        if over or (failed_at and (len(settled) == job.nproc or now - failed_at > PEERS_SECONDS)):
            break
        if timeout is not None and now - started > timeout:
            raise job.timeout(timeout)
        job.notice_waiting()
    job.drain()
    _raise_if_failed(job, kind, torchrun.poll())


def _raise_if_failed(job: Job, kind: str, torchrun_code: int | None) -> None:
    """Raise what went wrong first. When a rank dies its peers fail too, and their errors only say so."""
    died = job.rank_died(certain=kind == "call")
    if died:
        raise died
    if job.failures:
        raise job.rank_error()
    if torchrun_code:
        raise LaunchError(f"torchrun ended with exit code {torchrun_code}:\n{job.torchrun.text()[-3000:]}")


class _ProgressBar:
    """A progress bar that appears with the first progress, and that printed lines do not disturb."""

    def __init__(self, wanted: bool):
        self.wanted, self.bar = wanted, None

    def move(self, rank: int, step: int, total: int, info: dict) -> None:
        if self.wanted and self.bar is None:
            with contextlib.suppress(ImportError):
                self.bar = progress_bar(total, initial=step)  # its rate is of what it has seen
            self.wanted = self.bar is not None
        if self.bar is not None:
            self.bar.total, self.bar.n = total, step
            self.bar.set_postfix(info, refresh=False)
            self.bar.refresh()

    def write(self, line: str, echo) -> None:
        if self.bar is not None and echo is print:
            self.bar.write(line)
        else:
            echo(line)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
