"""What a rank does in a bench: `watch` the memory, bytes and losses of one mode, or time its steps as a `Racer`.

These two never happen together, because a meter costs time. Nothing here changes how a process treats its memory, its
threads or its garbage, so that a step costs here what it costs in a user's process.
"""

import gc
import resource
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from ..course.tour.tour import buffer_lengths
from ..data.sampler import ShardSampler
from ..data.text import batches, load_text
from ..measure.ledger import Ledger
from ..measure.watched_step import watched_step
from .meters import Heap, loopback_bytes
from .modes import Trained, alone, build, prepare
from .settings import ALONE, MODES, BenchMode, BenchSettings

Entry = tuple[str, int | None]  # a mode's name and its bucket size
METERED = 4  # steps under the meters of heap and wire


def watch(settings: BenchSettings, entry: Entry, private: bool) -> dict:
    """Train a few steps in this mode alone and meter the last five: four by heap and wire, one by the ledger.

    private: this network namespace is the bench's own, so that loopback's counter counts us and nobody else.
    Returns losses; heap_peak_bytes and heap_held_bytes (after a step), above what was held before the model was built;
    wire_bytes (what all ranks sent, divided by their number); what `watched_step` returns; and flat_buffers.
    """
    torch.set_num_threads(settings.threads)
    mode, heap, stream = MODES[entry[0]], Heap(), samples(settings)
    warm_up(mode, settings)
    before = heap.held()
    trained = build(mode, settings, entry[1])
    losses = [trained.step(*next(stream)) for _ in range(settings.steps - METERED - 1)]
    metered = [under_meters(heap, private, trained, *next(stream), losses) for _ in range(METERED)]
    measured = {"heap_peak_bytes": max(peak for peak, _ in metered) - before if heap.here else None,
             "heap_held_bytes": heap.held() - before if heap.here else None,
             # On a busy machine TCP now and then sends a segment twice: the smallest count is the program's.
             "wire_bytes": min(sent for _, sent in metered) // settings.ranks if private else None}
    dist.barrier()

    with Ledger(trained.model, trained.optimizer) as ledger:
        x_BT, y_BT = next(stream)
        measured |= watched_step(ledger, trained.optimizer, trained.comm, lambda: trained.step(x_BT, y_BT))
    losses.append(measured.pop("loss"))
    return measured | {"losses": losses, "flat_buffers": buffer_lengths(trained.model)}


def under_meters(heap: Heap, private: bool, trained: Trained, x_BT: Tensor, y_BT: Tensor,
                 losses: list[float]) -> tuple[int, int]:
    """One step: the heap's peak in it, and the bytes that all ranks sent; 0 where there is no such meter."""
    dist.barrier()
    heap.reset_peak()
    sent = loopback_bytes() if private else 0
    dist.barrier()  # no rank begins before all have read the counter
    losses.append(trained.step(x_BT, y_BT))
    dist.barrier()
    return heap.peak() or 0, loopback_bytes() - sent if private else 0


def warm_up(mode: BenchMode, settings: BenchSettings) -> None:
    """Steps of a short model: what is imported or set up on first use must not count as the mode's.

    Its matrices have the real shapes, because the library that multiplies them keeps buffers for each shape.
    """
    prepare(mode.wants)
    trained = build(mode, replace(settings, layers=2), mode.buckets[0] if mode.buckets else None)
    tokens_BT = torch.zeros(settings.micro_batch, settings.tokens, dtype=torch.int64)
    for _ in range(2):
        trained.step(tokens_BT, tokens_BT)
    del trained
    gc.collect()


class Racer:
    """One entrant of a race on this rank, in processes that are its own and are set up as a user's would be.

    mode: a mode's name, or ALONE for a rank that computes its part of a step and talks to nobody. Collective.
    """

    def __init__(self, settings: BenchSettings, mode: str, bucket: int | None):
        torch.set_num_threads(settings.threads)
        if mode == ALONE:
            self.trained = alone(settings)
        else:
            prepare(MODES[mode].wants)
            self.trained = build(MODES[mode], settings, bucket)
        self.stream = samples(settings)
        for _ in range(2):  # in the first two steps buckets are rearranged and orders are recorded
            self.trained.step(*next(self.stream))

    def lap(self) -> list[float]:
        """What one step took of this rank, see `taken`. The step before it, which is not timed, finds caches that the
        other entrants have filled. Collective."""
        self.trained.step(*next(self.stream))
        x_BT, y_BT = next(self.stream)
        dist.barrier()
        before = taken()
        self.trained.step(x_BT, y_BT)
        dist.barrier()  # a step ends when that of the slowest rank ends
        return [now - then for now, then in zip(taken(), before, strict=True)]


def taken() -> tuple[float, float, float, int]:
    """So far: seconds on the clock; processor seconds, user and system, of all threads of this process; those of this
    thread, which runs model, backward, hooks and optimizer; page faults."""
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return time.perf_counter(), time.process_time(), time.thread_time(), faults


def samples(settings: BenchSettings) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's micro-batches, epoch after epoch."""
    train, _ = load_text(settings.source, settings.tokens)
    sampler = ShardSampler(len(train), dist.get_rank(), settings.ranks, settings.micro_batch, seed=settings.seed)
    while True:
        yield from batches(train, sampler)
