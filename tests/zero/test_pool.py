"""Memory of the pool: reused from step to step, counted while it is used and only then, the system's while it is not."""

import mmap
import sys
from unittest import mock

import pytest
import torch
from torch import nn

from zerocourse import shard
from zerocourse.errors import OutOfMemory
from zerocourse.measure.ledger import Ledger
from zerocourse.memory import pool as memory_pool
from zerocourse.memory.storage import FreeableStorage

pytestmark = pytest.mark.skipif(not memory_pool.FREEABLE, reason="the system has no MADV_FREE")
MIB = 1 << 20
SIZE = 3 * MIB + 4096  # bytes, which no other test takes from the pool
ROW = torch.zeros(1)


@pytest.fixture
def counted():
    """What a meter is told."""
    said = []
    memory_pool.meters.add(said.append)
    yield said
    memory_pool.meters.discard(said.append)


def test_a_block_is_handed_out_again_once_the_last_view_of_it_is_gone(counted):
    first = memory_pool.empty(SIZE // 4, ROW).fill_(1)
    view, address = first[5:], first.data_ptr()
    del first
    assert memory_pool.empty(SIZE // 4, ROW).data_ptr() != address, "the view is still there"
    del view
    both = [memory_pool.empty(SIZE // 4, ROW) for _ in range(2)]
    assert address in [each.data_ptr() for each in both]
    del both
    assert counted == [SIZE, SIZE, -SIZE, -SIZE, SIZE, SIZE, -SIZE, -SIZE]


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_empty_is_like_the_tensor_it_is_given(dtype):
    like = torch.zeros(3, dtype=dtype)
    for numel in (0, 7, 2 * MIB):
        made = memory_pool.empty(numel, like)
        assert made.shape == (numel,) and made.dtype is dtype and made.untyped_storage().nbytes() == numel * like.element_size()


def test_small_blocks_are_mallocs(counted):
    memory_pool.empty(MIB // 4 - 1, ROW)
    assert not counted


def test_a_storage_takes_from_the_pool_and_gives_back_while_views_live_on(counted):
    tensor = torch.arange(SIZE // 4, dtype=torch.float32)
    view, storage = tensor[10:20], FreeableStorage(tensor)
    storage.free()
    for round in range(3):
        storage.allocate()
        assert storage.held and counted[-1] == SIZE
        tensor.fill_(round)
        assert view.sum() == 10 * round
        storage.free()
        assert not storage.held and storage.storage.nbytes() == 0 and counted[-1] == -SIZE
        assert not storage.readable or view.sum().isnan()
    assert sum(counted) == 0


def test_the_ledger_counts_blocks_in_use_and_no_idle_ones():
    tensor = torch.zeros(SIZE // 4)
    storage = FreeableStorage(tensor)
    with Ledger() as ledger:
        ledger.track(tensor)
        assert ledger.alive == SIZE
        storage.free()
        assert ledger.alive == 0
        bucket = memory_pool.empty(SIZE // 4, tensor)
        assert ledger.alive == SIZE, "counted before anything is written to it"
        storage.allocate()
        assert ledger.alive == 2 * SIZE == ledger.now().total
        del bucket
        storage.free()
        assert ledger.alive == 0 and ledger.peak == 2 * SIZE
    with Ledger(budget=SIZE - 1) as ledger:
        ledger.track(tensor)
        with pytest.raises(OutOfMemory):
            storage.allocate()
        assert not storage.held and ledger.alive == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_system_may_take_the_pages_of_an_idle_block():
    block = memory_pool.empty(SIZE // 4, ROW).fill_(1)
    before = lazily_free()
    del block
    assert lazily_free() - before > 0.9 * SIZE  # the kernel marks the last few pages of each processor later


def lazily_free() -> int:
    """Bytes of this process that the system may take at any time."""
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("LazyFree"))


# In a training -------------------------------------------------------------------------------------------------------

WIDTH = 600  # a block of 1.44 MB, above the size from which on the pool has a say


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x_BC):
        for block in self.h:
            x_BC = block(x_BC)
        return x_BC


def blocks_taken_from_the_system(stage: int, steps: int = 5) -> list[int]:
    """For each step: how many blocks had to be taken anew, because no idle one was there."""
    memory_pool._idle.clear()  # what an earlier test left
    taken = []

    class Counted(mmap.mmap):
        def __new__(cls, *args, **kwargs):
            taken[-1] += 1
            return super().__new__(cls, *args, **kwargs)

    torch.manual_seed(0)
    model = Blocks()
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), 0.01), stage)
    with mock.patch.object(memory_pool.mmap, "mmap", Counted):
        for _ in range(steps):
            taken.append(0)
            model(torch.randn(2, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return taken


@pytest.mark.parametrize("stage", (1, 2, 3))
def test_from_the_second_step_on_no_memory_is_taken_anew(pool, stage):
    for taken in pool(2).run(blocks_taken_from_the_system, stage):
        assert taken[0] > 0 and not any(taken[2:]), taken
