"""What chapter 15 runs: steps through a disk that are easy to read in a timeline, and the kernel's count of bytes."""

import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from ....offload import Disk, DiskOffload
from ....zero.extras import shard

BLOCKS, ELEMENTS, SECONDS = 8, 1 << 16, 0.03
STATES = 12 * ELEMENTS  # bytes of a block's master weights and Adam's averages
RATE = STATES / SECONDS  # bytes per second: to read a block's states takes SECONDS, and so does to write them


def kernel_bytes() -> dict[str, int] | None:
    """Bytes that this process has had read from disks and written, as the kernel counts; None: it does not say."""
    try:
        rows = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    except OSError:
        return None
    return {"read": int(rows["read_bytes"]), "written": int(rows["write_bytes"])}


class Blocks(nn.Module):
    """Eight units of one size."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(ELEMENTS, 1, bias=False) for _ in range(BLOCKS))

    def forward(self, x):
        return sum(block(x).sum() for block in self.blocks)


class TimedUpdates(DiskOffload):
    """The update of each buffer takes SECONDS, in which the processor is free."""

    def step_on_host(self, flat, optimizer_step):
        begun = time.perf_counter()
        result = super().step_on_host(flat, optimizer_step)
        time.sleep(max(0.0, begun + SECONDS - time.perf_counter()))
        self.stage.recorder.record("step", flat.name, begun)
        return result


class OneAfterTheOther(TimedUpdates):
    """Reads, updates and writes one buffer, and then the next."""

    def turns(self, flats: list, optimizer) -> Iterator:
        for flat in flats:
            self.fetch(flat, *flat.files_of_a_step)
            flat.block.wait()
            yield flat
            flat.write()
            flat.finish_leaving()


def disk_step(folder: str | Path, kind: type[DiskOffload] = TimedUpdates, buffers: int = 4) -> tuple[float, list[dict]]:
    """Seconds of the second step with a disk of RATE, and what was read, updated and written in it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for so small updates more threads only wait for each other
    offload = kind(disk=Disk(folder, rate=RATE, workers=1), buffers=buffers)
    model = Blocks()
    model, optimizer = shard(model, torch.optim.Adam(model.parameters()), 2, offload=offload)
    for _ in range(2):
        model(torch.ones(1, ELEMENTS)).backward()
        recorder = model.zero.recorder
        recorder.events.clear()
        number, begun = recorder.step, time.perf_counter()
        optimizer.step()
        offload.settle()
        seconds = time.perf_counter() - begun
    events = [event | {"unit": event["unit"].removesuffix(".states")}
              for each in (number, number + 1) for event in recorder.of_step(each)
              if event["verb"] in ("read", "write") or event["verb"] == "step" and event["unit"] != "optimizer"]
    offload.disk.close()
    torch.set_num_threads(threads)
    return seconds, events
