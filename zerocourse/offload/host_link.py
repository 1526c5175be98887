"""The link between the device and the host: moves tensors down and up, and counts every byte. It frees nothing.

On a GPU each direction is a stream of its own, so that copies go on beside the computation. On a CPU the link is
simulated: without a rate it copies at once; with one, a thread per direction moves pieces of 1 MiB and sleeps after each
as long as the piece would have taken. A thread that sleeps costs no core, so what overlaps here would overlap there.
"""

import queue
import threading
import time
import weakref

import torch

from ..comm.events import Recorder
from ..errors import BadInput, ZeroCourseError

PIECE_BYTES = 1 << 20
LIMIT_SECONDS = 600.0
DOWN, UP = "down", "up"


class TransferError(ZeroCourseError, RuntimeError):
    """A copy between device and host failed, or was not over within its limit."""


class LinkTransfer:
    """One copy under way. It keeps both tensors alive until `wait`, which returns when `into` may be used."""

    def __init__(self, link: "HostLink", verb: str, name: str, into: torch.Tensor, source: torch.Tensor):
        self.link, self.verb, self.name, self.nbytes = link, verb, name, source.nbytes
        self.into, self.source = into, source
        self.begun, self.ended = time.perf_counter(), 0.0
        self.over, self.error, self.noted = threading.Event(), None, False

    @property
    def done(self) -> bool:
        return self.over.is_set()

    def wait_for_source(self) -> None:
        """Block until what is copied may be overwritten. (On a GPU `wait` does not mean that.)"""
        self.wait(notes=False)

    def end(self, error: BaseException | None = None) -> None:
        """The copy is over, or has failed."""
        self.ended, self.error = time.perf_counter(), error
        self.into = self.source = None
        self.over.set()

    def wait(self, notes: bool = True) -> None:
        """Block until the copy is over; a second call returns at once. Raises TransferError.

        notes: record the event, which only the thread that trains may do; another one leaves that to a later call.
        """
        if not self.over.wait(self.link.limit):
            raise TransferError(f"{self.nbytes:,} bytes of {self.name} were not {self.verb} the link after "
                                f"{self.link.limit:g} s: give the link a higher rate, or a longer limit")
        if self.error is not None:
            raise TransferError(f"{self.nbytes:,} bytes of {self.name} could not go {self.verb} the link: {self.error}") \
                from self.error
        self.note(notes)

    def note(self, notes: bool) -> None:
        """Record the event, once."""
        if notes and not self.noted:
            self.noted = True
            self.link.recorder.record(self.verb, self.name, self.begun, self.nbytes, end=self.ended)


class HostLink:
    """A link of `rate` bytes per second each way; None: as fast as a copy is.

    limit: seconds that a wait for one transfer may take.
    bytes: what has gone "down" to the host and "up" to the device so far.
    """

    def __init__(self, rate: float | None = None, limit: float = LIMIT_SECONDS):
        if rate is not None and not rate > 0:
            raise BadInput(f"the rate of the link is {rate!r}: it must be bytes per second, above 0, or None for no limit")
        self.rate, self.limit = rate, limit
        self.bytes = {DOWN: 0, UP: 0}
        self.recorder = Recorder()
        self._queues: dict[str, queue.SimpleQueue] = {}
        self._streams: dict[str, torch.cuda.Stream] = {}

    def down(self, into: torch.Tensor, source: torch.Tensor, name: str) -> LinkTransfer:
        """Copy `source`, on the device, to `into`, of the same dtype, on the host."""
        return self._move(DOWN, into, source, name)

    def up(self, into: torch.Tensor, source: torch.Tensor, name: str) -> LinkTransfer:
        """Copy `source`, on the host, to `into`, of the same dtype, on the device."""
        return self._move(UP, into, source, name)

    def _move(self, verb: str, into: torch.Tensor, source: torch.Tensor, name: str) -> LinkTransfer:
        self.bytes[verb] += source.nbytes
        device = into.device if verb == UP else source.device
        if device.type == "cuda":
            return self._on_stream(verb, into, source, name, device)
        transfer = LinkTransfer(self, verb, name, into, source)
        if self.rate is None:
            into.copy_(source)
            transfer.end()
        else:
            if verb not in self._queues:
                self._queues[verb] = self._begin(verb)
            self._queues[verb].put(transfer)
        return transfer

    def _begin(self, verb: str) -> queue.SimpleQueue:
        transfers = queue.SimpleQueue()
        threading.Thread(target=carry, args=(transfers, self.rate), name=f"link {verb}", daemon=True).start()
        weakref.finalize(self, transfers.put, None)  # the thread ends with the link
        return transfers

    def _on_stream(self, verb: str, into: torch.Tensor, source: torch.Tensor, name: str, device: torch.device) -> LinkTransfer:
        if self.rate is not None:
            raise BadInput("the link of a GPU has the rate that it has: leave rate out")
        if verb not in self._streams:
            self._streams[verb] = torch.cuda.Stream(device)
        stream, computing = self._streams[verb], torch.cuda.current_stream(device)  # read before `with stream`
        transfer = StreamTransfer(self, verb, name, into, source)
        stream.wait_stream(computing)  # what is copied has been computed, and what is overwritten has been read
        with torch.cuda.stream(stream):
            into.copy_(source, non_blocking=True)
            transfer.copied.record(stream)
        for tensor in (into, source):
            if tensor.is_cuda:
                tensor.record_stream(stream)  # its memory is not given to anybody else before the copy is over
        return transfer


class StreamTransfer(LinkTransfer):
    """A copy on a GPU's stream."""

    def __init__(self, *args):
        super().__init__(*args)
        self.copied = torch.cuda.Event()

    @property
    def done(self) -> bool:
        return self.over.is_set() or self.copied.query()

    def wait_for_source(self) -> None:
        self.copied.synchronize()

    def wait(self, notes: bool = True) -> None:
        """The host waits for what goes down, because it reads it. For what goes up the stream that computes waits."""
        if not self.over.is_set():
            if self.verb == DOWN:
                self.copied.synchronize()
            else:
                torch.cuda.current_stream(self.into.device).wait_event(self.copied)
            self.end()
        super().wait(notes)


def carry(transfers: queue.SimpleQueue, rate: float) -> None:
    """What the thread of one direction does: move one transfer after the other, at `rate` bytes per second."""
    free = 0.0  # when the link has carried everything so far
    while (transfer := transfers.get()) is not None:
        try:
            into, source = (tensor.detach().view(torch.uint8) for tensor in (transfer.into, transfer.source))
            free = max(free, time.perf_counter())
            for piece_into, piece in zip(into.split(PIECE_BYTES), source.split(PIECE_BYTES), strict=True):
                piece_into.copy_(piece)
                free += piece.nbytes / rate
                time.sleep(max(0.0, free - time.perf_counter()))
            del into, source, piece_into, piece
            transfer.end()
        except BaseException as error:
            transfer.end(error)
        del transfer  # the loop would keep its tensors alive until the next one comes
