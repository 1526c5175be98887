"""Runs checks one after the other, each in a process of its own and within its limit, and writes down what they saw.

The JSON file that `run_checks` writes, after each check anew, is one object:

    device, tiny     "cuda" or "cpu", and whether sizes were small
    ok               whether no check has failed
    checks           by name: "status" ("ok", "failed" or "skipped"), "seconds", "numbers", "wrong" (a list of sentences); what was
                     skipped says there why

The first check, "machine", has the versions. Numbers are distances from the losses of plain PyTorch unless their names say another
thing. A user's name, a path or an address is in the file only where an error that was raised names it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from ...comm.bootstrap import SWITCH
from ...errors import BadInput
from ...launch.processes.parent import boot_text
from . import checking_process
from .table import CHECKS, GpuCheck

RESULT = "gpu_check.json"
START_SECONDS = 120  # for a process to begin its first check


def run_checks(names: list[str], folder: Path, device: str = "cuda", tiny: bool = False, tell: Callable[[str], None] = print,
               table: Mapping[str, GpuCheck] = CHECKS) -> dict:
    """Run these checks, and return what the JSON file in `folder` has then. `tell` is given a line for each.

    device: "cuda", or "cpu" for a rehearsal, in which the checks share processes, because nothing there can poison one.
    Raises BadInput for a name that is unknown, and for "cuda" without a GPU.
    """
    if unknown := [name for name in names if name not in table]:
        raise BadInput(f"there is no check {unknown[0]!r}: there are {', '.join(table)}")
    gpus = visible_gpus() if device == "cuda" else []
    if device == "cuda" and not gpus:
        raise BadInput("torch sees no GPU here, so there is nothing to check: --device cpu --tiny rehearses it")
    folder.mkdir(parents=True, exist_ok=True)
    result = {"device": device, "tiny": tiny, "ok": True, "checks": {}}

    def add(name: str, outcome: dict) -> None:
        result["checks"][name] = outcome
        result["ok"] = result["ok"] and outcome["status"] != "failed"
        draft = folder / f"{RESULT}.draft"
        draft.write_text(json.dumps(result, indent=1) + "\n")
        draft.replace(folder / RESULT)
        tell("\n".join([f"{outcome['status']:8}{name:22}{outcome['seconds']:6.1f} s", *(f"        {line}" for line in outcome["wrong"])]))

    waiting = []
    for name in names:
        if lacking := what_is_missing(table[name], device, len(gpus)):
            add(name, {"status": "skipped", "seconds": 0.0, "numbers": {}, "wrong": [lacking]})
        else:
            waiting.append(name)
    while waiting:
        batch = waiting[:1] if device == "cuda" else waiting
        for name, outcome in in_a_process({name: table[name] for name in batch}, folder, device, tiny, gpus):
            add(name, outcome)
            waiting.remove(name)
    return result


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them. Touches none of them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())])[:torch.cuda.device_count()]


def what_is_missing(check: GpuCheck, device: str, gpus: int) -> str | None:
    if device == "cpu":
        return None if check.rehearsed else "it needs a GPU"
    return None if check.gpus <= gpus else f"it needs {check.gpus} GPUs, and torch sees {gpus} here"


def in_a_process(checks: Mapping[str, GpuCheck], folder: Path, device: str, tiny: bool, gpus: list[str]) -> Iterator[tuple[str, dict]]:
    """Yield (name, outcome) of the checks one new process has begun: of all, or of those up to the one with which it ended."""
    with tempfile.TemporaryDirectory(dir=folder) as notes, (Path(notes) / "output").open("w+") as output:
        calls = {name: f"{check.run.__module__}:{check.run.__name__}" for name, check in checks.items()}
        paths = {name: Path(notes) / f"{name}.json" for name in checks}
        seen = gpus[:max(check.gpus for check in checks.values()) or None]
        child = subprocess.Popen(
            [sys.executable, "-c", boot_text(checking_process.__name__, calls, notes, tiny)], stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {SWITCH: device} | ({"CUDA_VISIBLE_DEVICES": ",".join(seen)} if device == "cuda" else {}))
        try:
            ended, seconds = wait_for(child, checks, paths)
        finally:
            end_session(child)
        output.seek(0)
        last_lines = "\n".join(output.read()[-2000:].splitlines()[-12:])
        for name, path in paths.items():
            outcome = json.loads(path.read_text()) if path.exists() else {"status": "running", "numbers": {}, "wrong": []}
            was_under_way = outcome["status"] == "running"
            if was_under_way:
                outcome |= {"status": "failed", "seconds": seconds, "wrong": [*outcome["wrong"], f"{ended}: {last_lines}"]}
            yield name, outcome
            if was_under_way:
                return
        for path in Path(notes).glob("trace_*"):
            path.replace(folder / path.name)


def wait_for(child: subprocess.Popen, checks: Mapping[str, GpuCheck], paths: Mapping[str, Path]) -> tuple[str, float]:
    """Wait while each check in turn is within its limit, which begins with its first note. Returns how that ended, and the seconds of
    the last one."""
    limit, begun, waiting = START_SECONDS, time.monotonic(), list(checks)
    while child.poll() is None:
        if waiting and paths[waiting[0]].exists():
            limit, begun = checks[waiting.pop(0)].seconds, time.monotonic()
        if time.monotonic() - begun > limit:
            return f"it was not over after {limit} s", round(time.monotonic() - begun, 1)
        time.sleep(0.02)
    return f"its process ended with status {child.returncode}", round(time.monotonic() - begun, 1)


def end_session(child: subprocess.Popen) -> None:
    """End the process with all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
