"""The examiner: it makes the verdicts on one notebook, and runs no cell and loads no pickle of the learner's.

Each exercise's answers run on ranks of their own, which end with the verdict, so that no answer can change what is said
of another. References and known mistakes run on other ranks, where no learner's code ever runs.
"""

import linecache
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ...errors import BadInput
from ...launch.ranks import Ranks
from ..checks import judge
from ..checks.exercise import Exercise, exercises
from ..checks.lab import Lab, get_ready, new_ranks
from ..checks.verdict import FAILED, RAISED, Verdict
from .confine import confine
from .notebook import ids_of, read_cells
from .student import OUT_OF_TIME, Limits, packed_answers


def get_ready_confined() -> None:
    """On a rank."""
    get_ready()
    confine()


class ExamLab(Lab):
    """A lab for packed answers, with ranks of its own.   until: as in `Lab`."""

    get_ready = staticmethod(get_ready_confined)

    def __init__(self, exercise: Exercise, packed: bytes, until: float):
        super().__init__(exercise, packed)
        self.until, self.pools = until, {}

    def ranks(self, world: int) -> Ranks:
        if world not in self.pools:
            self.pools[world] = new_ranks(world)
        return self.pools[world]

    def tidy(self) -> None:
        """End its ranks."""
        for pool in self.pools.values():
            pool.close()


def grade(path: str | Path, ids: Iterable[str] = (), limits: Limits = Limits(),
          on_verdict: Callable[[Verdict], object] = lambda _: None) -> dict[str, Verdict]:
    """The verdict on each answer (those of `ids`, or all). A bad notebook raises BadInput, a bad answer does not."""
    deadline, cells, everything = time.monotonic() + limits.seconds, read_cells(path), exercises()
    wanted = list(ids) or ids_of(cells)
    for id in wanted:
        if id not in ids_of(cells):
            raise BadInput(f"{path} has no answer to {id}: it has {', '.join(ids_of(cells))}")
    for cell in cells:  # the ranks get them from here, for the lines in what is said
        linecache.cache[cell.name] = (len(cell.source), None, cell.source.splitlines(keepends=True), cell.name)
    answers = packed_answers(cells, [everything[id] for id in wanted if id in everything], limits, deadline)
    verdicts = {}
    for id in wanted:
        if id not in everything:
            verdict = Verdict(id, FAILED, f"there is no exercise '{id}'", code="usage")
        elif isinstance(answers[id], str):
            verdict = Verdict(id, FAILED, answers[id], code=RAISED)
        elif time.monotonic() > deadline:
            verdict = Verdict(id, FAILED, OUT_OF_TIME, code="hung")
        else:
            verdict = judge(ExamLab(everything[id], answers[id], deadline))
        verdicts[id] = verdict
        on_verdict(verdict)
    return verdicts
