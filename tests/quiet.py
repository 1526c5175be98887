"""Two workers share the machine, except while a test runs that measures it: then the other one waits between two tests."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Files whose tests need the machine for themselves, each with what would disturb them.
ALONE = {
    "test_bench": "times of modes, as ratios",
    "test_browser": "how soon an interrupted cell ends",
    "test_cost_model": "times over a limited link",
    "test_comm": "bytes on the loopback interface, which all processes share",
    "test_full_size": "12 GiB of memory",
    "test_launch": "how soon processes are gone",
    "test_nodes": "times over a limited link",
    "test_tour": "times of modes, and bytes on the loopback interface",
}


TURN, ROOM = Path(__file__), Path(__file__).with_name("conftest.py")  # files to lock: nothing is written to them


@contextmanager
def undisturbed(file: str) -> Iterator[None]:
    """Run one test of this file, alone if it has to be. Without workers there is nobody to wait for."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    with ROOM.open() as room:
        # Whoever waits to be alone holds the turn, so the other worker cannot begin one test after the other meanwhile.
        with TURN.open() as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if file in ALONE else fcntl.LOCK_SH)
        yield
