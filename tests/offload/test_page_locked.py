"""Page-locked memory: how much is locked, and only beside a GPU. There is none here, so CUDA's functions are played by others."""

import gc
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch
import worlds
from worlds import Case

from zerocourse.errors import OutOfMemory
from zerocourse.offload import DiskOffload, HostLink, HostOffload, Tier
from zerocourse.offload.on_disk.aligned import BLOCK, aligned_empty, whole_blocks
from zerocourse.offload.on_disk.staging import StagingBuffers

GPU, CPU = torch.device("cuda", 1), torch.device("cpu")
BF16 = torch.bfloat16


class Cuda:
    """Locks and unlocks, and remembers. error: what locking returns.   last_error: what the next kernel would report."""

    def __init__(self):
        self.locked: dict[int, int] = {}  # bytes by address
        self.by_torch: list[int] = []  # bytes of what torch was asked to lock
        self.synchronized: list[torch.device] = []
        self.error = self.last_error = 0

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        if not self.error:
            self.locked[address] = nbytes
        self.last_error = self.error
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0

    @property
    def sizes(self) -> list[int]:
        return sorted(self.locked.values())


@pytest.fixture
def cuda(monkeypatch) -> Cuda:
    fake, empty, zeros = Cuda(), torch.empty, torch.zeros

    def empty_and_remember(*args, pin_memory: bool = False, **kwargs):
        tensor = empty(*args, **kwargs)
        if pin_memory:
            fake.by_torch.append(tensor.nbytes)
        return tensor

    def zeros_by_a_kernel(*args, device=None, **kwargs):
        if device != GPU:
            return zeros(*args, device=device, **kwargs)
        error, fake.last_error = fake.last_error, 0
        if error:
            raise RuntimeError(f"CUDA error {error}")

    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: fake.synchronized.append(device))
    monkeypatch.setattr(torch, "empty", empty_and_remember)
    monkeypatch.setattr(torch, "zeros", zeros_by_a_kernel)
    return fake


def test_memory_is_locked_to_the_block_and_unlocked_with_the_last_tensor(cuda):
    tensor = aligned_empty(1500, torch.float32, locked_for=GPU)  # 6,000 bytes: torch would lock 8,192 of 5,000 and of 6,000
    view = tensor[:3]
    assert cuda.locked == {tensor.data_ptr(): 2 * BLOCK}
    del tensor
    assert cuda.locked, "a view still stands on it"
    thread = threading.Thread(target=[view].clear)  # which has a device of its own
    del view
    thread.start(), thread.join()
    assert not cuda.locked and cuda.synchronized == [GPU], "the device that may still copy it"
    aligned_empty(0, torch.float32, locked_for=GPU), aligned_empty(9, torch.float32)
    assert not cuda.locked
    cuda.error = 2
    with pytest.raises(OutOfMemory, match=r"^8,192 bytes of host memory cannot be page-locked \(CUDA error 2\): use less"):
        aligned_empty(1500, torch.float32, locked_for=GPU)
    assert cuda.last_error == 0, "else the next kernel reports it as its own"


def test_a_tier_locks_what_a_gpu_copies(cuda):
    tier = Tier("host", pin=True)
    kept = [tier.empty(5 * BLOCK, BF16, beside, stays) for beside in (None, CPU, GPU) for stays in (False, True)]
    assert cuda.sizes == [10 * BLOCK], "to the byte, where a power of two would be 16 blocks"
    assert cuda.by_torch == [10 * BLOCK], "what comes and goes is torch's"
    assert tier.bytes == 6 * 10 * BLOCK
    del kept
    assert tier.bytes == 0 and not cuda.locked
    kept = [Tier("host").empty(9, BF16, GPU, stays) for stays in (False, True)]  # noqa: F841  # they are there meanwhile
    assert not cuda.locked and len(cuda.by_torch) == 1, "a tier that was not told to locks nothing"
    with pytest.raises(OutOfMemory):
        Tier("host", 100, pin=True).empty(101, torch.uint8, GPU, stays=True)


LOCKED = (  # (stage, dtype, options): bytes a slice's element that stay locked, and that come and go in a step
    (2, None, {}, 4, 4), (2, BF16, {}, 0, 2 + 2), (3, BF16, {"parameters": True}, 2, 2), (3, None, {"parameters": True}, 4, 4),
    (2, BF16, {"pin_memory": False}, 0, 0))


@pytest.mark.parametrize("stage, dtype, options, stay, pass_by", LOCKED)
def test_an_offload_locks_what_the_link_copies(cuda, monkeypatch, stage, dtype, options, stay, pass_by):
    """Masters in half precision and optimizer states never meet the link. On a CPU nothing is locked."""
    empty = Tier.empty
    for device in (CPU, GPU):
        monkeypatch.setattr(Tier, "empty", lambda self, numel, dtype, beside=None, stays=False, device=device: empty(
            self, numel, dtype, beside and device, stays))  # on "the GPU" what is beside the CPU is beside it
        model, optimizer = worlds.sharded(Case(stage, 1, param_dtype=dtype, optimizer=torch.optim.Adam), offload=HostOffload(**options))
        with model.zero.backward_options(is_last=True):
            worlds.gpt_loss(model, 0, 0, 0).backward()
        optimizer.step()
        slices = [flat.shard.numel() for flat in model.zero.flats] if device is GPU else []
        assert cuda.sizes == sorted(whole_blocks(stay * numel) for numel in slices if stay), device
        assert sum(cuda.by_torch) == pass_by * sum(slices), device
        del model, optimizer
        gc.collect()
        assert not cuda.locked, device


def test_staging_buffers_are_locked_beside_a_gpu(cuda, tmp_path):
    staging = StagingBuffers(2, 5 * BLOCK + 1, locked_for=GPU)
    staging.take("a"), staging.take("b")
    assert cuda.sizes == [6 * BLOCK] * 2
    del staging
    assert not cuda.locked
    for options, is_cuda, locked in (({}, True, [2 * BLOCK]), ({}, False, []), ({"pin_memory": False}, True, [])):
        offload = DiskOffload(tmp_path, **options)
        offload.largest_block = lambda flat: 2 * BLOCK
        offload.free_buffer(SimpleNamespace(name="h.0", full=SimpleNamespace(is_cuda=is_cuda, device=GPU)))
        assert cuda.sizes == locked, (options, is_cuda)
        offload.disk.close()
        del offload
        gc.collect()


def test_a_copy_on_a_gpu_waits_for_what_was_computed_and_blocks_nobody(monkeypatch):
    """In order: the link's stream waits for the stream that computes, copies, and leaves an event. The transfer refers to the
    device's tensor until the stream that computes has waited for the event. Down the host waits, too, before it reads."""
    said = []

    class Stream:
        def __init__(self, name):
            self.name = name if isinstance(name, str) else "link"

        def wait_stream(self, other):
            said.append(f"{self.name} waits for {other.name}")

        def wait_event(self, event):
            said.append(f"{self.name} waits for the event")

        def __enter__(self):
            said.append(f"on {self.name}")

        def __exit__(self, *_):
            said.append("off")

    event = SimpleNamespace(record=lambda stream: said.append(f"event on {stream.name}"),
                            synchronize=lambda: said.append("host waits"), query=lambda: False)
    for name, value in (("Stream", Stream), ("Event", lambda: event), ("current_stream", lambda device: Stream("computing")),
                        ("stream", lambda stream: stream)):
        monkeypatch.setattr(torch.cuda, name, value)

    class Tensor:
        nbytes = 8

        def __init__(self, device):
            self.device = device

        def copy_(self, source, non_blocking):
            said.append(f"copy, {non_blocking=}")

    copied, kept = ["link waits for computing", "on link", "copy, non_blocking=True", "event on link", "off"], []
    link = HostLink()
    for name in "abc":
        source = Tensor(GPU)
        kept.append(weakref.ref(source))
        transfer = link.down(Tensor(CPU), source, name)
        del source
    assert said == [*copied, *copied, "computing waits for the event", *copied], "of three the first is released"
    assert [each() is None for each in kept] == [True, False, False]
    said.clear()
    transfer.wait()
    assert said == ["host waits", "computing waits for the event"] and kept[2]() is None
    said.clear()
    transfer = link.up(Tensor(GPU), Tensor(CPU), "a")
    transfer.wait()
    assert said == [*copied, "computing waits for the event"] and link.bytes == {"down": 24, "up": 8}
    transfer.wait_for_source()
    assert said[-1] == "host waits"
    said.clear()
    transfer = link.up(Tensor(GPU), Tensor(CPU), "a")
    del link, transfer
    gc.collect()
    assert said == [*copied, *2 * ["computing waits for the event"]], "nobody has waited for one each way"
