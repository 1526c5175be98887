"""Runs checks one after the other, each in a process of its own and within its limit, and writes down what they saw.

The JSON file that `run_checks` writes, after each check anew, is one object:

    zerocourse, device, tiny     the version, "cuda" or "cpu", and whether sizes were small
    ok                           whether no check has failed
    checks                       by name: "status" ("ok", "failed" or "skipped"), "seconds", "numbers", "wrong" (a list of sentences)

Numbers are losses' distances from plain PyTorch's unless their names say another thing. Nothing in the file names the user, a
path or an address, unless an error does that was raised.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist

from ... import __version__
SWITCH = "ZEROCOURSE_DEVICE"
from ...errors import BadInput
from ...launch.processes.parent import boot_text
from .record import Record
from .table import CHECKS, GpuCheck

RESULT = "gpu_check.json"


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
    result = {"zerocourse": __version__, "device": device, "tiny": tiny, "ok": True, "checks": {}}

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


def in_a_process(checks: Mapping[str, GpuCheck], folder: Path, device: str, tiny: bool, gpus: list[str]):
    """Yield (name, outcome) of the checks one new process has begun: of all, or of those up to the one with which it ended."""
    with tempfile.TemporaryDirectory(dir=folder) as notes, (Path(notes) / "output").open("w+") as output:
        calls = {name: f"{check.run.__module__}:{check.run.__name__}" for name, check in checks.items()}
        seen = gpus[:max(check.gpus for check in checks.values()) or None]
        began = time.monotonic()
        child = subprocess.Popen(
            [sys.executable, "-c", boot_text(__name__, calls, notes, tiny)], stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env=os.environ | {SWITCH: device} | ({"CUDA_VISIBLE_DEVICES": ",".join(seen)} if device == "cuda" else {}))
        limit = sum(check.seconds for check in checks.values())
        try:
            ended = f"its process ended with status {child.wait(limit)}"
        except subprocess.TimeoutExpired:
            ended = f"it was not over after {limit} s"
        finally:
            end_session(child)
        output.seek(0)
        last_lines = "\n".join(output.read()[-2000:].splitlines()[-12:])
        for name in checks:
            path = Path(notes) / f"{name}.json"
            outcome = json.loads(path.read_text()) if path.exists() else {"status": "running", "numbers": {}, "wrong": []}
            was_under_way = outcome["status"] == "running"
            if was_under_way:
                outcome |= {"status": "failed", "seconds": round(time.monotonic() - began, 1),
                            "wrong": [*outcome["wrong"], f"{ended}: {last_lines}"]}
            yield name, outcome
            if was_under_way:
                return
        for path in Path(notes).glob("trace_*"):
            path.replace(folder / path.name)


def end_session(child: subprocess.Popen) -> None:
    """End the process with all that it has started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def main(calls: dict[str, str], folder: str, tiny: bool) -> None:
    """In the new process: each check by its "module:function"."""
    for name, call in calls.items():
        began = time.monotonic()
        record = Record(Path(folder) / f"{name}.json", tiny)
        try:
            module, _, function = call.partition(":")
            getattr(import_module(module), function)(record)
        except Exception as error:
            record.fail(error)
        if dist.is_initialized():
            dist.destroy_process_group()
        record.end(time.monotonic() - began)
    os._exit(0)  # a thread or a stream that is stuck keeps nothing waiting
