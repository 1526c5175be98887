"""The ways in which a launch fails, each in one sentence; a failing rank speaks with its own traceback."""

import linecache
import os
import re
import signal
import sys
import sysconfig
from dataclasses import dataclass

from ...errors import ZeroCourseError

CELLS: dict[str, int] = {}  # file name: execution count, of cells that the magics gave to ranks
RED, PLAIN = "\x1b[0;31m", "\x1b[0m"


def name_cells(text: str) -> str:
    """`text` with the file names of notebook cells replaced by what the learner sees: `Cell In[5]`."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    for name, number in (CELLS | getattr(getattr(shell, "compile", None), "_filename_map", {})).items():
        text = text.replace(f'File "{name}"', f"Cell In[{number}]").replace(name, f"Cell In[{number}]")
    return text


class LaunchError(ZeroCourseError, RuntimeError):
    """A launch that did not end well; in a notebook it is shown without the frames of the launcher."""

    def _render_traceback_(self) -> list[str]:
        return [f"{RED}{self}{PLAIN}"]


@dataclass(frozen=True)
class Failure:
    """What one rank raised: the exception's class name, its message, and its traceback as text."""

    rank: int
    kind: str
    message: str
    traceback: str


class RankError(LaunchError):
    """A rank raised. `.rank`, `.kind` (the exception's class name), `.message`, `.traceback` are the first one's;
    `.failures` has every rank's, the first to fail first."""

    def __init__(self, failures: list[Failure]):
        self.failures = failures
        first = failures[0]
        self.rank, self.kind, self.message = first.rank, first.kind, first.message
        self.traceback = name_cells(first.traceback.rstrip())
        super().__init__(f"rank {first.rank}: {first.kind}: {first.message}")
        self.add_note(self._body())  # shown below the sentence wherever a notebook does not draw it

    def _body(self) -> str:
        others = ", ".join(f"rank {f.rank} ({f.kind})" for f in self.failures[1:])
        return f"rank {self.rank} failed\n{self.traceback}" + (f"\nafter it: {others}" if others else "")

    def _render_traceback_(self) -> list[str]:
        head, _, rest = self._body().partition("\n")
        return [f"{RED}{head}{PLAIN}", rest]


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
    """Time ran out. `.waiting` says, for each rank that was not done, where it was."""

    def __init__(self, seconds: float, finished: list[int], waiting: dict[int, str]):
        self.waiting = waiting
        done = f"ranks done: {finished}" if finished else "no rank was done"
        lines = "".join(f"\n  rank {rank} was waiting {where}" for rank, where in waiting.items())
        super().__init__(f"stopped after {seconds:g} s ({done}); still running:{lines}")


class LaunchInterrupted(KeyboardInterrupt):
    """The caller interrupted; every process of the launch has been ended."""

    def _render_traceback_(self) -> list[str]:
        return [f"{RED}{self}{PLAIN}"]


_FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARY = ("<frozen", *(sysconfig.get_path(key) + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")))


def where(dump: str, launcher: tuple[str, ...]) -> str:
    """The innermost line of the user's own code in a `faulthandler` dump (most recent call first).

    `launcher`: beginnings of file names that belong to the launcher. This package's own lines count only where
    there are none of the user's.
    """
    frames = [f for f in _FRAME.findall(dump) if not f[0].startswith(launcher)]
    ours = [f for f in frames if not f[0].startswith(_LIBRARY)]
    own = [f for f in ours if not f[0].startswith(_PACKAGE + os.sep)] or ours
    if not own:
        return f"in {frames[0][2]} ({frames[0][0]}:{frames[0][1]})" if frames else "before its own code began"
    file, line, function = own[0]
    inner = "" if frames[0] == own[0] else f"  (inside {frames[0][2]})"
    return name_cells(f"at {file}, line {line}, in {function}: {linecache.getline(file, int(line)).strip()}{inner}")
