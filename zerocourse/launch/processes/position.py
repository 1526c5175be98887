"""Where a rank is: the line of the caller's own code, and the collective that it waits in.

A rank that is asked describes itself from a thread of its own, and finds the name of the collective in its stack. For
a rank that cannot run Python now (C code that holds the interpreter's lock) there is faulthandler's dump of the stack.
"""

import linecache
import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

_PACKAGE, _LAUNCH = (str(Path(__file__).parents[level]) + os.sep for level in (2, 1))
_BRIDGE = os.path.join(_PACKAGE, "engine", "bridge", "__main__.py")  # starts a script too
_COMM = os.path.join(_PACKAGE, "comm") + os.sep
_TORCH = os.path.join("torch", "distributed", "distributed_c10d.py")
_LIBRARY = ("<frozen", *(sysconfig.get_path(key) + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")))
_BOOT = re.compile(r"[/\\\\]zc-\w+[/\\\\](\d+[/\\\\])?boot\.py$")  # what a rank, or its fork server, is started with
_DUMPED = re.compile(r'File "(.+)", line (\d+) in (.+)')

CELLS: dict[str, int] = {}  # file name: execution count, of cells that the magics gave to ranks


@dataclass(frozen=True)
class Position:
    """A line of the caller's own code, and the collective ("all_gather of blocks.2") that the rank waits in there.

    Without a `file` the rank runs code that has no line in Python. `begun` is False before the caller's code begins.
    """

    file: str = ""
    line: int = 0
    function: str = ""
    collective: str = ""
    begun: bool = True

    @property
    def place(self) -> str:
        """As in "train.py:12 in step: loss.backward()"; cells have the name that the notebook shows."""
        source = linecache.getline(self.file, self.line).strip()
        cell = _cells().get(self.file)
        where = f"Cell In[{cell}], line {self.line}" if cell is not None else f"{_short(self.file)}:{self.line}"
        return f"{where} in {self.function}" + (f": {source}" if source else "")

    def __str__(self) -> str:
        """Completes "rank 0 was ..."."""
        if not self.begun:
            return "starting"
        if not self.file:
            return "running"
        return f"waiting in {self.collective}, {self.place}" if self.collective else f"at {self.place}"


STARTING = Position(begun=False)


def waiting_text(returned: dict[int, float], positions: dict[int, Position], verb: str = "returned",
                 past: bool = False) -> str:
    """One sentence on which ranks are done, after how many seconds, and where the others are (or were).

    As in "rank 1 returned after 0.4 s; rank 0 still waits in all_gather of blocks.2, train.py:12 in step: ...".
    """
    parts = [f"rank {rank} {verb} after {seconds:.1f} s" for rank, seconds in
             sorted(returned.items(), key=lambda item: item[1])]
    together: dict[Position, list[int]] = {}
    for rank, position in positions.items():
        together.setdefault(position, []).append(rank)
    for position, ranks in together.items():
        several = len(ranks) > 1
        subject = f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}" if several else f"rank {ranks[0]}"
        if position.collective:
            waits = "waited" if past else "wait" if several else "waits"
            parts.append(f"{subject} still {waits} in {position.collective}, {position.place}")
        else:
            be = ("were" if several else "was") if past else "are" if several else "is"
            parts.append(f"{subject} {be} still {position}")
    return "; ".join(parts)


# In the rank -------------------------------------------------------------------------------------------------------

def current_position() -> Position:
    """The position of this process's main thread, whichever thread asks. Where another one waits in a collective, as autograd's
    does in a backward on a GPU, this is what the main thread waits for."""
    innermost = sys._current_frames()
    position = _position([(frame, frame.f_lineno) for frame in _stack(innermost.pop(threading.main_thread().ident, None))])
    stacks = [] if position.collective else map(_stack, innermost.values())
    waits = [_collective(stack) for stack in stacks if any(frame.f_code.co_filename.startswith(_COMM) for frame in stack)]
    return replace(position, collective=next(filter(None, waits), position.collective))


def _stack(frame) -> list:
    """A thread's frames, the innermost first."""
    frames = []
    while frame:
        frames.append(frame)
        frame = frame.f_back
    return frames


def raised_position(error: BaseException) -> Position:
    """The position where `error` was raised."""
    return _position([*traceback.walk_tb(error.__traceback__)][::-1])


def _position(frames: list) -> Position:
    """The position of a stack of (frame, line), the innermost first."""
    return _own_line([(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in frames],
                     _collective([frame for frame, _ in frames]))


def _collective(frames: Iterable) -> str:
    """The collective that the innermost frames are in, for the caller's innermost line; "" if they are in none."""
    of_torch = ""
    for frame in frames:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith(_COMM):
            # In `comm`, a function that waits has a variable `call` with what it waits for, or its object has one.
            call = frame.f_locals.get("call") or getattr(frame.f_locals.get("self"), "call", None)
            if isinstance(call, str):
                return re.sub(r"( \(.*\))?( #\d+)?$", "", call)  # without its size and number
        elif file.endswith(_TORCH) and not name.startswith("_"):
            of_torch = name  # the outermost of torch's frames is what was called
        elif not file.startswith((_PACKAGE, *_LIBRARY)):
            break
    return of_torch


# In either process -------------------------------------------------------------------------------------------------

def dumped_position(dump: str) -> Position:
    """The position in a `faulthandler` dump (most recent call first)."""
    return _own_line([(file, int(line), function) for file, line, function in _DUMPED.findall(dump)])


def _own_line(frames: list[tuple[str, int, str]], collective: str = "") -> Position:
    """The innermost line that is the caller's own: not the launcher's, nor a library's, nor this package's.

    Where there is none, the innermost of this package or of a library.
    """
    frames = [frame for frame in frames if not is_launchers(frame[0])]
    outside = [frame for frame in frames if not frame[0].startswith(_LIBRARY)]
    own = [frame for frame in outside if not frame[0].startswith(_PACKAGE)]
    best = own or outside or frames
    return Position(*best[0], collective) if best else Position()


def is_launchers(file: str) -> bool:
    """Whether the code of that file only starts the caller's code."""
    return file.startswith((_LAUNCH, _BRIDGE, "<frozen runpy")) or _BOOT.search(file) is not None


def name_cells(text: str) -> str:
    """`text` with the file names of notebook cells replaced by what the learner sees: `Cell In[5]`."""
    for name, number in _cells().items():
        text = text.replace(f'File "{name}"', f"Cell In[{number}]").replace(name, f"Cell In[{number}]")
    return text


def _cells() -> dict[str, int]:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return CELLS | getattr(getattr(shell, "compile", None), "_filename_map", {})


def _short(file: str) -> str:
    """The path from the working directory, when it is below it."""
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return file if relative.startswith(os.pardir) else relative
