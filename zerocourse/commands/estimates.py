"""What a run would take of this machine, by formula, before it begins: too much is refused, much is said on stderr.

Rough on purpose, within a factor of two or so: enough to tell a minute from an hour, and 2 GB from 200.
"""

import sys
import time
from dataclasses import dataclass

import torch

from ..errors import BadInput
from ..formulas.units import gb
from ..launch.machine import available_bytes
from ..launch.processes.parent import cores
from ..launch.ranks import RANKS_A_CORE

START_SECONDS = 5  # until ranks have started
EFFICIENCY = 0.7  # of the speed of a matrix product, in a step of a small model
SECONDS_A_PARAMETER = 1e-8  # of a step that no matrix product explains: the update, buckets, communication
LONG_SECONDS = 120  # from here on it is said how long it will take


@dataclass(frozen=True)
class Estimate:
    """What a run takes: bytes of one rank with its processes, how many ranks there are at once, seconds in all."""

    rank_bytes: int
    ranks: int
    seconds: float


def check_memory(what: Estimate, smaller: str) -> None:
    """Raise BadInput when the ranks do not fit in this machine's memory. smaller: what would make them fit."""
    room, needed = available_bytes(), what.rank_bytes * what.ranks
    if room is not None and needed > room:
        share = f" ({gb(what.rank_bytes)} per rank)" if what.ranks > 1 else ""
        raise BadInput(f"this would take about {gb(needed)}{share}, and this machine has {gb(room)} free: {smaller}")


def check_time(seconds: float, most: float, smaller: str) -> None:
    """Raise BadInput when one part of a run would not end before it is stopped, after `most` seconds."""
    if seconds > most:
        raise BadInput(f"this would take about {duration(seconds)} on this machine, and it is stopped after "
                       f"{duration(most)}: {smaller}")


def say(command: str, what: Estimate) -> None:
    """On stderr, when it is long enough to matter."""
    if what.seconds >= LONG_SECONDS:
        sys.stderr.write(f"zerocourse {command}: this will take about {duration(what.seconds)}, and "
                         f"{gb(what.rank_bytes)} per rank\n")


def check_ranks(ranks: int, name: str) -> None:
    """Raise BadInput when there are more ranks than this machine can reasonably run."""
    if ranks > RANKS_A_CORE * cores():
        raise BadInput(f"{name} is {ranks}: it can be at most {RANKS_A_CORE * cores()} here, {RANKS_A_CORE} ranks for "
                       f"each of the {cores()} cores of this machine")


def step_seconds(flops: int, params: int, ranks: int, threads: int = 1) -> float:
    """Of one step in which each of `ranks` ranks computes `flops` operations, as far as there are cores for them."""
    crowd = max(1.0, ranks * threads / cores())
    return crowd * (flops / (EFFICIENCY * threads * matmul_flops()) + SECONDS_A_PARAMETER * params)


def matmul_flops(width: int = 512, times: int = 8) -> float:
    """Operations a second of one thread in a matrix product, measured now: the best of a few, which take 0.05 s."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        square, taken = torch.ones(width, width), []
        for _ in range(times):
            began = time.perf_counter()
            square @ square
            taken.append(time.perf_counter() - began)
        return 2 * width**3 / min(taken)
    finally:
        torch.set_num_threads(threads)


def duration(seconds: float) -> str:
    """In the unit that one would say: "40 seconds", "7 minutes", "3 hours", "9 days"."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
