"""How fast the disk is: our threads, with and without the page cache, beside DeepSpeed's aio where that loads.

    python -m zerocourse.bench.parts.disk_speed FOLDER [MiB]

Times are the best of three. Ours include checksums, fdatasync and the rename, and DeepSpeed's none of these.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

import torch

from ...offload import Disk
from ...offload.on_disk.aligned import aligned_empty

MIB = 1 << 20
Row = tuple[str, float, float]  # the way, and bytes per second written and read


def best(action: Callable[[], object], nbytes: int, times: int = 3) -> float:
    """Bytes per second."""
    seconds = []
    for _ in range(times):
        begun = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begun)
    return nbytes / min(seconds)


def disk_speeds(folder: str | Path, nbytes: int = 256 * MIB) -> Iterator[Row]:
    """Of a file of `nbytes` in this folder."""
    tensor = aligned_empty(nbytes, torch.uint8).random_(generator=torch.Generator().manual_seed(0))
    for direct, workers, block in product((True, False), (1, 4), (1, 8)):
        with Disk(folder, workers=workers, block_bytes=block * MIB, direct=direct) as disk:
            way = "O_DIRECT" if disk.direct else "page cache"
            yield (f"{way}, workers {workers}, {block} MiB", best(lambda: disk.write("bench", tensor).wait(), nbytes),
                   best(lambda: disk.read("bench", tensor).wait(), nbytes))


def aio_speeds(folder: str | Path, nbytes: int = 256 * MIB) -> Iterator[Row]:
    """The same by DeepSpeed's libaio. Raises ImportError, which says why it does not load."""
    from deepspeed.ops.op_builder import AsyncIOBuilder

    builder = AsyncIOBuilder()
    if not builder.is_compatible(verbose=False):
        raise ImportError("DeepSpeed is installed, and its aio needs a compiler and libaio-dev")
    aio, tensor = builder.load(), aligned_empty(nbytes, torch.uint8).fill_(7)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        for workers, block in product((1, 4), (1, 8)):
            handle = aio.aio_handle(block * MIB, 8, False, True, workers)
            write = best(partial(handle.sync_pwrite, tensor, f"{own}/bench", 0), nbytes)
            yield f"DeepSpeed's aio, threads {workers}, {block} MiB", write, best(
                partial(handle.sync_pread, tensor, f"{own}/bench", 0), nbytes)


def main(folder: str, mib: str = "256") -> None:
    print(f"{'':36}{'write':>12}{'read':>12}")
    for speeds in (disk_speeds, aio_speeds):
        try:
            for way, write, read in speeds(folder, int(mib) * MIB):
                print(f"{way:36}{write / 1e9:7.2f} GB/s{read / 1e9:7.2f} GB/s")
        except (ImportError, RuntimeError) as error:  # torch raises a RuntimeError for C++ that does not compile
            print(f"DeepSpeed's aio is left out: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
