"""`Comm`, through which every collective of the package goes. It counts what is sent, and records the order of calls.

How a collective is carried out is up to its backend (`backends/`). What ranks that disagree are told, and when, is up
to `desync` and `watch`. Sizes are in elements and bytes; N is the world size, n the length of a flat tensor that is cut
into one slice for each rank (see `rankmap.Layout`).
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import get_ident

import torch
import torch.distributed as dist

from ..errors import BadInput
from ..layout.rankmap import Layout
from . import backends
from .events import Recorder
from .handle import CollectiveHandle, Handle
from .waits import failure, watch
from .waits.desync import DesyncReport
from .waits.progress import CollectiveProgress, collectives, messages

OPS = ("sum", "max")
_opened = weakref.WeakKeyDictionary()  # how many Comms each group has had, to keep their messages apart


class Comm:
    """The collectives of one process group, on one of its ranks.

    group: a torch process group, None for the default one. If there is none, the world has one rank.
    timeout: seconds that a wait may last; None means the group's own timeout (which NCCL always uses).
    recorder: records the events; None means a new one. The Comms of one stage share one recorder.
    names: of its ranks, as errors name them; by default "rank 0" and so on.
    sent: bytes that this rank sent so far, by verb; elements: the same in elements of parameters or gradients, without
    padding; padding and metadata (agreement between ranks, norms, start-up) are bytes counted apart.
    issued: (verb, unit, elements, dtype) of the last collectives in order, which must be the same on every rank.
    Raises BadInput on a rank that is not in the group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, timeout: float | None = None,
                 recorder: Recorder | None = None, names: Sequence[str] | None = None):
        alone = not dist.is_initialized()
        self.group = group
        self.rank = 0 if alone else dist.get_rank(group)
        if self.rank < 0:
            raise BadInput(f"rank {dist.get_rank()} is not in the process group: only its members may use it")
        self.timeout = group_timeout(group) if timeout is None else timedelta(seconds=timeout)
        self.world_size = 1 if alone else dist.get_world_size(group)
        self.peers = [peer for peer in range(self.world_size) if peer != self.rank]
        self.backends = "" if alone else dist.get_backend_config(group)  # such as "cpu:gloo,cuda:nccl"
        self.recorder = Recorder(self.rank) if recorder is None else recorder
        self.sent, self.elements, self.padding, self.metadata = Counter(), Counter(), 0, 0
        self._by_device: dict[str, backends.Gloo] = {}
        self._name, self.report = "alone", None
        if self.peers:
            group = group or dist.group.WORLD
            self._group = weakref.ref(group)
            _opened[group] = _opened.get(group, 0) + 1
            self._name = f"{group.group_name}.{_opened[group]}"
        self.progress = CollectiveProgress(self._name, dist.get_process_group_ranks(group) if self.peers else [0])
        self.issued, self._calls = self.progress.issued, self.progress.calls
        if self.peers:
            self.report = DesyncReport(group, self.rank, self.progress, names)
            failure.living.add(self)
            failure.tell_uncaught_exceptions()
            watch.start()
            if "nccl" in self.backends:
                backends.make_communicator(self)

    # -- the two collectives of ZeRO ----------------------------------------------------------------------------------

    def all_gather(self, tensor: torch.Tensor, layout: Layout, unit: str) -> Handle:
        """Fill `tensor` (n,), which has this rank's slice, with the slices of all ranks. Sends (N-1) × own slice."""
        call, others, own = self._next("all_gather", unit, tensor), len(self.peers), layout.slice(self.rank)
        nbytes = self._count("all_gather", tensor, others * layout.real(self.rank), others * (own.stop - own.start))
        with self._explained(call):
            works, finish = self._backend(tensor).all_gather(tensor, layout, call)
        self._note_messages(works)
        return CollectiveHandle(self, "all_gather", unit, nbytes, call, tensor, works, finish)

    def reduce_scatter(self, tensor: torch.Tensor, layout: Layout, unit: str, into: torch.Tensor | None = None,
                       done: Callable[[torch.Tensor], None] | None = None) -> Handle:
        """Add up every rank's slice r of `tensor` (n,) on rank r. Sends n - own slice.

        into (own,): where the sum is written, which may be this rank's slice of `tensor` itself; None: new memory.
        done(sum): called when the sum is complete. `tensor` may be overwritten. On gloo additions are made in the order
        of ranks, in fp32 for half precision too, which is rounded once. NCCL has an order of its own.
        """
        call, own = self._next("reduce_scatter", unit, tensor), layout.slice(self.rank)
        nbytes = self._count("reduce_scatter", tensor, layout.numel - layout.real(self.rank),
                             tensor.numel() - (own.stop - own.start))
        backend = self._backend(tensor)
        with self._explained(call):
            works, add = backend.reduce_scatter(tensor, layout, into, call)
        self._note_messages(works)

        def finish() -> None:
            result = add()
            if done is not None:
                done(result)

        return CollectiveHandle(self, "reduce_scatter", unit, nbytes, call, tensor, works, finish,
                                backend.received_bytes(tensor, layout))

    # -- what every rank has for every other: Ulysses ------------------------------------------------------------------

    def all_to_all(self, tensor: torch.Tensor, into: torch.Tensor, unit: str) -> Handle:
        """Row r of `tensor` (N, ...) goes to rank r, and row r of `into` comes from rank r. Sends (N-1) of the N rows.

        Both are contiguous, of one shape and dtype, and apart in memory. Until `wait` returns, `tensor` may not be
        changed and `into` not be read. Raises BadInput for any other shape.
        """
        if tensor.shape != into.shape or tensor.dtype != into.dtype or tensor.shape[:1] != (self.world_size,):
            raise BadInput(f"the all_to_all of {unit} on {self.world_size} ranks has a tensor of {tuple(tensor.shape)} "
                           f"{tensor.dtype} and one of {tuple(into.shape)} {into.dtype}: both must have a row for each "
                           "rank, the same shape and the same dtype")
        call = self._next("all_to_all", unit, tensor)
        real = tensor.numel() - tensor[self.rank].numel()
        nbytes = self._count("all_to_all", tensor, real, real)
        by_rank = (self.world_size, tensor.numel() // self.world_size)
        rows, received = tensor.detach().view(by_rank), into.detach().view(by_rank)
        with self._explained(call):
            works, finish = self._backend(rows).all_to_all(rows, received, call)
        self._note_messages(works)
        return CollectiveHandle(self, "all_to_all", unit, nbytes, call, rows, works, finish)

    # -- from one rank to another: pipelines, rings ----------------------------------------------------------------------

    def send(self, tensor: torch.Tensor, to: int, name: str) -> Handle:
        """Send a contiguous `tensor` of any shape to rank `to` of this Comm, which must call `recv` with the same name,
        number of elements and dtype. It may not be changed before `wait`, which returns when it has been taken.

        Two ranks that both wait for their send before they receive wait for each other, whatever the size: start the
        receives first, or wait for the sends later, or, as NCCL runs the messages of a group one after the other in the order in
        which they are started, do both at once by `exchange`. Raises BadInput for a rank that is no peer.
        """
        return self.exchange({to: tensor}, {}, name)

    def recv(self, tensor: torch.Tensor, source: int, name: str) -> Handle:
        """Fill a contiguous `tensor` with what rank `source` of this Comm sends under the same name (see `send`)."""
        return self.exchange({}, {source: tensor}, name)

    def exchange(self, sends: dict[int, torch.Tensor], receives: dict[int, torch.Tensor], name: str) -> Handle:
        """Messages to these ranks and from these, of which none waits for another: what `send` and `recv` do, at the same time."""
        messages = {(self.rank, to): self._message("send", self.rank, to, name, tensor) for to, tensor in sends.items()}
        messages |= {(source, self.rank): self._message("recv", source, self.rank, name, tensor) for source, tensor in receives.items()}
        for tensor in sends.values():
            self.elements["send"] += tensor.numel()
            self.sent["send"] += tensor.nbytes
        flat, into = ({peer: tensor.detach().view(-1) for peer, tensor in given.items()} for given in (sends, receives))
        tensors, begun = [*flat.values(), *into.values()], self.recorder.clock()
        call = " and ".join(said for said, _ in messages.values())
        with self._explained(call):
            works, arrived = self._backend(tensors[0]).exchange(name, flat, into, {way: both for way, (_, both) in messages.items()})
        self._note_messages(works, calls=0)

        def finish(alive=tensors) -> None:
            arrived()
            for _ in into if flat else ():  # the handle is the sends'
                self.recorder.record("recv", name, begun)

        nbytes = sum(tensor.nbytes for tensor in flat.values())
        return CollectiveHandle(self, "send" if flat else "recv", name, nbytes, call, tensors[0], works, finish)

    def _note_messages(self, works: list, calls: int = 1) -> None:
        """Let these works count as so many calls. A collective counts once on every rank, however many messages it is:
        of a broadcast the first rank has more than the others, and a rank whose slice is empty has fewer."""
        if self.report is not None:  # a simulated Comm has no group
            messages[self._group()] = messages.get(self._group(), 0) + len(works) - calls
            collectives[self._group()] = collectives.get(self._group(), 0) + calls

    def _message(self, verb: str, source: int, to: int, name: str, tensor: torch.Tensor) -> tuple[str, str]:
        """What this rank calls a message, and what both its ends call it: one of another size or number never matches.

        It is not `issued`, because only two ranks know of it.
        """
        peer, end = (to, "to") if verb == "send" else (source, "from")
        if peer not in self.peers:
            raise BadInput(f"rank {self.rank} of {self.world_size} cannot {verb} {name}: there is no other rank {peer!r}")
        size = f"{tensor.numel():,} {str(tensor.dtype).removeprefix('torch.')}"
        both = f"message {name} {source} {to} {size}"
        self._calls[both] += 1
        number = self._calls[both]
        return f"{verb} of {name} {end} rank {peer} ({size}) #{number}", f"{both} {number}"

    # -- metadata: small messages that keep the ranks together --------------------------------------------------------

    def all_reduce(self, values: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """The element-wise sum over ranks (or op="max": the maximum), in place. Each rank sends all values to all."""
        return self.start_all_reduce(values, op)()

    def start_all_reduce(self, values: torch.Tensor, op: str = "sum", name: str = "") -> Callable[[], torch.Tensor]:
        """An `all_reduce` that goes on by itself. To be called for the values, which are not to be touched before."""
        if op not in OPS:
            raise BadInput(f"op is {op!r}: it must be {' or '.join(map(repr, OPS))}")
        return self._start(f"all_reduce_{op}", name, values, len(self.peers) * values.nbytes,
                           lambda flat, call: self._backend(flat).all_reduce(flat, op, call))

    def on_any_rank(self, flags: list[bool], device: torch.device) -> list[bool]:
        """Which of these flags are true on any rank. Sends a byte for each; waits until the answer is read."""
        return self.all_reduce(torch.tensor(flags, dtype=torch.uint8, device=device), "max").bool().tolist()

    def start_max(self, values: list[int], device: torch.device, name: str) -> Callable[[], list[int]]:
        """Start to find the largest of each of these integers over the ranks. To be called for them."""
        complete = self.start_all_reduce(torch.tensor(values, device=device), "max", name)
        return lambda: complete().tolist()

    def broadcast(self, values: torch.Tensor, unit: str) -> torch.Tensor:
        """Rank 0's values on every rank, in place."""
        sent = 0 if self.rank else len(self.peers) * values.nbytes
        return self._start("broadcast", unit, values, sent, lambda flat, call: self._backend(flat).broadcast(flat, call))()

    def numbers(self, tensor: torch.Tensor) -> list:
        """The numbers of a tensor that every rank has, in one list. On a GPU this waits for all that it still computes."""
        return tensor.flatten().tolist()

    def all_gather_object(self, value: object) -> list:
        """The objects of all ranks (anything JSON can hold) in rank order, sent through the store."""
        call = self._next("all_gather_object")
        if not self.peers:
            return [value]
        with self._explained(call, waits=True):
            values = self.report.exchange(call, value, self.timeout, lambda: self._meet(call))
        self.progress.complete(call)
        return values

    def _meet(self, call: str) -> None:
        """Wait over gloo until all ranks have come to this call. Only a connection shows at once that a peer is gone:
        its key would be awaited until the time limit.

        Ranks with GPUs have gloo too, for tensors on the CPU ("cpu:gloo,cuda:nccl"). A group of NCCL alone, as a script
        may start it, has no such connection: NCCL would stop the GPU's stream instead of this thread, and tells of a
        lost peer only through its watchdog, so there the key is awaited, at most for this Comm's time limit.
        """
        if "gloo" in self.backends:
            byte = torch.zeros(1, dtype=torch.uint8)
            others = {peer: torch.empty_like(byte) for peer in self.peers}
            backend = self._backend(byte)
            backend.wait(backend.exchange(call, dict.fromkeys(self.peers, byte), others).works, self.timeout)

    # -- how it is done -----------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether its process group still exists."""
        with suppress(ValueError, KeyError):
            return bool(dist.get_process_group_ranks(self._group()))
        return False

    def disconnect(self) -> None:
        """Break this rank's connections to the group's other ranks. A wait there fails at once, on gloo."""
        if "gloo" in self.backends:
            self._backend(torch.empty(0)).disconnect()

    def complete(self, works: list, call: str, tensor: torch.Tensor) -> None:
        """Wait for all works of a call on `tensor`. Raises CollectiveError."""
        if self.peers:
            with self._explained(call, waits=True):
                self._backend(tensor).wait(works, self.timeout)
            self.progress.complete(call)

    def _backend(self, tensor: torch.Tensor) -> backends.Gloo:
        device = tensor.device.type
        if device not in self._by_device:
            kind = backends.choose(device, self.backends) if self.peers else backends.Gloo  # NCCL is not waited for without peers
            self._by_device[device] = kind(self.group, self.rank, self.world_size, self._name)
        return self._by_device[device]

    def _start(self, verb: str, unit: str, values: torch.Tensor, sent: int,
               start: Callable[[torch.Tensor, str], backends.Transfer]) -> Callable[[], torch.Tensor]:
        """Start a collective on `values`, in place. What is returned waits for it, and returns them."""
        call = self._next(verb, unit, values)
        if not self.peers or not values.numel():
            return lambda: values
        flat = values.detach().reshape(-1)  # a view of `values` if they are contiguous
        with self._explained(call):
            works, finish = start(flat, call)
        self._note_messages(works)

        def complete() -> torch.Tensor:
            self.complete(works, call, flat)
            finish()
            if not values.is_contiguous():
                values.detach().copy_(flat.view(values.shape))
            self.metadata += sent
            return values

        return complete

    def _count(self, verb: str, tensor: torch.Tensor, real: int, whole: int) -> int:
        size = tensor.element_size()
        self.elements[verb] += real
        self.sent[verb] += real * size
        self.padding += (whole - real) * size
        return whole * size

    def _next(self, verb: str, unit: str = "", tensor: torch.Tensor | None = None) -> str:
        """Log a call, and return its name and number, which are the same on every rank."""
        call = f"{verb} of {unit}" if unit else verb
        if tensor is None:
            self.issued.append((verb, unit, 0, None))
        else:
            self.issued.append((verb, unit, tensor.numel(), tensor.dtype))
            call += f" ({tensor.numel():,} {str(tensor.dtype).removeprefix('torch.')})"
        self.progress.threads.add(get_ident())
        self._calls[call] += 1
        return f"{call} #{self._calls[call]}"

    @contextmanager
    def _explained(self, call: str, waits: bool = False) -> Iterator[None]:
        """Turn a failure of the backend inside the block into a sentence that says who called what.

        waits: this thread waits inside the block, and the watcher must know it.
        """
        if waits:
            watch.begin(self.report, call, self)
        try:
            yield
        except RuntimeError as error:
            if self.report is None:
                raise
            raise self.report.explain(call, error, self.timeout) from error
        finally:
            if waits:
                watch.end()


def group_timeout(group: dist.ProcessGroup | None) -> timedelta:
    """The timeout given to `init_process_group`, or torch's default of half an hour."""
    if not dist.is_initialized():
        return dist.distributed_c10d.default_pg_timeout
    group = group or dist.group.WORLD
    device = "cuda" if "nccl" in dist.get_backend_config(group) else "cpu"
    options = getattr(group._get_backend(torch.device(device)), "options", None)  # a fake group has none
    return getattr(options, "_timeout", dist.distributed_c10d.default_pg_timeout)
