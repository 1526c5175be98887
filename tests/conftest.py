"""What the tests share: quiet processes, a limit on each test, and ranks that are kept alive and keep one order."""

import os
import re
import signal
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: several ranks share a core
if "--gpu" in sys.argv:
    os.environ["ZEROCOURSE_TESTS_GPU"] = "1"  # for pytest-xdist's workers, which have another command line
if "ZEROCOURSE_TESTS_GPU" not in os.environ:
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "ZEROCOURSE_DEVICE": "cpu"}  # before torch is imported: the tests are the same everywhere
os.environ["COLUMNS"] = "250"  # commands say each sentence on a line; tests/commands/test_terminal.py makes the page narrow

# No two files of tests have one name, so each imports the others by name, whatever their rooms.
sys.path += sorted({str(path.parent) for path in Path(__file__).parent.rglob("test_*.py")})

import pytest
import torch
import torch.distributed as dist
from quiet import undisturbed
from strict_nccl import SECONDS, StrictRanks

from zerocourse.comm.waits import progress
from zerocourse.launch.ranks import Ranks

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a script is told to ignore it

LIMIT_SECONDS = 300  # for a test that names none: only a hang should meet it, so a slow machine has room


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: the test measures the machine, so no worker runs another test meanwhile")
    config.addinivalue_line("markers", "gpu: needs a GPU")
    config.addinivalue_line("markers", "gpus2: needs two GPUs")
    config.addinivalue_line("markers", "ranks_may_differ: the ranks of `pool` issue different collectives on purpose")


def pytest_addoption(parser):
    parser.addoption("--gpu", action="store_true", help="let the tests see the GPUs, for those that need some")
    parser.addoption("--quick", action="store_true", help="leave out what takes long: see `quick` in tests/conftest.py")


QUICK = {  # by file, the tests that are worth their seconds while one works; a string must be in the test's name
    "test_commands": "", "test_config": "", "test_contributing": "", "test_data": "", "test_house": "", "test_ledger": "", "test_memory": "",
    "test_memory_command": "", "test_mini": "[2", "test_mini_view": "", "test_model": "", "test_mutants": "",
    "test_passes": "is_not_the_last", "test_rankmap": "", "test_refusals": "", "test_show": "", "test_sizes": "",
    "test_stages": "unsharded_model[2]", "test_torch_private": "", "test_traps": "trap_0",
}


def quick(item) -> bool:
    """Does the test belong to `make test-quick`, which takes less than three minutes?"""
    return item.path.stem in QUICK and QUICK[item.path.stem] in item.name


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of the timer, which is not to count how long a test waits
def pytest_runtest_protocol(item, nextitem):
    with undisturbed(item.get_closest_marker("alone") is not None):
        return (yield)


def pytest_runtest_setup(item):
    OrderedRanks.may_differ = item.get_closest_marker("ranks_may_differ") is not None


def group(nodeid: str) -> str:
    """What a worker of `make test` runs in one go: a file, whose tests share fixtures, or what the tests know of a chapter's
    exercises, which share traces of mutants. A test that runs in a process of its own stands alone."""
    path, _, name = nodeid.partition("::")
    stem = Path(path).stem
    if stem == "test_notebooks" or name.startswith("test_solutions_give_the_same_outputs_again"):
        return nodeid
    chapter = re.search(r"\[(chapter\d\d)", name) if stem in ("test_checks", "test_exercises") else None
    return chapter[1] if chapter else stem


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With --dist loadgroup: by `group`. (pytest-xdist's own groups are written into the names of tests, which pytest 9 no
    longer lets it change.)"""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = group
    return scheduler


def pytest_collection_modifyitems(config, items):
    if config.getoption("--quick"):
        config.hook.pytest_deselected(items=[item for item in items if not quick(item)])
        items[:] = filter(quick, items)
    skip_what_has_no_gpu(items, config.getoption("--gpu"))
    if config.pluginmanager.hasplugin("timeout"):
        for item in items:
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(LIMIT_SECONDS))


def gpus_needed(item) -> int:
    return 2 if item.get_closest_marker("gpus2") else 1 if item.get_closest_marker("gpu") else 0


def skip_what_has_no_gpu(items, visible: bool) -> None:
    """visible: whether the tests were told to see GPUs. Asking how many there are touches none of them."""
    there = torch.cuda.device_count() if visible else 0
    for item in items:
        if gpus_needed(item) > there:
            needs = f"{item.name} needs {'two GPUs' if gpus_needed(item) == 2 else 'a GPU'}, and torch sees {there} here"
            item.add_marker(pytest.mark.skip(needs if visible else "needs a GPU, and these tests see none: make test-gpu runs it"))


def pytest_sessionfinish(session):
    """With --gpu, and nothing that could run: that is no success. The status is pytest's own for a run without tests."""
    if session.config.getoption("--gpu") and session.exitstatus == 0 and hasattr(session, "items") and (
            session.items and not any(gpus_needed(item) <= torch.cuda.device_count() for item in session.items)):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_unconfigure(config):
    """The last line of a run with --gpu says what was not tested."""
    there = torch.cuda.device_count() if config.getoption("--gpu") else 2
    if there < 2:
        print("Nothing was tested: torch sees no GPU here." if there == 0 else
              "What needs two GPUs was not tested: torch sees one here.")


def issued_here() -> dict[str, tuple[list[int], list[tuple]]]:
    """By Comm that this rank has made since the last time: the ranks of its group, and what it issued in order."""
    comms = {each.name: (each.ranks, list(each.issued)) for each in progress.recent}
    progress.recent.clear()
    return comms


def first_difference(logs: list[dict[str, tuple[list[int], list[tuple]]]]) -> str | None:
    """Where two ranks of one group part, in words; logs: each rank's `issued_here`."""
    for name, members in {name: ranks for log in logs for name, (ranks, _) in log.items()}.items():
        first, *others = [(rank, logs[rank].get(name, (members, []))[1]) for rank in members]
        for rank, issued in others:
            if issued != first[1]:
                at = next((i for i, (one, other) in enumerate(zip(first[1], issued)) if one != other),
                          min(len(first[1]), len(issued)))
                here, there = ([*calls, "nothing more"][at] for calls in (first[1], issued))
                return (f"ranks {first[0]} and {rank} issued different collectives in Comm {name}: number {at + 1} is "
                        f"{here} on rank {first[0]} and {there} on rank {rank}")
    return None


class OrderedRanks(Ranks):
    """Ranks of which those in one group must issue the same collectives in the same order, as NCCL needs them.

    gloo would forgive another order, as its messages carry tags. Nothing is asserted where the run raises, nor in a
    test that is marked `ranks_may_differ`.
    """

    may_differ = False

    def run(self, fn, *args, **kwargs):
        results = super().run(fn, *args, **kwargs)
        difference = first_difference(super().run(issued_here)) if self._job else None
        assert not difference or self.may_differ, difference
        return results


@pytest.fixture(scope="session")
def pool():
    """`pool(nproc).run(fn, *args)` runs `fn` on ranks that live as long as the session, in milliseconds.

    Returns the list of what each rank returned; raises RankError when one raises, and starts new ranks then. Asserts
    that the ranks of a group issued the same collectives in the same order (see `OrderedRanks`).
    """
    kept = {}

    def ranks(nproc: int) -> Ranks:
        if nproc not in kept:
            kept[nproc] = OrderedRanks(nproc, timeout=60)
        return kept[nproc]

    yield ranks
    for each in kept.values():
        each.close()


@pytest.fixture(scope="session")
def strict_pool(pool):
    """`strict_pool(nproc).run(fn, *args)`: as `pool`, under NCCL's rules (see `strict_nccl`). `strict_pool(nproc, seconds)`:
    with another time until what hangs is ended."""
    return lambda nproc, seconds=SECONDS: StrictRanks(pool(nproc), seconds)


@pytest.fixture(scope="module", autouse=True)
def no_group_is_left():
    """An engine outside of ranks starts a group of one rank in this process. The next file begins without it."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


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
