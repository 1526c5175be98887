"""What this machine has for the course, with a verdict on each point. Changes nothing and starts nothing."""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path

from ..errors import BadInput
from ..formulas.units import gib
from .processes.parent import cores

OLDEST_TORCH = (2, 10)
LITTLE_MEMORY = 4 * 2**30  # bytes: two ranks import torch in each of them, and a browser runs beside them


def report() -> list[dict[str, str]]:
    """Rows of "what", "found" and "verdict", for `zerocourse.course.show.table`."""
    rows = [_python(), _torch(), _processors(), _memory(), _widgets()]
    return [dict(zip(("what", "found", "verdict"), row, strict=True)) for row in rows]


def available_bytes() -> int | None:
    """Memory that can be taken without pushing anybody out; None where the system does not say."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:
        return min(available, int(Path("/sys/fs/cgroup/memory.max").read_text()))  # a container's own limit
    except (OSError, ValueError):  # there is none, or it is "max"
        return available


def _python() -> tuple[str, str, str]:
    good = sys.version_info[:2] >= (3, 11)
    return "Python", platform.python_version(), "good" if good else "the course needs 3.11 or newer"


def _torch() -> tuple[str, str, str]:
    version = importlib.metadata.version("torch")
    good = tuple(map(int, version.split(".")[:2])) >= OLDEST_TORCH
    return "PyTorch", version, "good" if good else f"the course needs {'.'.join(map(str, OLDEST_TORCH))} or newer"


def _processors() -> tuple[str, str, str]:
    import torch

    from ..comm import bootstrap

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = f"{gpus} × {torch.cuda.get_device_name(0)}" if gpus else f"no GPU, {cores()} CPU cores"
    try:
        uses_gpu = bootstrap.uses_gpu()
    except BadInput as error:
        return "processors", found, str(error)
    if not uses_gpu:
        kept = f" (so says {bootstrap.SWITCH}=cpu)" if gpus else ""
        return "processors", found, f"good: two ranks run on the CPU and talk over gloo{kept}"
    has_bf16 = torch.cuda.get_device_capability(0) >= (8, 0)  # below it is emulated, and refused
    how = "take a GPU each and talk over NCCL" if gpus >= 2 else "share the GPU and talk over gloo"
    return "processors", found, f"good: two ranks {how}{'' if has_bf16 else '; it has no bf16, so train in fp16 or fp32'}"


def _memory() -> tuple[str, str, str]:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return "memory", "not known", "4 GiB are enough"
    nbytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return "memory", gib(nbytes), "good" if nbytes >= LITTLE_MEMORY else "little: close other programs"


def _widgets() -> tuple[str, str, str]:
    try:
        return "ipywidgets", importlib.metadata.version("ipywidgets"), "good: pictures have sliders"
    except importlib.metadata.PackageNotFoundError:
        return "ipywidgets", "not installed", "pictures stand still; everything else works"
