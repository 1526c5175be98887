"""The disk as a tier: all bytes or an error that names the file, the old file or the new one, and every byte counted."""

import gc
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch

from zerocourse.bench.parts import disk_speed
from zerocourse.errors import BadInput, OutOfMemory
from zerocourse.measure.ledger import Ledger
from zerocourse.measure.perfetto import trace
from zerocourse.offload import Disk
from zerocourse.offload.link_transfer import TransferError
from zerocourse.offload.on_disk.aligned import BLOCK, aligned_empty, whole_blocks
from zerocourse.offload.on_disk.block_file import (
    DamagedFile,
    DiskError,
    DiskFull,
    FileReading,
    FileWriting,
    is_direct,
    segments_of,
)
from zerocourse.offload.on_disk.misbehaving import Misbehaving
from zerocourse.offload.on_disk.staging import StagingBuffers
from zerocourse.offload.tiers import Tier


def numbers(numel: int, dtype=torch.float32, seed: int = 0) -> torch.Tensor:
    values = torch.rand(numel, generator=torch.Generator().manual_seed(seed))
    out = aligned_empty(numel, dtype)
    out.copy_(values)
    return out


def files(disk: Disk) -> list[str]:
    return sorted(os.listdir(disk.folder))


# -- all bytes, or an error that names them ----------------------------------------------------------------------------

@pytest.mark.parametrize("fault", (None, "short reads", "short writes"))
def test_what_is_read_is_what_was_written(tmp_path, fault):
    """Also where a call moves half of it, where nothing is aligned, where a part is read, and through the page cache."""
    for direct in (True, False):
        with Disk(tmp_path, block_bytes=2 * BLOCK, direct=direct, system=Misbehaving(fault) if fault else os) as disk:
            assert disk.direct <= direct
            for numel, dtype in ((0, torch.float32), (1, torch.bfloat16), (3 * BLOCK // 4, torch.float32),
                                 (8 * BLOCK + 5, torch.float64)):
                tensor = numbers(numel, dtype)
                disk.write("h.0/mlp", tensor).wait()
                assert files(disk) == ["h.0%2Fmlp.tensor"]
                into = aligned_empty(numel, dtype)
                disk.read("h.0/mlp", into).wait()
                assert torch.equal(into, tensor), (direct, numel)
                for start, stop in ((numel // 3, numel), (numel // 2, numel - numel // 8)):
                    part = torch.empty(stop - start, dtype=dtype)
                    disk.read("h.0/mlp", part, start=start * dtype.itemsize).wait()
                    assert torch.equal(part, tensor[start:stop]), (direct, numel, start)
            apart = torch.empty(10_001)[1:].copy_(numbers(10_000))  # aligned to 4 bytes only
            disk.write("h.0/mlp", apart).wait()
            around = torch.full((10_002,), -1.0)
            disk.read("h.0/mlp", around[1:-1]).wait()
            assert torch.equal(around[1:-1], apart) and around[0] == around[-1] == -1.0


def test_aligned_tensors_take_no_detour(tmp_path):
    tensor = numbers(5 * BLOCK + 1)
    write = FileWriting(tmp_path / "a", tensor, 4 * BLOCK, direct=is_direct(tmp_path))
    write.run()
    into = aligned_empty(5 * BLOCK + 1, torch.float32)
    read = FileReading(tmp_path / "a", into, 4 * BLOCK, write.version, direct=write.direct)
    read.run()
    assert write.bounced == read.bounced == 4, "the last number only, which fills no block"
    assert write.moved == read.moved == whole_blocks(tensor.nbytes) == (tmp_path / "a").stat().st_size


PARTS = (("wte.weight", 3 * BLOCK), ("ln_f.bias", 100), ("ln_f.weight", BLOCK))  # bytes; the piece has 4 * BLOCK


def flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 16]))


def damaged(disk: Disk, hurt) -> str:
    """The sentence after `hurt(path)`."""
    tensor = numbers(4 * BLOCK // 4 + 100)
    disk.write("states", tensor, PARTS).wait()
    hurt(disk.path("states"))
    with pytest.raises(DamagedFile) as caught:
        disk.read("states", aligned_empty(tensor.numel(), torch.float32)).wait()
    assert str(disk.path("states")) in str(caught.value)
    return str(caught.value)


def test_a_wrong_byte_is_found_with_its_file_and_its_parameter(tmp_path):
    with Disk(tmp_path, block_bytes=4 * BLOCK) as disk:
        for offset, name in ((0, "wte.weight"), (3 * BLOCK - 1, "wte.weight"), (3 * BLOCK, "ln_f.bias"),
                             (3 * BLOCK + 100, "ln_f.weight"), (4 * BLOCK + 99, "ln_f.weight")):
            sentence = damaged(disk, lambda path, offset=offset: flip(path, offset))
            assert f"({name})" in sentence, offset
        old = tmp_path / "older"
        disk.write("states", numbers(4 * BLOCK // 4 + 100, seed=1)).wait()
        shutil.copy(disk.path("states"), old)
        damaged(disk, lambda path: shutil.copy(old, path))  # whole, but not what was written last
    for fault in ("flipped byte", "torn write"):
        with Disk(tmp_path, block_bytes=4 * BLOCK, system=Misbehaving(fault, once=True)) as disk:
            damaged(disk, lambda path: None)


def test_segments_end_with_pieces_and_with_parts():
    cuts = [(each.start, each.stop, each.part) for each in segments_of(100, 40, [("a", 30), ("none", 0), ("b", 40)])]
    assert cuts == [(0, 30, "a"), (30, 40, "b"), (40, 70, "b"), (70, 80, ""), (80, 100, "")]
    with pytest.raises(BadInput, match="50 bytes together, and the tensor has 40"):
        segments_of(40, 40, [("a", 50)])


def test_a_file_that_ends_early_is_named(tmp_path):
    tensor = numbers(4 * BLOCK)
    with Disk(tmp_path, block_bytes=2 * BLOCK, workers=1) as disk:
        disk.write("states", tensor).wait()
        os.truncate(disk.path("states"), 2 * BLOCK + 3096)
        with pytest.raises(DiskError, match=r"states.tensor: read 3,096 of 8,192 bytes at byte 8,192, and no more"):
            disk.read("states", aligned_empty(4 * BLOCK, torch.float32)).wait()
        disk.path("states").unlink()
        with pytest.raises(DiskError, match=r"states.tensor could not be read: No such file"):
            disk.read("states", tensor).wait()
    with Disk(tmp_path, block_bytes=2 * BLOCK, system=Misbehaving("no bytes")) as disk:
        disk.write("states", tensor).wait()
        with pytest.raises(DiskError, match=r"states.tensor: read 0 of 8,192 bytes at byte "):
            disk.read("states", tensor).wait()


# -- the old file or the new one ---------------------------------------------------------------------------------------

class Killed:
    """An `os` that ends this process, with no chance to clean up, before the call of this number."""

    def __init__(self, at: int):
        self.left = at

    def __getattr__(self, name: str):
        def call(*args):
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            return getattr(os, name)(*args)

        return call


def test_a_kill_at_any_moment_leaves_the_old_file_or_the_new(tmp_path):
    path, direct = tmp_path / "states", is_direct(tmp_path)
    new = list(range(100))
    contents, at = [], 0
    while True:
        FileWriting(path, torch.full((BLOCK,), -1.0), 2 * BLOCK, direct=direct).run()
        tensor = torch.full((BLOCK,), float(new[at]))
        child = os.fork()
        if not child:
            try:
                FileWriting(path, tensor, 2 * BLOCK, direct=direct, system=Killed(at)).run()
            finally:
                os._exit(0)
        is_killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        contents.append(set(torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32).tolist()))
        if not is_killed:
            break
        at += 1
    renamed = contents.index({float(len([each for each in contents if each == {-1.0}]))})
    assert contents[:renamed] == [{-1.0}] * renamed and renamed >= 6, "open, ftruncate, two pwritev, fdatasync, close"
    assert contents[renamed:] == [{float(new[at])} for at in range(renamed, len(contents))]


def full(disk: Disk) -> str:
    """Two versions of a file, of which the second finds no room: the sentence."""
    old, into = numbers(16 * BLOCK), aligned_empty(16 * BLOCK, torch.float32)
    disk.write("states", old).wait()
    held = disk.tier.bytes
    with pytest.raises(DiskFull) as caught:
        disk.write("states", numbers(160 * BLOCK, seed=1)).wait()
    assert isinstance(caught.value, OutOfMemory)
    assert files(disk) == ["states.tensor"] and disk.tier.bytes == held, "nothing half written is left"
    disk.read("states", into).wait()
    assert torch.equal(into, old)
    return str(caught.value)


def test_a_full_disk_names_the_file_and_keeps_the_old_one(tmp_path):
    with Disk(tmp_path, block_bytes=4 * BLOCK, system=Misbehaving("full", after=20)) as disk:
        assert full(disk).startswith(f"the disk has no room for {disk.path('states')}: 2,621,440 bytes are needed")


def test_a_disk_that_is_really_full(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted")
    try:
        with Disk(tmp_path, block_bytes=4 * BLOCK) as disk:
            free = int(full(disk).partition("older version, and ")[2].partition(" are free")[0].replace(",", ""))
            assert 0.5 * 2**20 < free <= 2**20 - 16 * BLOCK * 4
    finally:
        subprocess.run(["umount", tmp_path], check=True)


# -- order -------------------------------------------------------------------------------------------------------------

def test_reads_and_writes_of_one_name_keep_their_order(tmp_path):
    with Disk(tmp_path, rate=2e6, workers=1, block_bytes=BLOCK) as disk:
        disk.write("others", torch.zeros(2 * BLOCK)).wait()
        found = [torch.empty(BLOCK) for _ in range(3)]
        for number, into in enumerate(found):
            write = disk.write("states", torch.full((BLOCK,), float(number)))
            if number:
                disk.read("others", torch.empty(2 * BLOCK))  # keeps the next read waiting for longer than a write takes
            read = disk.read("states", into)
        read.wait()
        write.wait()
        assert [into.unique().tolist() for into in found] == [[0.0], [1.0], [2.0]]
        assert not disk._writes and not any(disk._reads.values())


def test_a_failed_write_does_not_pass_for_the_older_version(tmp_path):
    tensor = numbers(BLOCK)
    with Disk(tmp_path, system=Misbehaving("full", after=1)) as disk:
        disk.write("states", tensor).wait()
        disk.write("states", tensor)
        time.sleep(0.05)  # over or not, nobody has waited for it
        with pytest.raises(DiskFull):
            disk.read("states", tensor).wait()


def test_a_buffer_is_given_back_when_the_disk_is_done_with_it(tmp_path):
    """Given back too early, it is written as what the next holder makes of it: here NaN."""
    with Disk(tmp_path, rate=BLOCK / 0.02, workers=1, block_bytes=BLOCK) as disk:
        for is_early in (False, True):
            staging = StagingBuffers(2, 4 * BLOCK, poison=True)
            for number in range(3):
                buffer = staging.take(f"step {number}")
                buffer.fill_(number)
                disk.write(f"{number}", buffer, then=None if is_early else lambda buffer=buffer: staging.give(buffer))
                if is_early:
                    staging.give(buffer)
            into = torch.empty(4 * BLOCK, dtype=torch.uint8)
            disk.read("0", into).wait()
            assert (into == 0).all().item() != is_early
            assert staging.peak == (1 if is_early else 2)


def test_staging_buffers_are_bounded():
    tier = Tier("host")
    staging = StagingBuffers(2, 100, limit=0.05, tier=tier, poison=True)
    first, second = staging.take("h.0"), staging.take("h.1")
    assert first.nbytes == BLOCK and first.data_ptr() % BLOCK == 0 and tier.bytes == 2 * BLOCK
    with pytest.raises(TransferError, match=r"h\.2 has waited 0.05 s for one of 2 staging buffers, held by h\.0, h\.1"):
        staging.take("h.2")
    threading.Timer(0.01, staging.give, [first[10:20]]).start()
    staging.limit = 10.0
    assert staging.take("h.2") is first and first[:8].view(torch.float32).isnan().all()
    staging.give(second)
    with pytest.raises(BadInput, match="give each back once"):
        staging.give(second)
    assert staging.in_flight == 1 and staging.peak == 2 and tier.bytes == 2 * BLOCK


# -- what is counted ---------------------------------------------------------------------------------------------------

def kernel() -> tuple[int, int]:
    """Bytes that the kernel has read from disks and written to them for this process."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["read_bytes"]), int(counters["write_bytes"])


def test_the_kernel_counts_the_same_bytes(tmp_path):
    if not Path("/proc/self/io").exists():
        pytest.skip("this system does not count a process's reads and writes")
    with Disk(tmp_path, block_bytes=64 * BLOCK) as disk:
        tensor = numbers(2**18 + 1)
        before = kernel()
        disk.write("states", tensor).wait()
        between = kernel()
        disk.read("states", tensor).wait()
        after = kernel()
        if not disk.direct or between == before:
            pytest.skip("the folder is in memory, or has no O_DIRECT")
        padded = 2**20 + BLOCK
        assert disk.bytes == {"read": padded, "written": padded}
        assert after[0] - between[0] == padded
        extra = between[1] - before[1] - padded
        assert 0 <= extra < padded // 4 and extra % 512 == 0, "the file system's own blocks, for the file's name and place"


def test_the_tier_has_a_budget_and_a_column(tmp_path):
    gc.collect()  # the disks of other tests
    with Disk(tmp_path, budget=5 * BLOCK) as disk, Ledger() as ledger:
        disk.write("a", torch.ones(BLOCK // 4 + 1)).wait()  # two blocks
        disk.write("a", torch.zeros(BLOCK // 4 + 1)).wait()
        assert disk.tier.bytes == 2 * BLOCK == ledger.alive_in["disk"] == ledger.now("disk").total
        assert disk.tier.peak == 4 * BLOCK == ledger.peak_in["disk"], "the older version is there until the new one is whole"
        disk.write("b", torch.ones(1)).wait()
        with pytest.raises(OutOfMemory, match="rank 0 ran out of disk memory: 12.0 KiB more would bring it to "
                                              "24,576 bytes, over its budget of 20,480"):
            disk.write("c", torch.ones(3 * BLOCK // 4))
        disk.remove("a")
        assert files(disk) == ["b.tensor"] and disk.tier.bytes == BLOCK == ledger.alive_in["disk"]
        with pytest.raises(BadInput, match="nothing named 'a'"):
            disk.read("a", torch.ones(1))
    assert disk.tier.bytes == 0 and "disk" not in Ledger().now().as_dict()


def test_a_rate_is_kept_by_all_workers_together_and_leaves_a_lane(tmp_path):
    with Disk(tmp_path, rate=16 * BLOCK / 0.1, block_bytes=BLOCK) as disk:
        begun = time.perf_counter()
        disk.write("states", numbers(4 * BLOCK)).wait()
        disk.read("states", numbers(4 * BLOCK)).wait()
        assert time.perf_counter() - begun >= 0.2
        events = disk.recorder.of_step(0)
        assert [(each["verb"], each["unit"], each["bytes"]) for each in events] == [("write", "states", 16 * BLOCK),
                                                                                    ("read", "states", 16 * BLOCK)]
        assert all(each["end"] - each["start"] >= 0.1 for each in events)
        names = {each["args"]["name"] for each in trace(events)["traceEvents"] if each["name"] == "thread_name"}
        assert {"read from disk", "written to disk"} <= names


# -- its end -----------------------------------------------------------------------------------------------------------

def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("disk ")]


def test_nothing_stays_behind(tmp_path):
    """Closed, with a write under way; forgotten; in a process that is killed."""
    gc.collect()  # the disks of other tests, and their threads
    disk = Disk(tmp_path, rate=1.0, limit=0.05)
    write = disk.write("states", torch.ones(1))
    with pytest.raises(DiskError, match="4 bytes of states were not written after 0.05 s"):
        write.wait()
    read = Disk(tmp_path)
    read.write("states", torch.ones(1)).wait()
    fork = os.fork()  # as a data loader's worker
    if not fork:
        time.sleep(20)
        os._exit(0)
    read.close()
    os.kill(fork, signal.SIGKILL)
    os.waitpid(fork, 0)
    with pytest.raises(DiskError, match="the disk is closed"):
        read.read("states", torch.ones(1))
    forgotten = Disk(tmp_path)
    forgotten.write("states", torch.ones(1)).wait()
    forgotten.threads.remover.kill()
    del forgotten
    child = os.fork()
    if not child:
        try:
            mine = Disk(tmp_path)
            mine.write("states", torch.ones(1)).wait()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    until = time.monotonic() + 20
    while len(os.listdir(tmp_path)) > 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert os.listdir(tmp_path) == [disk.folder.name]
    disk.close()
    assert os.listdir(tmp_path) == [] and not threads()


def test_the_disks_speed_is_a_table(tmp_path, capsys):
    disk_speed.main(str(tmp_path), "1")
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.count("GB/s") == 2]) >= 8 and "aio" in lines[-1]
    assert not os.listdir(tmp_path)


def test_what_a_disk_cannot_be_is_refused(tmp_path):
    for options, words in (({"rate": 0.0}, "rate of the disk is 0.0"), ({"workers": 0}, "0 workers"),
                           ({"block_bytes": 1000}, "block_bytes are 1,000: they must be a multiple of 4,096")):
        with pytest.raises(BadInput, match=words):
            Disk(tmp_path, **options)
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot be used"):
        Disk(tmp_path / "file")
    with pytest.raises(BadInput, match="no fault that a disk can have"):
        Misbehaving("rust")
    with Disk(tmp_path) as disk:
        disk.write("states", torch.ones(4)).wait()
        with pytest.raises(BadInput, match="bytes 8 to 24 of 'states' cannot be read: it has 16"):
            disk.read("states", torch.ones(4), start=8)
        with pytest.raises(BadInput, match="not contiguous"):
            disk.write("states", torch.ones(4, 4).T)
