"""One rank of a world that is not there: collectives that send nothing, count every byte, and take the memory of real ones.

    comm = SimulatedComm(rank=5, world_size=1024)
    with FakeTensorMode():
        model, optimizer = zerocourse.shard(model, optimizer, stage=3, comm=comm)

Every rank runs the same program, so one of them is enough to see what a rank holds and sends. On fake tensors, which have
shapes and no memory, values do not matter. On real ones they are as if every rank had what this one has.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from ..layout.rankmap import Layout
from .backends.gloo import Gloo, Transfer, add_in_order
from .events import Recorder
from .group import Comm
from .torch_private import FakeTensor

RING, ALL_REDUCE, TO_EACH = "ring", "all-reduce", "to each"  # the ways of a collective: around a ring, an all-reduce's own, each to each


class TimedWire(Protocol):
    """A link that says how long things take.   clock: the seconds since a simulation began."""

    clock: Callable[[], float]

    def send(self, nbytes: int, ranks: int, way: str = RING) -> float:
        """The moment at which a collective is complete in which this rank sends `nbytes`, if it is issued now. way: one of the three."""


class SimulatedComm(Comm):
    """The collectives of rank `rank` of `world_size` ranks. Its counters are those of `Comm`.

    like: "gloo" or "nccl", whose memory a reduce-scatter takes while it is under way: N - 1 slices, or one.
    wire: how long collectives take (see `simulation.virtual_time`); None: no time.
    recorder: records the events; None means a new one.
    """

    def __init__(self, rank: int, world_size: int, like: str = "gloo", wire: "TimedWire | None" = None,
                 recorder: Recorder | None = None):
        super().__init__(recorder=recorder or Recorder(rank))
        self.rank, self.world_size, self.wire = rank, world_size, wire
        self.backends = "cpu:gloo" if like == "gloo" else ""
        if wire is not None:
            self.recorder.clock = wire.clock
        self.peers = [peer for peer in range(world_size) if peer != rank]
        self._simulated = Simulated(rank, world_size, terms=world_size if like == "gloo" else 1, wire=wire)

    def numbers(self, tensor: torch.Tensor) -> list:
        """Zeros where a tensor is fake, because nobody knows what is in it."""
        return [0] * tensor.numel() if type(tensor) is FakeTensor else super().numbers(tensor)

    def all_gather_object(self, value: object) -> list:
        """Every rank's object is this rank's."""
        self._next("all_gather_object")
        return [value] * self.world_size

    def on_any_rank(self, flags: list[bool], device: torch.device) -> list[bool]:
        """The others have what this rank has. A fake tensor could not be read."""
        self.all_reduce(torch.empty(len(flags), dtype=torch.uint8, device=device), "max")
        return flags

    def start_max(self, values: list[int], device: torch.device, name: str) -> Callable[[], list[int]]:
        complete = self.start_all_reduce(torch.empty(len(values), dtype=torch.int64, device=device), "max", name)
        return lambda: complete() is not None and values

    def complete(self, works: list, call: str, tensor: torch.Tensor) -> None:
        for moment in works:
            self.wire.clock.until(moment)
        self.progress.complete(call)

    def _backend(self, tensor: torch.Tensor) -> "Simulated":
        return self._simulated


class Simulated(Gloo):
    """A backend that sends nothing.

    terms: what a reduction adds up on this rank, with its own.   wire: as in `SimulatedComm`.
    """

    def __init__(self, rank: int, world_size: int, terms: int, wire: "TimedWire | None"):
        super().__init__(None, rank, world_size, "simulated")
        self.terms, self.wire = terms, wire

    def works(self, nbytes: int, way: str = RING) -> list[float]:
        """What a collective in which this rank sends so much is waited for: the moment at which it is complete."""
        return [self.wire.send(nbytes, self.world_size, way)] if self.wire is not None and self.peers else []

    def all_gather(self, tensor: torch.Tensor, layout: Layout, call: str) -> Transfer:
        return Transfer(self.works(len(self.peers) * tensor[layout.slice(self.rank)].nbytes), nothing)

    def reduce_scatter(self, tensor: torch.Tensor, layout: Layout, into: torch.Tensor | None, call: str) -> Transfer:
        mine = tensor[layout.slice(self.rank)]
        if not self.peers:  # as without a simulation
            return super().reduce_scatter(tensor, layout, into, call)
        arrived = [torch.empty_like(mine), mine.new_empty(max(0, self.terms - 2) * mine.numel())]  # the first term, and the others

        def add() -> torch.Tensor:
            first, _ = arrived
            arrived.clear()  # as in `gloo`
            return add_in_order([first, mine], first if into is None else into)

        return Transfer(self.works(tensor.nbytes - mine.nbytes), add)

    def all_to_all(self, rows: torch.Tensor, into: torch.Tensor, call: str) -> Transfer:
        into.copy_(rows[self.rank])  # what this rank keeps of its own, every other sends
        return Transfer(self.works(rows.nbytes - rows[self.rank].nbytes, TO_EACH), nothing)

    def exchange(self, call: str, sends: dict[int, torch.Tensor], receives: dict[int, torch.Tensor],
                 names: dict[tuple[int, int], str] | None = None) -> Transfer:
        return Transfer(self.works(sum(tensor.nbytes for tensor in sends.values()), TO_EACH), nothing)

    def received_bytes(self, tensor: torch.Tensor, layout: Layout) -> int:
        return max(1, self.terms - 1) * tensor[layout.slice(self.rank)].nbytes if self.peers else 0

    def all_reduce(self, flat: torch.Tensor, op: str, call: str) -> Transfer:
        received = flat.new_empty(max(0, self.terms - 1) * flat.numel())

        def reduced(alive=received) -> None:
            """What the others send takes memory until then."""

        return Transfer(self.works(2 * flat.nbytes, ALL_REDUCE), reduced)

    def broadcast(self, flat: torch.Tensor, call: str) -> Transfer:
        return Transfer(self.works(flat.nbytes), nothing)


def nothing() -> None:
    """The values are there."""
