"""The student's process: it runs the cells of a notebook and sends the answers back, packed.

What comes from it is one value for each exercise: bytes that only ranks unpack, or a sentence on why there is no
answer. A cell that ends the process, or does not end by itself, is left out when the others run again.
"""

import base64
import linecache
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...errors import BadInput
from ...launch.processes import payload
from ...launch.processes.failures import LaunchError, LaunchTimeout, RankDied
from ..checks import usage_text
from ..checks.exercise import Exercise
from ..checks.inside import Bounded, output_to
from ..checks.lab import new_ranks
from .confine import confine
from .notebook import Cell

try:
    import resource
except ImportError:  # Windows
    resource = None

START_SECONDS = 60  # for what the process imports before the first cell, on a busy machine
OUT_OF_TIME = "the notebook ran out of time before this answer was checked"


@dataclass(frozen=True)
class Limits:
    """For one notebook. seconds: in all. memory_bytes: of the process that runs its cells.
    cell_seconds: for an answer cell, which only defines functions."""

    seconds: float = 300
    memory_bytes: int = 4 * 2**30
    cell_seconds: float = 20


class Ended(Exception):
    """The process ended. Arguments: what was run ("cell 3", "answer 1.1"), and how that ended it."""


def packed_answers(cells: Sequence[Cell], exercises: Sequence[Exercise], limits: Limits, deadline: float
                   ) -> dict[str, bytes | str]:
    """The answers to each exercise, by id: packed, or a sentence on why there are none.

    An answer is packed when its last cell has run, as `check` would find it there: a later cell may define a helper of the same name.
    deadline: in the time of time.monotonic. Raises BadInput when the process cannot begin.
    """
    ended: dict[str, str] = {}
    names = {each.id: each.answers for each in exercises}
    last = {cell.id: number for number, cell in enumerate(cells)}
    with new_ranks(1, init=False) as process:

        def ask(about: str, seconds: float, fn: Callable, *args):
            """What `fn` returns in the process; a sentence when it has ended the process before."""
            if about in ended:
                return ended[about]
            left = deadline - time.monotonic()
            try:
                return process.run(fn, *args, timeout=max(0.1, min(seconds, left)))[0]
            except LaunchError as error:
                raise Ended(about, OUT_OF_TIME if isinstance(error, LaunchTimeout) and left < seconds else
                            _how_it_ended(error, seconds)) from None
            except BadInput as error:
                raise Ended(about, f"sent something that is no answer: {error}") from None

        while True:
            try:
                ask("start", START_SECONDS, prepare, limits.memory_bytes)
                faults: dict[str | None, str] = {}
                answers: dict[str, bytes | str] = {}
                for number, cell in enumerate(cells):
                    if fault := ask(f"cell {number}", limits.cell_seconds, run_cell, cell.source, cell.name):
                        faults.setdefault(cell.id, f"its cell {fault}")
                    if cell.id in names and number == last[cell.id]:
                        came = ask(f"answer {cell.id}", limits.cell_seconds, pack_answers, cell.id, names[cell.id])
                        answers[cell.id] = _answer(came, faults.get(cell.id) or faults.get(None))
                return answers
            except Ended as end:
                about, how = end.args
                if how == OUT_OF_TIME:
                    return {each.id: OUT_OF_TIME for each in exercises}
                if about == "start":
                    raise BadInput(f"the process for its cells does not start: it {how}") from None
                ended[about] = how


def _how_it_ended(error: LaunchError, seconds: float) -> str:
    if isinstance(error, LaunchTimeout):
        return f"did not end within {seconds:g} s"
    if isinstance(error, RankDied) and error.exit_code is not None:
        code = error.exit_code
        return f"ended its process (exit code {code})" if code >= 0 else \
            f"ended its process (signal {-code}: out of memory, or a crash)"
    return "ended its process"


def _answer(came, fault: str | None) -> bytes | str:
    """What to make of what `pack_answers` returned, or a learner's code in its place: any JSON."""
    match came:
        case {"packed": str(text)}:
            try:
                return base64.b64decode(text)
            except ValueError:
                return "its answer cannot be read"
        case {"missing": name}:
            return fault or f"there is no `{name}` in the answer's cell"
        case {"fault": said}:
            return str(said)
    return f"its answer {came}"


# In the process ------------------------------------------------------------------------------------------------------

def prepare(memory_bytes: int) -> None:
    """Limit the memory and what may be written, and print nothing from here on."""
    if resource:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    sys.path.insert(0, os.getcwd())
    confine()


def run_cell(source: str, name: str) -> str | None:
    """Run one cell; how it failed, or None. Lines of IPython (%magic, !command) are left out where it needs them."""
    try:
        try:
            code = compile(source, name, "exec")
        except SyntaxError:
            code = compile(re.sub(r"^[%!].*$", "", source, flags=re.M), name, "exec")
        with output_to(Bounded()):
            exec(code, vars(sys.modules["__main__"]))
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
        line = frames[-1].lineno if frames else getattr(error, "lineno", None)  # a SyntaxError has no frame
        text = linecache.getline(name, line or 0).strip()
        return (f"does not run: {type(error).__name__}: {getattr(error, 'msg', error)}"
                + (f" (line {line}: `{text}`)" if text else ""))
    return None


def pack_answers(id: str, names: Sequence[str]) -> dict[str, str]:
    """The functions of these names that the cells have left, packed in base64; or what is missing, or the fault."""
    answers = [vars(sys.modules["__main__"]).get(name) for name in names]
    if missing := next((name for name, answer in zip(names, answers, strict=True) if answer is None), None):
        return {"missing": missing}
    if not all(map(callable, answers)):
        return {"fault": usage_text(id, names, answers)}
    try:
        return {"packed": base64.b64encode(payload.pack(answers[0], answers[1:])).decode()}
    except BadInput as error:
        return {"fault": str(error)}
