"""The time of a GPU, for what it does itself. A host that issues work is ahead of the GPU, so its clock says nothing of it.

A moment is an event that is put among the work of the stream that computes, and which the GPU stamps when it comes there.
To make one waits for nothing. Only who asks for seconds waits, once, until the GPU has come to the last one.

    before a collective's wait, and after it    on NCCL the stream waits between the two and the host does not: exactly
                                                so long the GPU stood still
    at a collective's issue                     it cannot begin earlier, because its input is computed before
    around a unit's forward and backward        the computation itself

Source: CUDA Runtime API, Event Management (resolution about 0.5 microseconds).
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import torch


class DeviceMoment(Protocol):
    """What `torch.cuda.Event(enable_timing=True)` can do."""

    def record(self, stream: object) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, later: "DeviceMoment") -> float:
        """Milliseconds until a later one. Both must be over."""


class DeviceClock:
    """`clock()` is a moment of the stream on which this thread computes; `seconds` says when moments were.

    make: makes a moment.   stream: the one on which this thread computes.
    """

    def __init__(self, make: Callable[[], DeviceMoment], stream: Callable[[], object]):
        self.make, self.stream = make, stream

    def __call__(self) -> DeviceMoment:
        moment = self.make()
        moment.record(self.stream())
        return moment

    def seconds(self, moments: Iterable[DeviceMoment]) -> list[float]:
        """On the host's `time.perf_counter`, which ranks of a machine share. Waits until all of them are over.

        One more moment, for which the host waits, has a time on both clocks: the others lie so many milliseconds before it.
        """
        moments = list(moments)
        for moment in moments:
            moment.synchronize()
        now = self()
        now.synchronize()
        host = time.perf_counter()
        return [host - moment.elapsed_time(now) / 1e3 for moment in moments]


def clock_of(device: torch.device) -> DeviceClock | None:
    """None for a device that has no such events, or is not there."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return DeviceClock(partial(torch.cuda.Event, enable_timing=True), partial(torch.cuda.current_stream, device))


def finished(device: torch.device | str) -> float:
    """`time.perf_counter()`, when the device has done everything that it was given. For whoever times work from outside: the
    host's clock before and after a step on a GPU says how long the step took to issue."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
