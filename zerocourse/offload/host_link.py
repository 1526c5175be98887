"""The link between the device and the host: moves tensors down and up, and counts every byte. It frees nothing.

On a GPU each direction is a stream of its own, so that copies go on beside the computation (`link_streams`). On a CPU the link is
simulated: without a rate it copies at once; with one, a thread per direction moves pieces of 1 MiB and sleeps after each
as long as the piece would have taken. A thread that sleeps costs no core, so what overlaps here would overlap there.
"""

import queue
import threading
import time
import weakref

import torch

from ..comm.events import Recorder
from ..errors import BadInput
from .link_streams import LinkStreams
from .link_transfer import DOWN, UP, LinkTransfer

PIECE_BYTES = 1 << 20
LIMIT_SECONDS = 600.0


class HostLink:
    """A link of `rate` bytes per second each way; None: as fast as a copy is.

    limit: seconds that a wait for one transfer may take.
    bytes: what has gone "down" to the host and "up" to the device so far.
    """

    cuda = torch.cuda  # of which it takes streams and events

    def __init__(self, rate: float | None = None, limit: float = LIMIT_SECONDS):
        if rate is not None and not rate > 0:
            raise BadInput(f"the rate of the link is {rate!r}: it must be bytes per second, above 0, or None for no limit")
        self.rate, self.limit = rate, limit
        self.bytes = {DOWN: 0, UP: 0}
        self.recorder = Recorder()
        self._queues: dict[str, queue.SimpleQueue] = {}
        self._streams: LinkStreams | None = None

    def is_apart(self, device: torch.device) -> bool:
        """Has the device memory of its own, which the host cannot read?"""
        return device.type == "cuda"

    def takes_time(self, device: torch.device) -> bool:
        """Is a copy worth starting before it is needed?"""
        return self.rate is not None or self.is_apart(device)

    def down(self, into: torch.Tensor, source: torch.Tensor, name: str) -> LinkTransfer:
        """Copy `source`, on the device, to `into`, of the same dtype, on the host."""
        return self._move(DOWN, into, source, name)

    def up(self, into: torch.Tensor, source: torch.Tensor, name: str) -> LinkTransfer:
        """Copy `source`, on the host, to `into`, of the same dtype, on the device."""
        return self._move(UP, into, source, name)

    def _move(self, verb: str, into: torch.Tensor, source: torch.Tensor, name: str) -> LinkTransfer:
        self.bytes[verb] += source.nbytes
        device = into.device if verb == UP else source.device
        if self.is_apart(device):
            if self.rate is not None:
                raise BadInput("the link of a GPU has the rate that it has: leave rate out")
            self._streams = self._streams or LinkStreams(device, self.cuda)
            return self._streams.start(self, verb, name, into, source)
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
