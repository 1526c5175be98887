"""Two workers share the machine, except while a test runs that is marked `alone`: then the other one waits between two tests."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TURN, ROOM = Path(__file__), Path(__file__).with_name("conftest.py")  # files to lock: nothing is written to them


@contextmanager
def undisturbed(alone: bool) -> Iterator[None]:
    """Run one test, without any other beside it if it is to be alone. Without workers there is nobody to wait for."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    with ROOM.open() as room:
        # Whoever waits to be alone holds the turn, so the other worker cannot begin one test after the other meanwhile.
        with TURN.open() as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
