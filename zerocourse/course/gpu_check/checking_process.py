"""What runs in a process of checks. It imports torch when a check does, so a broken torch is that check's failure."""

import os
import sys
import time
from importlib import import_module
from pathlib import Path

from .check_record import Record


def main(calls: dict[str, str], folder: str, tiny: bool) -> None:
    """Run each check, by name a "module:function", one after the other, with a record in `folder`. Ends the process."""
    for name, call in calls.items():
        began = time.monotonic()
        record = Record(Path(folder) / f"{name}.json", tiny)
        try:
            module, _, function = call.partition(":")
            getattr(import_module(module), function)(record)
            leave_group()
        except Exception as error:
            record.fail(error)
        record.end(time.monotonic() - began)
    os._exit(0)  # a thread or a stream that is stuck keeps nothing waiting


def leave_group() -> None:
    """The next check begins without a process group."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_initialized():
        dist.destroy_process_group()
