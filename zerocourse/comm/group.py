"""Every collective of the package, and the count of what it sends.

On gloo all are direct exchanges: each rank sends each peer exactly the slice that the peer needs, in pieces small
enough that both directions of a link are busy. gloo's own reduce_scatter is an all_reduce inside and sends twice the
formula. On NCCL the library's own calls are used, but for slices that are not equal.

A message on gloo carries a tag made of the verb, the unit, the layout and how often this was called. Ranks that
disagree about what comes next therefore never pair up by accident: they wait, the wait has a limit, and then they
compare notes (see `notes`), so that the error names each rank and its call. NCCL knows no tags: there its watchdog
ends the process.

Sizes are in elements and bytes; N is the world size, n the length of a row of slices (see `rankmap.Layout`).
"""

import time
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from ..errors import BadInput
from .events import Recorder
from .desync import DesyncReport, leave
from ..layout.rankmap import Layout

PIECE_BYTES = 1 << 20  # one large send and receive run half-duplex; pieces of this size reach 96 % of a link
MOST_PIECES = 16
OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
_living: weakref.WeakSet = weakref.WeakSet()  # Comms with peers
_opened = weakref.WeakKeyDictionary()  # how many Comms a group has seen: keeps the messages of one from another's


class Handle:
    """A collective on its way. It keeps its tensors alive until `wait`, which returns when the result is there."""

    def __init__(self, comm: "Comm", verb: str, unit: str, nbytes: int, call: str, row: torch.Tensor, works: list,
                 finish: Callable[[], None]):
        self.comm, self.verb, self.unit, self.nbytes, self.call = comm, verb, unit, nbytes, call
        self.row, self.works, self.finish, self.issued = row, works, finish, time.perf_counter()

    def wait(self) -> None:
        """Block until complete; a second call returns at once. Raises CollectiveError after the comm's timeout."""
        if self.row is None:
            return
        begun = time.perf_counter()
        try:
            self.comm.complete(self.works, self.call, self.row)
            if self.works:
                self.comm.recorder.record("wait", self.unit, begun, self.nbytes)
        finally:
            row, finish = self.row, self.finish
            self.row = self.works = self.finish = None  # works hold what was received: finish() frees it as it goes
        finish()
        del row, finish  # freed before it is noted how much is alive
        self.comm.recorder.record(self.verb, self.unit, self.issued, self.nbytes)


class Comm:
    """The ranks of one process group, seen from one of them.

    group: a torch process group, None for the default one; without any, a world of one rank.
    timeout: seconds that a wait may last; None: as long as the group's own (on NCCL that one counts always).
    sent: bytes sent by this rank so far, by verb; elements: the same in elements of parameters or gradients, without
    padding; padding and control (agreement between ranks, norms, start-up) are bytes counted apart.
    Raises BadInput on a rank that is not in the group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, timeout: float | None = None):
        alone = not dist.is_initialized()
        self.group = group
        self.rank = 0 if alone else dist.get_rank(group)
        if self.rank < 0:
            raise BadInput(f"rank {dist.get_rank()} is not in the process group: only its members may use it")
        self.timeout = group_timeout(group) if timeout is None else timedelta(seconds=timeout)
        self.world_size = 1 if alone else dist.get_world_size(group)
        self.peers = [peer for peer in range(self.world_size) if peer != self.rank]
        self.backends = "" if alone else dist.get_backend_config(group)  # such as "cpu:gloo,cuda:nccl"
        self.recorder = Recorder(self.rank)
        self.sent, self.elements, self.padding, self.metadata = Counter(), Counter(), 0, 0
        self._calls: Counter = Counter()
        if self.peers:
            group = group or dist.group.WORLD
            _living.add(self)
            self._pg = weakref.ref(group)
            _opened[group] = _opened.get(group, 0) + 1
            self._id = f"{group.group_name}.{_opened[group]}"
            store = dist.distributed_c10d._get_process_group_store(group)
            self._desync = DesyncReport(dist.PrefixStore(f"zerocourse {self._id}", store), self.rank, self.peers)

    # -- the two collectives of ZeRO ---------------------------------------------------------------------------------

    def all_gather(self, row: torch.Tensor, layout: Layout, unit: str) -> Handle:
        """Fill `row` (n,), of which this rank's slice is there, with the slices of all. Sends (N-1) × own slice."""
        mine, call = row[layout.slice(self.rank)], self._next("all_gather", unit, row)
        others = len(self.peers)
        nbytes = self._count("all_gather", row, others * layout.real(self.rank), others * mine.numel())
        if self._native(row, layout):
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
            works, finish = [gather(row, mine, group=self.group, async_op=True)], lambda: None
        else:
            works, finish = self._exchange(call, dict.fromkeys(self.peers, mine),
                                           {peer: row[layout.slice(peer)] for peer in self.peers}, layout)
        return Handle(self, "all_gather", unit, nbytes, call, row, works, finish)

    def reduce_scatter(self, row: torch.Tensor, layout: Layout, unit: str, into: torch.Tensor | None = None,
                       done: Callable[[torch.Tensor], None] | None = None) -> Handle:
        """Add up every rank's slice r on rank r. Sends n - own slice.

        into (own,): where the sum goes; it may be this rank's slice of `row` itself; None: memory of its own.
        done(sum): called when the sum is there. `row` is scratch afterwards. On gloo the order of additions is the
        order of ranks, in fp32 also for rows of half precision, which are rounded once; NCCL has its own.
        """
        mine, call = row[layout.slice(self.rank)], self._next("reduce_scatter", unit, row)
        nbytes = self._count("reduce_scatter", row, layout.numel - layout.real(self.rank), row.numel() - mine.numel())
        if self._native(row, layout):
            received = {self.rank: torch.empty_like(mine)}
            scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            works, arrived = [scatter(received[self.rank], row, group=self.group, async_op=True)], lambda: None
        else:
            received = {peer: torch.empty_like(mine) for peer in self.peers}
            sends = {peer: row[layout.slice(peer)] for peer in self.peers}
            works, arrived = self._exchange(call, sends, received, layout)
            received[self.rank] = mine

        def finish():
            arrived()
            terms = [received[rank] for rank in sorted(received)]
            spare = next((term for term in terms if term is not mine), None)
            result = add_in_order(terms, spare if into is None else into)
            received.clear()  # done() may go on to the next collective
            del terms, spare
            if done is not None:
                done(result)

        return Handle(self, "reduce_scatter", unit, nbytes, call, row, works, finish)

    # -- small messages that keep the ranks together ------------------------------------------------------------------

    def all_reduce(self, values: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """The element-wise sum over ranks (or op="max": the maximum), in place. Each rank sends all its values to all."""
        if op not in OPS:
            raise BadInput(f"op is {op!r}: it must be {' or '.join(map(repr, OPS))}")
        call, flat = self._next(f"all_reduce_{op}", "", values), values.detach().reshape(-1)
        if not self.peers or not values.numel():
            return values
        if self._nccl(flat):
            self.complete([dist.all_reduce(flat, OPS[op], self.group, async_op=True)], call, flat)
        else:
            received = {peer: torch.empty_like(flat) for peer in self.peers}
            self._exchange_now(call, dict.fromkeys(self.peers, flat), received)
            terms = [received.get(rank, flat) for rank in range(self.world_size)]
            if op == "sum":
                add_in_order(terms, flat)
            else:
                torch.amax(torch.stack(terms), dim=0, out=flat)
        self.metadata += len(self.peers) * flat.nbytes
        return _put(flat, values)

    def broadcast(self, values: torch.Tensor, unit: str) -> torch.Tensor:
        """Rank 0's values on every rank, in place."""
        call, flat = self._next("broadcast", unit, values), values.detach().reshape(-1)  # a copy, if not in one piece
        if not self.peers or not values.numel():
            return values
        if self._nccl(flat):
            self.complete([dist.broadcast(flat, group=self.group, group_src=0, async_op=True)], call, flat)
        elif self.rank == 0:
            self._exchange_now(call, dict.fromkeys(self.peers, flat), {})
        else:
            self._exchange_now(call, {}, {0: flat})
        self.metadata += 0 if self.rank else len(self.peers) * flat.nbytes
        return _put(flat, values)

    def all_gather_object(self, thing: object) -> list:
        """Every rank's object (anything JSON can hold), in rank order, through the store."""
        if not self.peers:
            return [thing]
        call = self._next("all_gather_object")
        with self._explained(call):
            return self._desync.exchange(call, thing, self.timeout)

    # -- how it is done -----------------------------------------------------------------------------------------------

    def _is_open(self) -> bool:
        """Is its process group still there?"""
        with suppress(ValueError, KeyError):
            return bool(dist.get_process_group_ranks(self._pg()))
        return False

    def _nccl(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda and "nccl" in self.backends

    def _native(self, row: torch.Tensor, layout: Layout) -> bool:
        """Does the backend have the collective itself, and are the slices equal as it requires?"""
        sizes = {end - begin for begin, end in zip(layout.bounds, layout.bounds[1:])}
        return self._nccl(row) and len(sizes) == 1 and layout.padded > 0

    def _staged(self, tensor: torch.Tensor) -> bool:
        """Must it go through the host's memory? So it is when ranks share a GPU, where NCCL does not work."""
        return tensor.is_cuda and not self._nccl(tensor)

    def _exchange(self, call: str, sends: dict[int, torch.Tensor], receives: dict[int, torch.Tensor],
                  layout: Layout | None = None) -> tuple[list, Callable[[], None]]:
        """Start all sends and receives (by peer); returns the works, and a function to call when they are complete."""
        tensors = [*sends.values(), *receives.values()]
        nccl = any(map(self._nccl, tensors))
        back: list[tuple[torch.Tensor, torch.Tensor]] = []
        if any(map(self._staged, tensors)):
            once = {tensor: tensor.to("cpu", copy=True) for tensor in sends.values()}
            sends = {peer: once[tensor] for peer, tensor in sends.items()}
            back = [(tensor, torch.empty_like(tensor, device="cpu")) for tensor in receives.values()]
            receives = dict(zip(receives, (host for _, host in back), strict=True))
        # The layout is in the tag: a message of another size would be taken for the right one, or end the process.
        tag = zlib.crc32(f"{self._id} {call} {layout and layout.bounds}".encode()) & 0x7FFFFF00 if self.peers else 0
        messages = []
        for step in range(1, self.world_size):  # rank r begins with peer r + 1, so that no rank is everybody's first
            to, source = (self.rank + step) % self.world_size, (self.rank - step) % self.world_size
            for verb, peer, tensor in ((dist.irecv, source, receives.get(source)), (dist.isend, to, sends.get(to))):
                if tensor is not None and tensor.numel():
                    pieces = tensor.tensor_split(max(1, min(MOST_PIECES, tensor.nbytes // PIECE_BYTES)))
                    messages += [(verb, piece, peer, tag | index) for index, piece in enumerate(pieces)]
        with self._explained(call):
            if nccl and messages:
                works = dist.batch_isend_irecv([dist.P2POp(verb, piece, group=self.group, tag=tag, group_peer=peer)
                                                for verb, piece, peer, tag in messages])
            else:
                peer_is = {dist.isend: "group_dst", dist.irecv: "group_src"}
                works = [verb(piece, group=self.group, tag=tag, **{peer_is[verb]: peer})
                         for verb, piece, peer, tag in messages]

        def arrived(keep=sends):
            for tensor, host in back:
                tensor.copy_(host)

        return works, arrived

    def _exchange_now(self, call: str, sends: dict[int, torch.Tensor], receives: dict[int, torch.Tensor]) -> None:
        works, arrived = self._exchange(call, sends, receives)
        self.complete(works, call, next(iter((sends | receives).values())))
        arrived()

    def complete(self, works: list, call: str, row: torch.Tensor) -> None:
        """Wait for all works. Raises CollectiveError."""
        with self._explained(call):
            for work in works:
                work.wait() if self._nccl(row) else work.wait(self.timeout)  # with a time, NCCL would stop the host

    def _count(self, verb: str, row: torch.Tensor, real: int, whole: int) -> int:
        size = row.element_size()
        self.elements[verb] += real
        self.sent[verb] += real * size
        self.padding += (whole - real) * size
        return whole * size

    def _next(self, verb: str, unit: str = "", tensor: torch.Tensor | None = None) -> str:
        """The name of a call, the same on every rank, with its number."""
        call = f"{verb} of {unit}" if unit else verb
        if tensor is not None:
            call += f" ({tensor.numel():,} {str(tensor.dtype).removeprefix('torch.')})"
        self._calls[call] += 1
        return f"{call} #{self._calls[call]}"

    @contextmanager
    def _explained(self, call: str) -> Iterator[None]:
        """A failure of the backend inside becomes a sentence about who called what."""
        try:
            yield
        except RuntimeError as error:
            raise self._desync.compare(call, error, self.timeout) from error


def group_timeout(group: dist.ProcessGroup | None) -> timedelta:
    """What was said to `init_process_group`, which is torch's half an hour when nothing was."""
    if not dist.is_initialized():
        return dist.distributed_c10d.default_pg_timeout
    group = group or dist.group.WORLD
    device = "cuda" if "nccl" in dist.get_backend_config(group) else "cpu"
    options = getattr(group._get_backend(torch.device(device)), "options", None)  # a fake group has none
    return getattr(options, "_timeout", dist.distributed_c10d.default_pg_timeout)


def fail_all(reason: str | Exception) -> None:
    """Leave every group that this process has a Comm of, since the others would wait there for it; they hear the reason.

    They raise CollectiveError at once; OutOfMemory if that is the reason.
    """
    living = [comm for comm in _living if comm._is_open()]
    leave([comm._desync for comm in living], [comm.group for comm in living], reason)


def add_in_order(terms: list[torch.Tensor], into: torch.Tensor | None = None) -> torch.Tensor:
    """terms[0] + terms[1] + ..., left to right, into `into` (which may be one of the terms) or a new tensor.

    The other terms are scratch afterwards. Terms of half precision are added in fp32 and rounded once.
    """
    into = torch.empty_like(terms[0]) if into is None else into
    if len(terms) == 1:
        return into if into is terms[0] else into.copy_(terms[0])
    if terms[0].element_size() < 4 and terms[0].is_floating_point():
        terms = [terms[0].float(), *terms[1:]]
    total = terms[0]
    for term in terms[1:-1]:
        total.add_(term)
    return torch.add(total, terms[-1], out=into) if total.dtype == into.dtype else into.copy_(total.add_(terms[-1]))


def _put(flat: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Bring `flat` home, if it is not the memory of `values` itself."""
    if flat.data_ptr() != values.data_ptr():
        values.detach().copy_(flat.view(values.shape))
    return values
