"""What a rank does in a bench: `watch` one mode's memory, bytes and losses; `race` several modes against the clock.

They never happen together: a meter costs time, and a neighbour's memory is not the mode's own.
"""

import ctypes
import gc
import resource
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from ..data.text import batches, load_text
from ..measure.ledger import Ledger
from ..data.sampler import ShardSampler
from ..course.tour import rows_of, watched_step
from .meters import Heap, loopback_bytes
from .modes import Trained, alone, build, prepare
from .settings import AGAIN, ALONE, BASELINE, MODES, BenchMode, BenchSettings

Entry = tuple[str, int | None]  # a mode's name and its bucket size
METERED = 4  # steps under the meters of heap and wire
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt


def watch(settings: BenchSettings, entry: Entry, private: bool) -> dict:
    """Train a few steps in this mode alone and meter the last five: four by heap and wire, one by the ledger.

    private: this network namespace is the bench's own, so that loopback's counter counts us and nobody else.
    Returns losses; heap_peak_bytes and heap_held_bytes (after a step), above what was held before the model was built;
    wire_bytes (what all ranks sent, divided by their number); what `watched_step` returns, and rows.
    """
    torch.set_num_threads(settings.threads)
    mode, heap, stream = MODES[entry[0]], Heap(), samples(settings)
    warm_up(mode, settings)
    before = heap.held()
    trained = build(mode, settings, entry[1])
    losses = [trained.step(*next(stream)) for _ in range(settings.steps - METERED - 1)]
    metered = [under_meters(heap, private, trained, *next(stream), losses) for _ in range(METERED)]
    found = {"heap_peak_bytes": max(peak for peak, _ in metered) - before if heap.here else None,
             "heap_held_bytes": heap.held() - before if heap.here else None,
             # On a busy machine TCP now and then sends a segment twice: the smallest count is the program's.
             "wire_bytes": min(sent for _, sent in metered) // settings.ranks if private else None}
    dist.barrier()

    with Ledger(trained.model, trained.optimizer) as ledger:
        x_BT, y_BT = next(stream)
        found |= watched_step(ledger, trained.optimizer, trained.comm, lambda: trained.step(x_BT, y_BT))
    losses.append(found.pop("loss"))
    return found | {"losses": losses, "rows": rows_of(trained.model)}


def under_meters(heap: Heap, private: bool, trained: Trained, x_BT: Tensor, y_BT: Tensor,
                 losses: list[float]) -> tuple[int, int]:
    """One step: the heap's peak in it, and the bytes that all ranks sent; 0 where there is no such meter."""
    dist.barrier()
    heap.reset_peak()
    sent = loopback_bytes() if private else 0
    dist.barrier()  # nobody begins before all have read the counter
    losses.append(trained.step(x_BT, y_BT))
    dist.barrier()
    return heap.peak() or 0, loopback_bytes() - sent if private else 0


def warm_up(mode: BenchMode, settings: BenchSettings) -> None:
    """Steps of a short model: what is imported or set up on first use must not count as the mode's.

    Its matrices have the settings's shapes, because the library that multiplies them keeps buffers for each shape.
    """
    prepare(mode.wants)
    trained = build(mode, replace(settings, layers=2), mode.buckets[0] if mode.buckets else None)
    tokens_BT = torch.zeros(settings.micro_batch, settings.tokens, dtype=torch.int64)
    for _ in range(2):
        trained.step(tokens_BT, tokens_BT)
    del trained
    gc.collect()


def race(settings: BenchSettings, entries: list[Entry], rounds: int, deadline: float | None,
         control: bool) -> dict[str, list[list[float]]]:
    """Seconds of each entry's step in each round: one step each in turn, the order moved on by one every round.

    deadline: of the machine's monotonic clock, after which no round begins. control: the baseline runs twice a round,
    and a rank also computes alone.
    Returns {label of the entry: [what the step took of this rank, see `taken`, a round]}, the same rounds for all.
    """
    torch.set_num_threads(settings.threads)
    keep_freed_memory()
    stream, runners = samples(settings), {}
    for entry in entries:
        prepare(MODES[entry[0]].wants)
        runners[label(entry)] = build(MODES[entry[0]], settings, entry[1])
    if control:
        runners[ALONE] = alone(settings)
    x_BT, y_BT = next(stream)
    for trained in runners.values():
        for _ in range(2):  # buckets are laid anew, and orders are learnt, in the first two
            trained.step(x_BT, y_BT)
    order, seconds = list(runners), {name: [] for name in runners}
    if control:
        base = next(label(entry) for entry in entries if entry[0] == BASELINE)
        order, seconds[AGAIN] = [*order, AGAIN], []
        runners[AGAIN] = runners[base]
    gc.collect()
    gc.freeze()  # one mode's step must not pay for looking through all the others' objects
    for number in range(rounds):
        if number and over(deadline):
            break
        x_BT, y_BT = next(stream)
        for name in turns(order, number):
            dist.barrier()
            before = taken()
            runners[name].step(x_BT, y_BT)
            dist.barrier()  # a step is over when the slowest rank's is
            seconds[name].append([now - then for now, then in zip(taken(), before, strict=True)])
    return seconds


def taken() -> tuple[float, float, float, int]:
    """So far: seconds on the clock, processor seconds of all threads of this process, of this thread alone, page faults.

    This thread computes, on a CPU the backward too; the others are gloo's, which send, receive and (for all_reduce) add.
    """
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return time.perf_counter(), time.process_time(), time.thread_time(), faults


def keep_freed_memory() -> None:
    """Have glibc keep what a step frees for the next one, as a GPU's allocator does.

    Otherwise memory goes back to the system at the end of a step and is taken anew page by page. What that costs, up to
    a tenth of a step in a virtual machine, depends on who else is in this process, and not on the mode.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc is there
        mallopt(MMAP_THRESHOLD, 32 << 20)  # the most it takes
        mallopt(TRIM_THRESHOLD, 2**31 - 1)


def turns(names: list[str], number: int) -> list[str]:
    """The order in round `number`: who began the last round is last in this one, so that nobody keeps a good place."""
    first = number % len(names)
    return names[first:] + names[:first]


def over(deadline: float | None) -> bool:
    """Is it past the deadline on some rank? Collective."""
    late = torch.tensor([float(deadline is not None and time.monotonic() > deadline)])
    dist.all_reduce(late, dist.ReduceOp.MAX)
    return bool(late.item())


def label(entry: Entry) -> str:
    return entry[0] if entry[1] is None else f"{entry[0]}@{entry[1]}"


def samples(settings: BenchSettings) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's micro-batches, epoch after epoch."""
    train, _ = load_text(settings.source, settings.tokens)
    sampler = ShardSampler(len(train), dist.get_rank(), settings.ranks, settings.micro_batch, seed=settings.seed)
    while True:
        yield from batches(train, sampler)
