"""Every collective of the package, and the count of what it sends.

On gloo, all_gather and reduce_scatter are direct exchanges: each rank sends each peer exactly the slice that the peer
needs, in pieces small enough that both directions of a link are busy. gloo's own reduce_scatter is an all_reduce
inside and sends twice the formula. On NCCL, equal slices use the library's own calls.

Messages carry a tag made of the verb, the unit and how often this pair was called. Two ranks that disagree about what
comes next therefore never pair up by accident: they wait, the wait has a limit, and then the ranks compare notes
through the store, so that the error names each rank and its call.

Sizes are in elements and bytes; N is the world size, n the length of a row of slices (see `rankmap.Layout`).
"""

import json
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from .errors import CollectiveError
from .events import Recorder
from .rankmap import Layout

PIECE_BYTES = 1 << 20  # one large send and receive run half-duplex; pieces of this size reach 96 % of a link
MOST_PIECES = 16
_opened: Counter = Counter()  # how many Comms each group has seen: keeps the messages of one from meeting another's


class Handle:
    """A collective on its way. It keeps its tensors alive until `wait`, which returns when the result is there."""

    def __init__(self, comm: "Comm", verb: str, unit: str, nbytes: int, works=(), finish: Callable[[], None] | None = None):
        self.comm, self.verb, self.unit, self.nbytes = comm, verb, unit, nbytes
        self.works, self.finish, self.issued = list(works), finish, time.perf_counter()

    def wait(self) -> None:
        """Block until complete; a second call returns at once. Raises CollectiveError after the comm's timeout."""
        if self.works is None:
            return
        works, self.works = self.works, None
        begun = time.perf_counter()
        for work in works:
            self.comm.complete(work, f"{self.verb} of {self.unit}")
        if works:
            self.comm.recorder.record("wait", self.unit, begun, self.nbytes)
        if self.finish is not None:
            self.finish()
            self.finish = None
        self.comm.recorder.record(self.verb, self.unit, self.issued, self.nbytes)


class Comm:
    """The ranks of one process group, seen from one of them.

    group: a torch process group, None for the default one; without any, a world of one rank.
    timeout: seconds that a wait may last.
    sent: bytes sent by this rank so far, by verb; elements: the same in elements of parameters or gradients, without
    padding; padding and control (agreement between ranks, norms, start-up) are bytes counted apart.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, timeout: float = 120.0):
        alone = not dist.is_initialized()
        self.group, self.timeout = group, timedelta(seconds=timeout)
        self.rank = 0 if alone else dist.get_rank(group)
        self.world_size = 1 if alone else dist.get_world_size(group)
        self.backends = "" if alone else dist.get_backend_config(group)  # such as "cpu:gloo,cuda:nccl"
        self.recorder = Recorder(self.rank)
        self.sent, self.elements, self.padding, self.control = Counter(), Counter(), 0, 0
        name = "alone" if alone else (group or dist.group.WORLD).group_name
        _opened[name] += 1
        self._id, self._calls = f"{name}.{_opened[name]}", defaultdict(int)

    # -- the two collectives of ZeRO ---------------------------------------------------------------------------------

    def all_gather(self, row: torch.Tensor, layout: Layout, unit: str) -> Handle:
        """Fill `row` (n,), of which this rank's slice is there, with the slices of all. Sends (N-1) × own slice."""
        mine = row[layout.slice(self.rank)]
        peers = [peer for peer in range(self.world_size) if peer != self.rank]
        nbytes = self._count("all_gather", row, len(peers) * layout.real(self.rank), len(peers) * mine.numel())
        if self._native(row, layout):
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
            return Handle(self, "all_gather", unit, nbytes, [gather(row, mine, group=self.group, async_op=True)])
        works, finish = self._exchange(f"all_gather {unit}", {peer: mine for peer in peers},
                                       {peer: row[layout.slice(peer)] for peer in peers})
        return Handle(self, "all_gather", unit, nbytes, works, finish)

    def reduce_scatter(self, row: torch.Tensor, layout: Layout, unit: str, into: torch.Tensor | None = None,
                       done: Callable[[torch.Tensor], None] | None = None) -> Handle:
        """Add up every rank's slice r on rank r. Sends n - own slice.

        into (own,): where the sum goes; it may be this rank's slice of `row` itself; None: memory of its own.
        done(sum): called when the sum is there. `row` is scratch afterwards. The order of additions is the order of
        ranks, in fp32 also for rows of half precision, which are rounded once.
        """
        mine = row[layout.slice(self.rank)]
        peers = [peer for peer in range(self.world_size) if peer != self.rank]
        sent = row.numel() - mine.numel()
        nbytes = self._count("reduce_scatter", row, layout.numel - layout.real(self.rank), sent)
        if self._native(row, layout):
            out = torch.empty_like(mine) if into is None or into.data_ptr() == mine.data_ptr() else into
            scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            works = [scatter(out, row, group=self.group, async_op=True)]

            def finish():
                if into is not None and into is not out:
                    into.copy_(out)
                if done is not None:
                    done(out if into is None else into)

            return Handle(self, "reduce_scatter", unit, nbytes, works, finish)

        received = {peer: torch.empty_like(mine) for peer in peers}
        works, arrived = self._exchange(f"reduce_scatter {unit}", {peer: row[layout.slice(peer)] for peer in peers}, received)

        def finish():
            arrived()
            spare = received[peers[0]] if into is None and peers else into
            result = add_in_order([received.get(rank, mine) for rank in range(self.world_size)], spare)
            received.clear()
            if done is not None:
                done(result)

        return Handle(self, "reduce_scatter", unit, nbytes, works, finish)

    # -- small messages that keep the ranks together ------------------------------------------------------------------

    def agree_max(self, values: torch.Tensor) -> torch.Tensor:
        """The element-wise maximum over ranks, in place."""
        return self._control("agree_max", values, lambda: dist.all_reduce(values, dist.ReduceOp.MAX, self.group, True))

    def add(self, values: torch.Tensor) -> torch.Tensor:
        """The element-wise sum over ranks, in place."""
        return self._control("add", values, lambda: dist.all_reduce(values, dist.ReduceOp.SUM, self.group, True))

    def broadcast(self, values: torch.Tensor, unit: str) -> torch.Tensor:
        """Rank 0's values on every rank, in place."""
        return self._control(f"broadcast of {unit}", values,
                             lambda: dist.broadcast(values, group=self.group, group_src=0, async_op=True))

    def gather_objects(self, thing: object) -> list:
        """Every rank's object (anything JSON can hold), in rank order, through the store."""
        if self.world_size == 1:
            return [thing]
        store, call = self._store(), self._next("objects")
        store.set(f"{call}/{self.rank}", json.dumps(thing))
        keys = [f"{call}/{rank}" for rank in range(self.world_size)]
        try:
            store.wait(keys, self.timeout)
        except (RuntimeError, ValueError) as error:
            missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
            raise CollectiveError(f"rank {self.rank} waited {self.timeout.total_seconds():g} s for rank(s) {missing} "
                                  f"to compare what they hold; they never came") from error
        return [json.loads(store.get(key)) for key in keys]

    # -- how it is done -----------------------------------------------------------------------------------------------

    def _nccl(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda and "nccl" in self.backends

    def _native(self, row: torch.Tensor, layout: Layout) -> bool:
        """Does the backend have the collective itself, and are the slices equal as it requires?"""
        equal = layout.padded == self.world_size * (layout.bounds[1] - layout.bounds[0])
        return self._nccl(row) and equal and layout.padded > 0

    def _exchange(self, call: str, sends: dict[int, torch.Tensor], receives: dict[int, torch.Tensor]):
        """Start all sends and receives; returns the works and a function to call when they are complete."""
        tag, back = zlib.crc32(self._next(call).encode()) & 0x7FFFFF00, []
        nccl = all(map(self._nccl, sends.values()))
        if not nccl and any(tensor.is_cuda for tensor in sends.values()):  # ranks that share a GPU: gloo sends from the host's memory
            back = [(tensor, torch.empty_like(tensor, device="cpu")) for tensor in receives.values()]
            sends = {peer: tensor.cpu() for peer, tensor in sends.items()}
            receives = dict(zip(receives, (host for _, host in back), strict=True))
        ops = []
        for step in range(1, self.world_size):  # rank r begins with peer r + 1, so that no rank is everybody's first
            to, source = (self.rank + step) % self.world_size, (self.rank - step) % self.world_size
            for verb, peer, tensor in ((dist.irecv, source, receives[source]), (dist.isend, to, sends[to])):
                count = max(1, min(MOST_PIECES, tensor.nbytes // PIECE_BYTES))
                ops += [dist.P2POp(verb, piece, tag=tag | index, group=self.group, group_peer=peer)
                        for index, piece in enumerate(tensor.tensor_split(count)) if piece.numel()]
        if nccl:
            works = dist.batch_isend_irecv(ops) if ops else []
        else:
            works = [op.op(op.tensor, group=self.group, tag=op.tag,
                           **{"group_dst" if op.op is dist.isend else "group_src": op.group_peer}) for op in ops]

        def arrived(keep=sends):
            for tensor, host in back:
                tensor.copy_(host)

        return works, arrived

    def complete(self, work: dist.Work, call: str) -> None:
        """Wait for one work; turn its failure into a sentence about who called what."""
        try:
            work.wait(self.timeout) if "nccl" not in self.backends else work.wait()  # NCCL's wait is for the stream only
        except RuntimeError as error:
            raise CollectiveError(self._compare_notes(call, error)) from error

    def fail(self, reason: str) -> None:
        """Tell the other ranks why this one leaves, and leave: whoever waits for it fails at once, with the reason."""
        if self.world_size > 1:
            with suppress(RuntimeError):
                self._store().set("failed", f"rank {self.rank}: {reason}")
                dist.destroy_process_group(self.group)

    def _compare_notes(self, call: str, error: RuntimeError) -> str:
        """After a failed wait: say what this rank was waiting for, and read what the others were."""
        with suppress(RuntimeError):
            store = self._store()
            if store.check(["failed"]):
                return f"rank {self.rank} stopped in {call}, because another rank left: {store.get('failed').decode()}"
            store.set(f"note/{self.rank}", call)
            notes, until = {self.rank: call}, time.monotonic() + 3.0
            while time.monotonic() < until and len(notes) < self.world_size:
                for rank in set(range(self.world_size)) - set(notes):
                    if store.check([f"note/{rank}"]):
                        notes[rank] = store.get(f"note/{rank}").decode()
                time.sleep(0.05)
            said = "; ".join(f"rank {rank} was in {notes[rank]}" if rank in notes else f"rank {rank} was in no collective"
                             for rank in range(self.world_size))
            return f"a collective did not complete within {self.timeout.total_seconds():g} s: {said}. " \
                   f"Every rank must run the same units in the same order ({str(error).splitlines()[0][-120:]})"
        return f"rank {self.rank} lost its peers in {call}: {error}"

    def _control(self, call: str, values: torch.Tensor, start: Callable[[], dist.Work]) -> torch.Tensor:
        if self.world_size > 1 and values.numel():
            self.complete(start(), call)
            self.control += values.nbytes
        return values

    def _count(self, verb: str, row: torch.Tensor, real: int, whole: int) -> int:
        size = row.element_size()
        self.elements[verb] += real
        self.sent[verb] += real * size
        self.padding += (whole - real) * size
        return whole * size

    def _next(self, call: str) -> str:
        self._calls[call] += 1
        return f"{self._id} {call} #{self._calls[call]}"

    def _store(self) -> dist.Store:
        group = self.group if self.group is not None else dist.group.WORLD
        return dist.PrefixStore(f"zerocourse {self._id}", dist.distributed_c10d._get_process_group_store(group))


def add_in_order(terms: list[torch.Tensor], into: torch.Tensor | None = None) -> torch.Tensor:
    """terms[0] + terms[1] + ..., left to right, into `into` (which may be one of the terms) or a new tensor.

    The other terms are scratch afterwards. Terms of half precision are added in fp32 and rounded once.
    """
    into = torch.empty_like(terms[0]) if into is None else into
    if terms[0].element_size() < 4 and terms[0].is_floating_point():
        terms = [terms[0].float(), *terms[1:]]
    total = terms[0]
    for term in terms[1:-1]:
        total.add_(term)
    if len(terms) == 1:
        return into if into is total else into.copy_(total)
    return torch.add(total, terms[-1], out=into) if total.dtype == into.dtype else into.copy_(total.add_(terms[-1]))
