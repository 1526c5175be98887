"""Fragmentation: a training step's own allocations, recorded and replayed in an arena of a given size.

A block of memory must lie in one piece. Activation checkpoints live from the forward to the backward, and between them
lie activations that are computed, used and freed at once, so what they leave are holes: an arena can be out of memory
with bytes free. ZeRO-R allocates the long-lived ones apart (M_D; arXiv 1910.02054, section 6.3).

    with AllocationLog(model) as log:
        loss = model(tokens, targets)
        log.mark()                      # what is alive now is long-lived
        loss.backward()
    replay(log.events).high             # bytes that first fit needs
    replay(log.events, apart=True).high # with the long-lived at the other end

It communicates nothing. Sizes and places are in bytes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..errors import BadInput, OutOfMemory
from ..formulas.units import gib
from ..measure.ledger import Ledger

ALIGNMENT = 512  # bytes, as CUDA's caching allocator rounds


@dataclass(frozen=True)
class Allocation:
    """Memory that was taken (nbytes > 0), or given back (0). `key` names the block.

    long: it was there when the forward ended, or when the step did, as checkpoints and gradients are.
    """

    key: int
    nbytes: int
    long: bool = False


class AllocationLog(Ledger):
    """A ledger that also writes down, in order, what is taken and given back while it is entered.

    What was there before (parameters, optimizer states) is not in the list: it stays where it is.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._taken: list[tuple[int, int]] = []  # (number of the block, bytes)
        self._numbers: dict[int, int] = {}  # of the blocks that are alive, by the ledger's key
        self._count, self._long = 0, set()

    def __enter__(self) -> "AllocationLog":
        super().__enter__()
        if self._depth == 1:
            self._taken.clear()
            self._numbers.clear()
        return self

    def mark(self) -> None:
        """The forward is over: the blocks that are alive now are long-lived. So are those that are there at the end."""
        self._long |= set(self._numbers.values())

    @property
    def events(self) -> list[Allocation]:
        """All allocations in order, in multiples of `ALIGNMENT` bytes."""
        long = self._long | set(self._numbers.values())
        return [Allocation(number, -(-nbytes // ALIGNMENT) * ALIGNMENT, number in long) for number, nbytes in self._taken]

    def _recount(self, entry, nbytes: int) -> None:
        self._freed(entry)
        super()._recount(entry, nbytes)
        if nbytes:
            self._count += 1
            self._numbers[entry.key] = self._count
            self._taken.append((self._count, nbytes))

    def _died(self, entry) -> None:
        super()._died(entry)
        self._freed(entry)

    def _freed(self, entry) -> None:
        number = self._numbers.pop(entry.key, None)
        if number is not None:
            self._taken.append((number, 0))


@dataclass
class Arena:
    """Memory in one piece, in which blocks are placed by first fit: in the lowest hole that is large enough.

    size: bytes; None: as many as are asked for.   apart: long-lived blocks are placed in the highest hole instead, which
        needs a size.   high: the highest end of a block so far.   peak: the most bytes in use at a time.
    """

    size: int | None = None
    apart: bool = False
    blocks: dict[int, tuple[int, int]] = field(default_factory=dict)  # by key: from, to
    used: int = 0
    peak: int = 0
    high: int = 0

    def __post_init__(self):
        if self.apart and self.size is None:
            raise BadInput("an arena with long-lived blocks apart has two ends: give its size")

    def holes(self) -> list[tuple[int, int]]:
        """(from, to) of each hole, from the lowest on. Without a size the last one has no end."""
        edges, holes = 0, []
        for start, stop in sorted(self.blocks.values()):
            if start > edges:
                holes.append((edges, start))
            edges = stop
        end = edges + (1 << 62) if self.size is None else self.size
        return [*holes, (edges, end)] if end > edges else holes

    def allocate(self, block: Allocation) -> tuple[int, int]:
        """Place a block. Raises OutOfMemory when no hole is large enough, and says how much is free."""
        fitting = [hole for hole in self.holes() if hole[1] - hole[0] >= block.nbytes]
        if not fitting:
            largest = max((stop - start for start, stop in self.holes()), default=0)
            free = self.size - self.used
            raise OutOfMemory(f"an arena of {gib(self.size)} is out of memory: {block.nbytes:,} bytes are asked for, and "
                              f"{free:,} are free ({free / self.size:.0%}), but the largest hole has {largest:,}")
        if self.apart and block.long:
            place = fitting[-1][1] - block.nbytes, fitting[-1][1]
        else:
            place = fitting[0][0], fitting[0][0] + block.nbytes
        self.blocks[block.key] = place
        self.used += block.nbytes
        self.peak, self.high = max(self.peak, self.used), max(self.high, place[1])
        return place

    def free(self, key: int) -> None:
        start, stop = self.blocks.pop(key)
        self.used -= stop - start


def replay(events: Iterable[Allocation], size: int | None = None, apart: bool = False, arena: Arena | None = None) -> Arena:
    """The arena after all events. Raises OutOfMemory where one does not fit."""
    arena = arena or Arena(size, apart)
    for event in events:
        if event.nbytes:
            arena.allocate(event)
        elif event.key in arena.blocks:
            arena.free(event.key)
    return arena


def smallest_arena(events: list[Allocation], apart: bool = False) -> int:
    """The bytes with which an arena does not run out of memory, up to `ALIGNMENT`.

    By first fit that is how high it gets without a limit. With two ends it is found by halving.
    """
    high = replay(events).high
    if not apart:
        return high
    low, enough = replay(events).peak - ALIGNMENT, 2 * high
    while enough - low > ALIGNMENT:
        middle = (low + enough) // 2 // ALIGNMENT * ALIGNMENT
        try:
            replay(events, middle, apart=True)
            enough = middle
        except OutOfMemory:
            low = middle
    return enough
