"""How the package's own cost grows with units, with the parameters of a unit, and with ranks: counted, and timed.

    python -m zerocourse.bench.growth             # counts alone: the same on every machine
    python -m zerocourse.bench.growth --times     # with times: of this machine, best when it is quiet
    python -m zerocourse.bench.growth --record    # the same, kept in recorded_growth.json

A cost that grows like size^p is a straight line on log-log paper, and p is its slope. Work that is done once for each
unit has p = 1; where every unit looks at every other, p comes near 2. Counts tell them apart without any clock: the
lines of the package's own Python that run, the collectives that are issued, the bytes of the agreement.

The ranks beside this one are simulated (`comm.simulated`), the tensors are real and tiny, so that the model itself
computes next to nothing. What ranks tell each other through the store, and what their start takes, is of real ranks.
"""

import argparse
import contextlib
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from ..comm import Comm
from ..comm.simulated import SimulatedComm
from ..errors import BadInput
from ..init.deferred import deferred_init
from ..launch.ranks import Ranks
from ..measure.recorded import Recorded
from ..zero.buffers.buffer import FlatBuffer
from ..zero.buffers.unit import Unit
from ..zero.extras import shard
from .modes import adamw
from .parts.hook_cost import Tower

PACKAGE = str(Path(__file__).parents[1])
BASE = {"units": 8, "parameters": 4, "ranks": 2}  # what does not grow; parameters: of each unit
SIZES = {"units": (8, 32, 128, 384, 768), "parameters": (4, 16, 64, 256), "ranks": (2, 16, 128, 1024, 4096)}
REAL_RANKS = (2, 4, 8)
FITTED = 3  # the exponent is that of the largest sizes, where what is paid once for a step hides least
ROUNDS = 5  # of a timed step

recorded_growth = Recorded(__file__, "recorded_growth")
"""A cost a row: what, by, sizes, values, exponent, and fitted, the range of sizes that the exponent is of."""


@dataclass(frozen=True)
class Growth:
    """One cost at several sizes, the smallest first.   what: the cost, with its unit.   by: what grows."""

    what: str
    by: str
    sizes: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """The p of size^p, over the largest sizes (see `fitted`)."""
        return exponent(self.sizes[-FITTED:], self.values[-FITTED:])

    @property
    def fitted(self) -> tuple[int, int]:
        """The smallest and the largest size that the exponent is of."""
        return self.sizes[-FITTED:][0], self.sizes[-1]


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of the line through (log size, log value), by least squares. Raises BadInput where there is none."""
    if len(sizes) != len(values) or len(set(sizes)) < 2 or not all(0 < each < math.inf for each in (*sizes, *values)):
        raise BadInput("an exponent needs a value above 0 at each of two sizes or more, and got "
                       f"{list(values)} at {list(sizes)}")
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


# -- counting ---------------------------------------------------------------------------------------------------------

def lines_run(call: Callable[[], object], where: str | tuple[str, ...] = PACKAGE) -> int:
    """How many lines of the package's own Python `call` runs in this thread, every round of a loop counted.

    To look for a buffer or a unit in a list is one line, but compares it with all before it: comparisons count as lines.
    where: how the names of the files begin whose lines count.
    """
    count = 0

    def of_line(frame, event, _):
        nonlocal count
        count += event == "line"
        return of_line

    def of_call(frame, event, _):
        return of_line if frame.f_code.co_filename.startswith(where) else None

    before = sys.gettrace()
    with comparisons_are_lines(), no_collection():  # a collection would run what waits for the end of earlier models
        sys.settrace(of_call)
        try:
            call()
        finally:
            sys.settrace(before)
    return count


@contextlib.contextmanager
def comparisons_are_lines() -> Iterator[None]:
    """Inside, Python compares buffers and units by a function of ours."""
    def same(one: object, other: object) -> bool:
        return one is other

    FlatBuffer.__eq__ = Unit.__eq__ = same
    try:
        yield
    finally:
        del FlatBuffer.__eq__, Unit.__eq__


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Inside, Python's garbage collector stands still."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def counts(stage: int, units: int, parameters: int, ranks: int, deferred: bool = False, **options) -> dict[str, int]:
    """What one rank of so many does at a stage, by name.   deferred: the model is built without values."""
    torch.set_num_threads(1)
    gc.collect()
    with deferred_init() if deferred else contextlib.nullcontext():
        model, optimizer, comm = tower(units, parameters, ranks)
    found = {"lines of shard()": lines_run(lambda: shard(model, optimizer, stage, comm=comm, init_fn=ones, **options)),
             "lines of the first step": lines_run(lambda: step(model, optimizer))}
    comm.issued.clear()
    before = comm.metadata
    found["lines of a step"] = lines_run(lambda: step(model, optimizer))
    return found | {"collectives of a step": len(comm.issued), "agreement, bytes": comm.metadata - before}


def tower(units: int, parameters: int, ranks: int) -> tuple[nn.Module, Optimizer, SimulatedComm]:
    model = Tower(units, parameters)
    return model, adamw(model.parameters(), 1e-6), SimulatedComm(0, ranks, like="nccl")


def ones(module: nn.Module) -> None:
    for param in module.parameters(recurse=False):
        nn.init.ones_(param)


def step(model: nn.Module, optimizer: Optimizer) -> None:
    model(torch.ones(4)).backward()
    optimizer.step()
    optimizer.zero_grad()


# -- timing -----------------------------------------------------------------------------------------------------------

def times(stage: int, units: int, parameters: int, ranks: int) -> dict[str, float]:
    """Milliseconds of processor time of this thread: of shard(), and what a step takes beyond the plain model's.

    Python's garbage collector stands still, because what it looks at grows with all that the process has.
    """
    torch.set_num_threads(1)
    plain = Tower(units, parameters)
    runs = [(plain, adamw(plain.parameters(), 1e-6)), (made := tower(units, parameters, ranks))[:2]]
    gc.collect()
    sharding = milliseconds(lambda: shard(*made[:2], stage, comm=made[2]))
    for run in runs:
        step(*run)  # sets things up
    rounds = [[milliseconds(lambda run=run: step(*run)) for run in runs] for _ in range(ROUNDS)]
    without, with_it = map(statistics.median, zip(*rounds, strict=True))
    return {"shard(), ms": sharding, "a step beyond the model's own, ms": with_it - without}


def milliseconds(call: Callable[[], object]) -> float:
    with no_collection():
        began = time.thread_time()
        call()
        return 1e3 * (time.thread_time() - began)


# -- real ranks -------------------------------------------------------------------------------------------------------

class CountedStore:
    """In place of a store: counts this rank's writes and reads. Questions (`check`) depend on luck, and do not count."""

    def __init__(self, store):
        self.store, self.requests, self.read = store, 0, 0

    def __getattr__(self, name: str):
        return getattr(self.store, name)

    def set(self, *args) -> None:
        self.requests += 1
        self.store.set(*args)

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.requests += 1
        values = self.store.multi_get(keys)
        self.read += sum(map(len, values))
        return values


def at_start(units: int, parameters: int) -> dict[str, float]:
    """On one of two ranks or more: what shard() asks of the store, and how long an agreement of all ranks takes."""
    comm, (model, optimizer, _) = Comm(), tower(units, parameters, 1)
    store = comm.report.store = CountedStore(comm.report.store)
    shard(model, optimizer, 3, comm=comm)
    flags, seconds = [False] * units * parameters, []
    for _ in range(20):
        began = time.perf_counter()
        comm.on_any_rank(flags, torch.device("cpu"))
        seconds.append(time.perf_counter() - began)
    return {"store, requests of a rank": store.requests, "store, bytes read by a rank": store.read,
            "an agreement, ms": 1e3 * statistics.median(seconds)}


def of_real_ranks(ranks: int, units: int = BASE["units"], parameters: int = BASE["parameters"]) -> dict[str, float]:
    """The most of any rank; and the seconds until the first call on new ranks has returned."""
    began = time.perf_counter()
    with contextlib.closing(Ranks(ranks, quiet=True, oversubscribe=True, device="cpu")) as new:
        new.run(abs, 0)
        started = time.perf_counter() - began
        of_ranks = list(new.run(at_start, units, parameters))
    most = {name: max(each[name] for each in of_ranks) for name in of_ranks[0]}
    return most | {"start of the ranks, ms": 1e3 * started}


# -- the table --------------------------------------------------------------------------------------------------------

def grow(measured: Callable[..., dict[str, float]], by: str, sizes: Sequence[int] | None = None,
         **fixed) -> list[Growth]:
    """Measure at each size of `by`, with all else as in `BASE`."""
    sizes = tuple(sizes or SIZES[by])
    found = [measured(**(BASE | {by: size} | fixed)) for size in sizes]
    return [Growth(what, by, sizes, tuple(each[what] for each in found)) for what in found[0]]


def growths(stage: int = 3, timed: bool = False) -> list[Growth]:
    """All that there is to tell of a stage on this machine; with times also what needs real ranks."""
    rows = [row for by in SIZES for row in grow(counts, by, stage=stage)]
    if timed:
        rows += [row for by in SIZES for row in grow(times, by, stage=stage)]
        of_real_ranks(REAL_RANKS[0])  # the first ranks also start what makes ranks
        found = [of_real_ranks(ranks) for ranks in REAL_RANKS]
        rows += [Growth(what, "real ranks", REAL_RANKS, tuple(each[what] for each in found)) for what in found[0]]
    return rows


def as_dict(rows: Sequence[Growth]) -> list[dict]:
    """The rows as JSON has them, each with its exponent and the range that it is of."""
    return [asdict(row) | {"exponent": row.exponent, "fitted": row.fitted} for row in rows]


def table(rows: Sequence[Growth]) -> str:
    lines = []
    for row in rows:
        values = "  ".join(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in row.values)
        at = f"{row.by} {', '.join(map(str, row.sizes))}"
        lines.append(f"{row.what:36} {row.exponent:z6.2f} in {row.fitted[0]}..{row.fitted[1]:<6} {at}: {values}")
    return "\n".join([f"{'cost':36} {'grows like size^p, p =':>22}", *lines])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m zerocourse.bench.growth", description=__doc__.partition("\n")[0])
    parser.add_argument("--stage", type=int, default=3, choices=range(4))
    parser.add_argument("--times", action="store_true", help="also measure times, and real ranks")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of the table")
    parser.add_argument("--record", action="store_true", help="measure times too, and keep all of it for the course")
    given = parser.parse_args(argv)
    rows = growths(given.stage, given.times or given.record)
    if given.record:
        recorded_growth.keep(as_dict(rows))
    print(json.dumps(as_dict(rows)) if given.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
