"""What a check works with: it sends the learner's function to real ranks, and explains what comes back.

The check itself runs in the caller's process, the learner's function never does, and what comes back is data: no pickle
that a rank made is loaded here.
"""

import functools
import json
import math
import signal
import time
from collections.abc import Callable, Sequence

from ...launch.processes import payload
from ...launch.processes.failures import LaunchError, LaunchTimeout, RankDied, RankError
from ...launch.processes.position import name_cells
from ...launch.ranks import Ranks
from .exercise import Exercise
from .inside import Report, perform, untaken
from .plain import decode
from .verdict import STUCK, NotDone, Wrong

START_SECONDS = 120  # for ranks that are not there yet, on a busy machine


def new_ranks(world: int, **how) -> Ranks:
    """Ranks for answers: verdicts are the same with and without a GPU, and what they return is data."""
    env = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return Ranks(world, env=env, device="cpu", quiet=True, oversubscribe=True, as_json=True, **how)


# The checks' own, so that no answer can end the ranks on which a notebook keeps variables.
_ranks = functools.cache(new_ranks)


def get_ready() -> None:
    """On a rank: it is there, with torch's compiler, which a process's first optimizer loads (a forked rank has it).

    And with the thread that a process's first Comm starts: it would else be taken for one of the answer's, and cost the
    ranks their lives.
    """
    import torch

    from ...comm.group import Comm
    Comm()
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])


class Lab:
    """One exercise, and the answers of one learner (`answers`, in the exercise's order).

    answers: or what `payload.pack` made of them in another process; only ranks unpack it.
    Raises BadInput when an answer cannot be sent to another process.
    """

    get_ready = staticmethod(get_ready)  # what its ranks do first
    until = math.inf  # in the time of time.monotonic: no trip to the ranks lasts longer

    def __init__(self, exercise: Exercise, answers: Sequence[Callable] | bytes, timeout: float | None = None,
                 own_allowed: bool = False):
        self.exercise = exercise
        # By value: ranks that live on never have an older version.
        self.sent = answers if isinstance(answers, bytes) else payload.pack(answers[0], answers[1:])
        self.timeout = timeout or exercise.timeout
        self.forbidden = ((), ()) if own_allowed else (exercise.replaces, exercise.own)
        self.printed, self.worlds = "", set()
        self.traces: dict = {}  # of the trials that came to their end, which are not put to the answer twice

    # Running the answer ----------------------------------------------------------------------------------------------

    def ranks(self, world: int) -> Ranks:
        """Where the answer runs."""
        return _ranks(world)

    def run(self, observe: Callable, *args, world: int = 1, timeout: float | None = None, **kwargs) -> list:
        """`observe(*answers, *args, **kwargs)` on every rank of a world; what each returned, in rank order.

        observe: a function of the check's module. It finds torch.distributed initialised, the seed of torch 0, and
        the answers as callables; it returns what the check wants to see, of numbers, tensors, lists, dictionaries.
        Ends the check when an answer fails, hangs or is not there.
        """
        pool, limit = self.ranks(world), min(timeout or self.timeout, max(0.1, self.until - time.monotonic()))
        self.worlds.add(world)
        if not pool.pids:  # before the clock starts: both take seconds
            pool.run(self.get_ready, timeout=START_SECONDS)
        try:
            came = pool.run(perform, observe, self.sent, self.exercise.answers, *self.forbidden, args, kwargs,
                            world > 1, timeout=limit)
            reports = list(map(_report, came))
        except LaunchTimeout as error:
            raise Wrong(_hang_text(error, world, limit), "hung") from None
        except RankDied as error:
            raise Wrong(_death_text(error, world), "died") from None
        except RankError as error:
            rank, report = _failed_report(error)
            reports = [report]
            if world > 1 and report.kind != "not done":
                where = f"on rank {rank}" + f" of {world}" * (not report.case)
                report.value = f"{where}, {report.value}"
        if not all(report.clean for report in reports):
            pool.close()
        self.printed = self.printed or next((report.printed for report in reports if report.printed), "")
        for report in reports:
            if report.kind == "not done":
                raise NotDone(report.value)
            if report.kind != "value":
                case = f"{report.case}: " if report.case else ""
                raise Wrong(name_cells(f"{case}{report.value}"), report.kind, report.error)
        return [report.value for report in reports]

    def tidy(self) -> None:
        """End ranks for which a message came that the answer never waited for: gloo's thread would never rest again."""
        for pool in map(self.ranks, self.worlds - {1}):
            try:
                if pool.pids and any(pool.run(untaken, timeout=START_SECONDS)):
                    pool.close()
            except LaunchError:
                pool.close()


def _report(sent) -> Report:
    """What a rank returned. Raises Wrong where that is something else."""
    try:
        return Report(**decode(sent))
    except (TypeError, ValueError):
        raise Wrong("what came back from its process is no report of what it did", "died") from None


def _failed_report(error: RankError) -> tuple[int, Report]:
    """The first rank that failed by itself, else one that waited in vain for another; and its report."""
    reports = [(failure.rank, Report(**json.loads(failure.message))) for failure in error.failures
               if failure.kind == "AnswerFailed"]
    if not reports:
        raise error
    return min(reports, key=lambda each: each[1].kind == STUCK)


def _hang_text(error: LaunchTimeout, world: int, limit: float) -> str:
    waiting = [f"rank {rank} was {where}" if world > 1 else f"it was {where}" for rank, where in error.waiting.items()
               if " in _meet:" not in where]  # that rank has done its part, and waits for the others (see `trace.record`)
    text = f"it did not end within {limit:g} s: {'; '.join(waiting)}"
    if world == 1:
        return f"{text}. Does every loop in it end, or is it too slow?"
    done = world - len(waiting)
    if done:
        return (f"{text}; {done} of the {world} ranks were done. Every rank must call the same collectives, in the "
                "same order: does one sit behind an `if` that is not true on every rank?")
    return f"{text}. Do all ranks call the same collectives, in the same order, and does every loop end?"


def _death_text(error: RankDied, world: int) -> str:
    who = f"the process of rank {error.rank} of {world}" if world > 1 else "the process in which it ran"
    how = "" if error.exit_code is None else f" with exit code {error.exit_code}" if error.exit_code >= 0 else \
        f", killed by {signal.Signals(-error.exit_code).name}"
    return (f"{who} ended{how}: does it call os._exit, recurse without end, read a tensor whose memory is freed, or "
            "take all memory?")
