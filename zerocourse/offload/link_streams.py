"""Copies between a GPU and the host, on a stream of their own for each direction, beside the computation.

Nothing here stops the host, except a wait for what it will read or overwrite itself. Memory of the device that a copy still
uses is not given back: the transfer refers to it until the stream that computes has waited for the copy. The allocator gives
memory anew in the order of that stream, so what computes next may have it. `record_stream` would let the host forget the
tensor at once, but the allocator could hand it out only after it has *seen* the copy end: a host that is far ahead of its GPU
would find nothing to reuse, and take the whole gradient's memory once more (see `torch.Tensor.record_stream`).
"""

import weakref
from collections import deque

import torch

from .link_transfer import DOWN, UP, LinkTransfer

AT_ONCE = 2  # copies each way whose memory on the device is held: one is made while the next one's source is computed


class StreamTransfer(LinkTransfer):
    """A copy on a GPU's stream.   cuda: `torch.cuda`, or what plays it."""

    def __init__(self, link, *args, device: torch.device, cuda):
        super().__init__(weakref.proxy(link), *args)  # the link has those that are under way, and would never end
        self.device, self.cuda, self.copied = device, cuda, cuda.Event()
        self.landed = self.begun

    @property
    def done(self) -> bool:
        return self.copied.query()

    def end(self, error: BaseException | None = None) -> None:
        super().end(error)
        self.ended = self.landed  # and not when somebody waited for it

    def wait_for_source(self) -> None:
        self.copied.synchronize()

    def release(self, notes: bool = True) -> None:
        if not self.over.is_set():
            self.cuda.current_stream(self.device).wait_event(self.copied)
            self.end()
        self.note(notes)

    def wait(self, notes: bool = True) -> None:
        """The host waits for what goes down, because it reads it. For what goes up the stream that computes waits."""
        if self.verb == DOWN:
            self.copied.synchronize()
        self.release(notes)


class LinkStreams:
    """The streams of one GPU's link. Of each direction at most `AT_ONCE` copies hold memory of the device."""

    def __init__(self, device: torch.device, cuda):
        self.device, self.cuda = device, cuda
        self.streams = {verb: cuda.Stream(device) for verb in (DOWN, UP)}
        self.under_way: dict[str, deque[StreamTransfer]] = {verb: deque() for verb in (DOWN, UP)}  # the oldest first
        weakref.finalize(self, release_all, self.under_way).atexit = False

    def start(self, link, verb: str, name: str, into: torch.Tensor, source: torch.Tensor) -> StreamTransfer:
        under_way = self.under_way[verb]
        while under_way and (len(under_way) >= AT_ONCE or under_way[0].done):
            under_way.popleft().release()
        stream, computing = self.streams[verb], self.cuda.current_stream(self.device)  # read before `with stream`
        transfer = StreamTransfer(link, verb, name, into, source, device=self.device, cuda=self.cuda)
        stream.wait_stream(computing)  # what is copied has been computed, and what is overwritten has been read
        link.recorder.time_on(self.device)
        with self.cuda.stream(stream):
            transfer.begun = link.recorder.clock()  # when the stream comes to it: see `comm.device_clock`
            into.copy_(source, non_blocking=True)
            transfer.copied.record(stream)
            transfer.landed = link.recorder.clock()
        under_way.append(transfer)
        return transfer


def release_all(under_way: dict[str, deque[StreamTransfer]]) -> None:
    """The link is gone, and so is who would have waited."""
    for transfer in [*under_way[DOWN], *under_way[UP]]:
        transfer.release(notes=False)
