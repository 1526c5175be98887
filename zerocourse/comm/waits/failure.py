"""A rank that leaves tells the others why, so that they end within seconds, with its reason, and do not wait."""

import os
import sys
import time
import weakref
from contextlib import suppress

import torch.distributed as dist

from ...errors import OutOfMemory
from . import desync

living = weakref.WeakSet()  # the Comms of this process that have peers
_hooked_in = 0  # the process whose uncaught exceptions are told


def fail_all(reason: str | Exception) -> None:
    """Leave every group that this process has a Comm of, and tell the other ranks, which would wait there, why.

    They raise CollectiveError at once, or OutOfMemory if that is the reason.
    """
    open_comms = [comm for comm in living if comm.is_open]
    reports = [comm.report for comm in open_comms]
    for report in reports:
        report.tell(reason)
    for comm in open_comms:
        with suppress(RuntimeError, ValueError, AssertionError):  # it is closed already
            comm.disconnect()  # ranks that wait there notice it and look for the reason
            if "nccl" not in comm.backends:  # which would wait for collectives that nobody will complete
                dist.destroy_process_group(comm.group)
    until = time.monotonic() + desync.HEARD_SECONDS
    while reports and time.monotonic() < until and not any(report.heard() for report in reports):
        time.sleep(0.02)


def tell_uncaught_exceptions() -> None:
    """From now on, an exception that ends this process is told to the other ranks, after its traceback is printed."""
    global _hooked_in
    if _hooked_in == os.getpid():
        return
    _hooked_in, before = os.getpid(), sys.excepthook

    def tell(kind, error, trace) -> None:
        before(kind, error, trace)
        if os.getpid() == _hooked_in:  # not in a data loader's worker
            first_line = str(error).partition("\n")[0]
            fail_all(error if isinstance(error, OutOfMemory) else f"{kind.__name__}: {first_line}".removesuffix(": "))

    sys.excepthook = tell
