"""What the tests share: quiet processes, a limit on each test, and ranks that are kept alive."""

import os
import signal
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: several ranks share a core

import pytest
import torch

from zerocourse.launch.ranks import Ranks

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a script is told to ignore it

LIMIT_SECONDS = 120  # for a test that names none


def pytest_collection_modifyitems(config, items):
    if config.pluginmanager.hasplugin("timeout"):
        for item in items:
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(LIMIT_SECONDS))


@pytest.fixture(scope="session")
def pool():
    """`pool(nproc).run(fn, *args)` runs `fn` on ranks that live as long as the session, in milliseconds.

    Returns the list of what each rank returned; raises RankError when one raises, and starts new ranks then.
    """
    kept = {}

    def ranks(nproc: int) -> Ranks:
        if nproc not in kept:
            kept[nproc] = Ranks(nproc, timeout=60)
        return kept[nproc]

    yield ranks
    for each in kept.values():
        each.close()


@pytest.fixture
def survivors():
    """`survivors(text, seconds)`: processes that still have `text` in their environment after that time, as words.

    Reads /proc by itself, so that the package's own search is not its own judge.
    """
    def alive(text: str) -> list[str]:
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if text.encode() in file.read() and int(pid) != os.getpid():
                        with open(f"/proc/{pid}/cmdline", "rb") as words:
                            found.append(f"{pid} {words.read().replace(bytes(1), b' ').decode()}")
            except OSError:
                pass
        return found

    def after(text: str, seconds: float) -> list[str]:
        deadline = time.monotonic() + seconds
        while (found := alive(text)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    return after
