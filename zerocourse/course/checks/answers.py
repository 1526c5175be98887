"""Grades the answers in a notebook: its answer cells, and the given ones they build on, and no other.

They run in a process of their own, with a limit of time and of memory, so that no notebook can harm another. When a
cell or a check ends that process or does not end itself, it is told so, and the rest is graded by a new process.
Run as a program this file is that process: `python -m zerocourse.course.checks.answers` with the work on stdin.
"""

import json
import linecache
import os
import re
import select
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import BadInput
from ...launch.processes.cleanup import RUN_VARIABLE, end_processes, find_processes
from ...launch.processes.parent import current_parent
from .exercise import exercises
from .verdict import FAILED, Verdict

try:
    import resource
except ImportError:  # Windows
    resource = None

CALL = re.compile(r'^check\("(\d+\.\d+)"', re.M)
CHECK_TRIPS = 20  # more trips to the ranks than any check makes; each has the exercise's own limit
START_SECONDS = 60  # for the process to begin, on a busy machine
TIME_UP = "ran out of time"
GIVEN = "given"  # the tag of cells that the answers build on: imports and constants


@dataclass(frozen=True)
class Limits:
    """For one notebook. seconds: in all. memory_bytes: of the process that runs its cells.
    cell_seconds: for an answer cell, which only defines functions."""

    seconds: float = 300
    memory_bytes: int = 4 * 2**30
    cell_seconds: float = 20


@dataclass(frozen=True)
class Cell:
    """A cell to run. id: of the exercise it answers; None for a given cell."""

    id: str | None
    source: str


def read_cells(path: str | Path) -> list[Cell]:
    """The given cells and the answer cells of a notebook, in order. Raises BadInput when it is no such notebook."""
    try:
        cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in code]
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is not a notebook (.ipynb): {type(error).__name__}: {error}") from None
    found, waiting = [], []
    for cell, source in zip(code, sources, strict=True):
        about, call = cell.get("metadata", {}), CALL.search(source)
        if about.get("nbgrader", {}).get("solution"):
            waiting.append(len(found))
            found.append(Cell(None, source))
        elif GIVEN in about.get("tags", []):
            found.append(Cell(None, source))
        elif call:
            for number in waiting:
                found[number] = Cell(call[1], found[number].source)
            waiting = []
    if not any(cell.id for cell in found):
        raise BadInput(f"{path} has no answers: it should have nbgrader's answer cells, each followed by a check")
    return found


def ids_of(cells: list[Cell]) -> list[str]:
    """The exercises that are answered, in order."""
    return list(dict.fromkeys(cell.id for cell in cells if cell.id))


def grade(path: str | Path, ids: list[str] = (), limits: Limits = Limits(), on_verdict: Callable = lambda _: None
          ) -> dict[str, Verdict]:
    """The verdict on each answer (those of `ids`, or all). A bad notebook raises BadInput, a bad answer does not."""
    cells = read_cells(path)
    wanted = list(ids) or ids_of(cells)
    for id in wanted:
        if id not in ids_of(cells):
            raise BadInput(f"{path} has no answer to {id}: it has {', '.join(ids_of(cells))}")
    verdicts, skip, deadline = {}, {}, time.monotonic() + limits.seconds

    def note(verdict: Verdict) -> None:
        verdicts[verdict.id] = verdict
        on_verdict(verdict)

    while left := [id for id in wanted if id not in verdicts]:
        doing = end = None
        for event in _watch(cells, left, skip, limits, deadline):
            doing, end = event.get("doing", doing), event.get("end")
            if "verdict" in event:
                note(Verdict(**event["verdict"]))
        unknown = [id for id in left if id not in verdicts]
        if isinstance(doing, int) and end != TIME_UP:
            skip[doing] = f"its cell {end}"
        elif doing in unknown and end != TIME_UP:
            note(Verdict(doing, FAILED, f"its check {end}"))
        else:
            for id in unknown:
                note(Verdict(id, FAILED, f"the notebook {end} before this answer was checked"))
    return {id: verdicts[id] for id in wanted}


def _watch(cells, ids, skip, limits: Limits, deadline: float) -> Iterator[dict]:
    """Run a grading process; its events, and at last {"end": "done" or what became of it}. It is gone afterwards."""
    run_id = f"{current_parent().run_id}answers{time.monotonic_ns()}/"
    work = {"cells": [[cell.id, cell.source] for cell in cells], "ids": ids, "skip": list(skip.items()),
            "memory_bytes": limits.memory_bytes, "cell_seconds": limits.cell_seconds, "cwd": os.getcwd()}
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen([sys.executable, "-m", __name__, str(writer)], pass_fds=[writer],
                                   stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True,
                                   env={**os.environ, RUN_VARIABLE: run_id, "PYTHONPATH": _python_path()})
        os.close(writer)
        with process.stdin as stdin:
            stdin.write(json.dumps(work).encode())
        allowed, buffer = START_SECONDS, b""
        while True:
            patience = min(time.monotonic() + allowed, deadline)
            while not select.select([reader], [], [], 0.1)[0] and time.monotonic() < patience:
                pass
            if time.monotonic() >= patience:
                yield {"end": TIME_UP if time.monotonic() >= deadline else f"did not end within {allowed:g} s"}
                return
            chunk = os.read(reader, 1 << 16)
            if not chunk:
                code = process.wait(5)
                yield {"end": f"ended its process (exit code {code})" if code >= 0 else
                       f"ended its process (signal {-code}: out of memory, or a crash)"}
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for event in map(json.loads, lines):
                yield event
                if event.get("end"):
                    return
                allowed = event.get("seconds", allowed)
    finally:
        os.close(reader)
        process.kill()
        process.wait()
        end_processes(lambda: find_processes(run_id), grace=0.0)


def _python_path() -> str:
    """So that the process finds this package where we found it."""
    here = str(Path(__file__).parents[3])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])


# The process ---------------------------------------------------------------------------------------------------------

def main(descriptor: int) -> None:
    """Run the cells, check the answers, and write events to `descriptor`."""
    from . import check

    work = json.load(sys.stdin)

    def tell(**event) -> None:
        os.write(descriptor, json.dumps(event).encode() + b"\n")

    if resource:
        resource.setrlimit(resource.RLIMIT_DATA, (work["memory_bytes"], resource.getrlimit(resource.RLIMIT_DATA)[1]))
    sys.path.insert(0, work["cwd"])
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    faults, skip = {}, dict(work["skip"])
    for number, (id, source) in enumerate(work["cells"]):
        tell(doing=number, seconds=work["cell_seconds"])
        fault = skip.get(number) or _run_cell(source, f"<answer to {id}>" if id else "<given cell>", vars(module))
        if fault:
            faults.setdefault(id, fault)
    everything = exercises()
    for id in work["ids"]:
        found = everything.get(id)
        answers = [vars(module).get(name) for name in found.answers] if found else []
        fault = faults.get(id) or faults.get(None)
        if found and fault and None in answers:
            verdict = Verdict(id, FAILED, fault)
        elif found and None in answers:
            verdict = Verdict(id, FAILED, f"there is no `{found.answers[answers.index(None)]}` in the answer's cell")
        else:
            tell(doing=id, seconds=CHECK_TRIPS * found.timeout if found else START_SECONDS)
            verdict = check(id, *answers)
        tell(verdict=vars(verdict))
    tell(end="done")
    os._exit(0)  # threads of the answers may run on


def _run_cell(source: str, name: str, space: dict) -> str | None:
    """Run one cell; a sentence when it fails. Lines of IPython (%magic, !command) are left out where it needs them."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    try:
        try:
            code = compile(source, name, "exec")
        except SyntaxError:
            code = compile(re.sub(r"^[%!].*$", "", source, flags=re.M), name, "exec")
        exec(code, space)
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
        line = frames[-1].lineno if frames else getattr(error, "lineno", None)  # a SyntaxError has no frame
        text = linecache.getline(name, line or 0).strip()
        return (f"its cell does not run: {type(error).__name__}: {getattr(error, 'msg', error)}"
                + (f" (line {line}: `{text}`)" if text else ""))
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]))
