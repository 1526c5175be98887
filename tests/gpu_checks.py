"""Checks for the tests of what runs checks: they fail, end and hang as real ones may. Imports no torch, so that they begin at once."""

import os
import subprocess

from zerocourse.course.gpu_check.check_record import Record
from zerocourse.errors import BadInput


def good(record: Record) -> None:
    record.within(1e-4, {"distance": 1e-6})


def wrong(record: Record) -> None:
    record.within(1e-4, {"NaN": float("nan"), "far": 0.2})
    with record.trying("the second part"):
        raise BadInput("no such part")
    record.note(last=3)


def raises(record: Record) -> None:
    record.note(first=1)
    raise ValueError("broken")


def dies(record: Record) -> None:
    record.note(seen=1)
    print("last words", flush=True)
    os.abort()


def hangs(record: Record) -> None:
    child = subprocess.Popen(["sleep", "60"])
    record.note(child=child.pid)
    child.wait()
