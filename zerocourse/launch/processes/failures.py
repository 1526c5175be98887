"""The errors of a launch, each with one sentence. A failing rank shows its own traceback."""

import signal
from dataclasses import dataclass

from ...errors import ZeroCourseError
from .position import Position, name_cells, waiting_text

COLLECTIVE_ERRORS = {"RuntimeError", "DistError", "DistBackendError", "DistNetworkError"}
RED, PLAIN = "\x1b[0;31m", "\x1b[0m"


class LaunchError(ZeroCourseError, RuntimeError):
    """A launch that did not end well; in a notebook it is shown without the frames of the launcher.

    attempts: how often torchrun had started the ranks; what the error says is of the last time.
    """

    attempts, which = 1, ""

    def in_attempt(self, attempts: int, max_restarts: int) -> "LaunchError":
        """The same error, which says how many restarts there were, if any were allowed."""
        self.attempts = attempts
        if max_restarts or attempts > 1:
            self.which = f" (in attempt {attempts}, with max_restarts={max_restarts})"
            self.args = (f"{self}{self.which}",)
        return self

    def _render_traceback_(self) -> list[str]:
        return [f"{RED}{self}{PLAIN}"]


@dataclass(frozen=True)
class Failure:
    """What one rank raised: the exception's class name, its message, its traceback as text, and where it was raised."""

    rank: int
    kind: str
    message: str
    traceback: str
    position: Position = Position()

    @property
    def broke_off(self) -> bool:
        """Whether a collective failed, which is what a rank notices when another one has left."""
        in_collective = bool(self.position.collective) or "by peer" in self.message  # "closed", "reset by peer"
        return self.kind == "CollectiveError" or (in_collective and self.kind in COLLECTIVE_ERRORS)


class RankError(LaunchError):
    """A rank raised an exception. `.rank`, `.kind` (the exception's class name), `.message` and `.traceback` are the
    first one's. `.failures` has every rank's, the first to fail first.

    returned: seconds after which other ranks had returned. If the first failure is a collective that broke off, these
    ranks are the reason, and the error says so first.
    """

    def __init__(self, failures: list[Failure], returned: dict[int, float] | None = None, verb: str = "returned"):
        self.failures, self.returned = failures, returned or {}
        first = failures[0]
        self.rank, self.kind, self.message = first.rank, first.kind, first.message
        self.traceback = name_cells(first.traceback.rstrip())
        self.cause = ""
        if self.returned and first.broke_off:
            self.cause = waiting_text(self.returned, {first.rank: first.position}, verb, past=True)
        sentence = f"rank {first.rank}: {first.kind}: {first.message}"
        super().__init__(f"{self.cause}\n{sentence}" if self.cause else sentence)
        self.add_note(self._body())  # shown below the sentence wherever a notebook does not draw it

    def _body(self) -> str:
        others = ", ".join(f"rank {f.rank} ({f.kind})" for f in self.failures[1:])
        return f"rank {self.rank} failed{self.which}\n{self.traceback}" + (f"\nafter it: {others}" if others else "")

    def _render_traceback_(self) -> list[str]:
        head, _, rest = self._body().partition("\n")
        return [f"{RED}{self.cause or head}{PLAIN}", rest]


class RankDied(LaunchError):
    """A rank ended without a Python exception: a signal, memory, os._exit. `.rank`, `.exit_code` (None: unknown)."""

    def __init__(self, rank: int, exit_code: int | None, detail: str = ""):
        self.rank, self.exit_code = rank, exit_code
        if exit_code is None:
            why = "its process ended before it was done"
        elif exit_code < 0:
            why = f"killed by {signal.Signals(-exit_code).name}"
            why += " (out of memory?)" if exit_code == -9 else ""
        else:
            why = f"exit code {exit_code}"
        super().__init__(f"rank {rank} died without a Python traceback: {why}" + (f"\n{detail}" if detail else ""))


class LaunchTimeout(LaunchError, TimeoutError):
    """Time ran out. `.waiting` says where each rank was that was not done ("waiting in barrier, train.py:12 ..."),
    `.returned` after how many seconds each other one had returned."""

    def __init__(self, seconds: float, returned: dict[int, float], positions: dict[int, Position],
                 verb: str = "returned"):
        self.waiting = {rank: str(position) for rank, position in positions.items()}
        self.returned = dict(returned)
        super().__init__(f"stopped after {seconds:g} s: {waiting_text(returned, positions, verb)}")


class LaunchInterrupted(KeyboardInterrupt):
    """The caller interrupted; every process of the launch has been ended."""

    def _render_traceback_(self) -> list[str]:
        return [f"{RED}{self}{PLAIN}"]
