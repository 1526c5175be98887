"""A link as late as a GPU's may be, on a CPU. It plays `torch.cuda`'s streams and events for `offload.link_streams`.

The processor computes at once, and a copy is made only when somebody waits for it: from its source as it then is, which must
still be what it was when the copy was started. What the rules of CUDA allow, and no more:

    what a copy writes    is NaN until the computation (up) or the host (down) has waited for it
    what goes down        may be overwritten, or its memory given back, once the computation or the host has waited for the copy
    what goes up          may be overwritten once the *host* has waited; that the computation waits says nothing to the host
    where it goes up to   may be given back once the computation or the host has waited

An event that nobody has waited for is not over when it is asked. `check()`, at the end, waits for all. What was done too early
is an AssertionError of the wait that finds it, and of each later one.
"""

import ctypes
import threading
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from zerocourse.offload import HostLink


class Copy:
    """One copy: what it was to read, and how far it has come."""

    def __init__(self, name: str, goes_down: bool, into: torch.Tensor, source: torch.Tensor, earlier: "list[Copy]"):
        self.name, self.goes_down = name, goes_down
        self.storages = [weakref.ref(tensor.untyped_storage()) for tensor in (into, source)]
        self.memory = [memory_of(tensor.untyped_storage()) for tensor in (into, source)]
        self.places = [(tensor.dtype, tensor.storage_offset(), tensor.numel()) for tensor in (into, source)]
        self.is_computed = self.is_known = False  # has the computation waited for it, has the host?
        # What goes up may have gone down in the order of the streams, without the host, which does not see it yet.
        self.writer = next((each for each in earlier if each.is_computed and not each.is_known and each.goes_down
                            and (each.storages[0], each.places[0]) == (self.storages[1], self.places[1])), None)
        self.content = content(source) if self.writer is None else self.writer.content
        fill(into)

    def tensor(self, number: int) -> torch.Tensor | None:
        """into (0) or source (1); None where its memory has been given back, or to another."""
        storage = self.storages[number]()
        if storage is None or memory_of(storage) != self.memory[number]:
            return None
        dtype, offset, numel = self.places[number]
        return torch.empty(0, dtype=dtype).set_(storage, offset, (numel,))

    def read(self) -> None:
        if self.writer is not None and not self.writer.is_known:
            return
        source = self.tensor(1)
        way, is_forgotten = "down" if self.goes_down else "up", self.storages[1]() is None
        # torch keeps the host's memory, where nobody refers to it any more, until the copy is over; that of an own pool it does not.
        assert source is not None or is_forgotten and not self.goes_down, f"the memory of {self.name} was given back while it went {way}"
        assert source is None or content(source) == self.content, f"{self.name} was overwritten while it went {way}"

    def write(self) -> None:
        into = self.tensor(0)
        assert into is not None or self.goes_down, f"the memory to which {self.name} goes up was given back before"
        if into is not None:
            ctypes.memmove(into.data_ptr(), self.content, len(self.content))

    def advance(self, host: bool) -> None:
        """The computation waits for it, or the host does, which is more."""
        if not self.is_computed and not self.is_known:
            self.read()
            if not self.goes_down:
                self.write()
        if host and not self.is_known:
            if self.goes_down:
                self.write()
            else:
                self.read()
        self.is_computed, self.is_known = True, self.is_known or host


def content(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)  # no tensor that a ledger would see, no array that pins its memory


def memory_of(storage: torch.UntypedStorage) -> tuple[int, int]:
    """Where it is, and how large."""
    return storage.data_ptr(), storage.nbytes()


def fill(tensor: torch.Tensor) -> None:
    """With what shows that it was used too early."""
    tensor.data.fill_(float("nan") if tensor.is_floating_point() else 85)


class Queue:
    """A stream of the link: copies, and places in other streams that it waits for, in order."""

    def __init__(self, cuda: "LateCuda"):
        self.cuda, self.entries = cuda, []
        self.reached = {True: 0, False: 0}  # so many have been waited for, by the host (True) and by the computation

    def wait_stream(self, computing: "Computing") -> None:
        with self.cuda.lock:
            self.entries.append(dict(computing.waited))

    def come_to(self, place: int, host: bool) -> None:
        while self.reached[host] < place:
            entry = self.entries[self.reached[host]]
            self.reached[host] += 1
            if isinstance(entry, Copy):
                self.cuda.advance(entry, host)
            else:
                for queue, until in entry.items():
                    queue.come_to(until, host)
        if host:
            self.reached[False] = max(self.reached[False], place)


class Computing:
    """The stream that computes: the processor, which is never late."""

    def __init__(self, cuda: "LateCuda"):
        self.cuda, self.waited = cuda, {}

    def wait_event(self, event: "Event") -> None:
        with self.cuda.lock:
            event.queue.come_to(event.place, host=False)
            self.waited[event.queue] = max(event.place, self.waited.get(event.queue, 0))
        self.cuda.complain()


class Event:
    def __init__(self, cuda: "LateCuda"):
        self.cuda = cuda

    def record(self, queue: Queue) -> None:
        self.queue, self.place, self.name = queue, len(queue.entries), self.cuda.named[0]

    def query(self) -> bool:
        return self.queue.reached[True] >= self.place

    def synchronize(self) -> None:
        with self.cuda.lock:
            if not self.query():
                self.cuda.host_waits.append((threading.current_thread().name, self.name))
            self.queue.come_to(self.place, host=True)
        self.cuda.complain()


class Capture(TorchDispatchMode):
    """Puts the copies of this thread into a stream."""

    def __init__(self, queue: Queue):
        super().__init__()
        self.queue = queue

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        cuda = self.queue.cuda
        if func is not torch.ops.aten.copy_.default:
            return func(*args, **(kwargs or {}))
        with cuda.lock:
            cuda.unknown = [each for each in cuda.unknown if not each.is_known]
            cuda.unknown.append(Copy(*cuda.named, *args[:2], earlier=cuda.unknown))
            self.queue.entries.append(cuda.unknown[-1])
        return args[0]


class LateCuda:
    """host_waits: by whom and for what the host has waited: (thread, name of a copy that was not over)."""

    def __init__(self):
        self.lock, self.errors, self.queues = threading.RLock(), [], []
        self.unknown: list[Copy] = []  # of which the host does not know that they are over
        self.computing, self.host_waits, self.named = Computing(self), [], ("", True)

    def Stream(self, device) -> Queue:
        self.queues.append(Queue(self))
        return self.queues[-1]

    def Event(self) -> Event:
        return Event(self)

    def current_stream(self, device) -> Computing:
        return self.computing

    def stream(self, queue: Queue):
        return Capture(queue)

    def advance(self, copy: Copy, host: bool) -> None:
        try:
            copy.advance(host)
        except AssertionError as error:
            self.errors.append(str(error))

    def complain(self) -> None:
        assert not self.errors, self.errors[0]


class LateLink(HostLink):
    """The link between a GPU and its host, played by a CPU."""

    def __init__(self):
        super().__init__()
        self.cuda = LateCuda()

    def __reduce__(self):
        return LateLink, ()  # on the way to a rank

    def is_apart(self, device: torch.device) -> bool:
        return True

    def _move(self, verb: str, into: torch.Tensor, source: torch.Tensor, name: str):
        with self.cuda.lock:
            self.cuda.named = name, verb == "down"
            return super()._move(verb, into, source, name)

    def check(self) -> None:
        """All copies are over, and nothing was done too early."""
        for queue in self.cuda.queues:
            with self.cuda.lock:
                queue.come_to(len(queue.entries), host=True)
        self.cuda.complain()
