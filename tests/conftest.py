"""What the tests share: quiet processes, a limit on each test, and ranks that are kept alive."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: several ranks share a core

import pytest
import torch

from zerocourse.ranks import Ranks

torch.set_num_threads(1)

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
