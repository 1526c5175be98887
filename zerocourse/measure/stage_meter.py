"""What a stage tells its recorder: how many bytes are alive, and when each unit's forward and backward began and ended."""

import time
import weakref
from collections.abc import Iterable
from typing import Protocol

from ..comm.events import Recorder


class Held(Protocol):
    """Something that knows how many bytes it holds, without looking into any tensor."""

    @property
    def bytes_held(self) -> int: ...


class StageMeter:
    """A running count of the bytes of some buffers, which every event asks for, and the spans that are open.

    recorder: gets the events. It knows the meter, but does not keep it alive.
    """

    def __init__(self, recorder: Recorder, buffers: Iterable[Held]):
        self.recorder, self.held = recorder, 0
        self._counted: dict[Held, int] = {}
        self._began: dict[tuple[str, str], float] = {}
        for buffer in buffers:
            self.recount(buffer)
        meter = weakref.ref(self)
        recorder.alive = lambda: meter().held if meter() else 0

    def recount(self, buffer: Held) -> None:
        """The buffer took memory or gave some back."""
        held = buffer.bytes_held
        self.held += held - self._counted.get(buffer, 0)
        self._counted[buffer] = held

    def begin(self, verb: str, unit: str) -> None:
        self._began.setdefault((verb, unit), time.perf_counter())

    def end(self, verb: str, unit: str) -> None:
        """Record the span; nothing where none is open."""
        if (verb, unit) in self._began:
            self.recorder.record(verb, unit, self._began.pop((verb, unit)))

    def forget(self) -> None:
        """Whatever is open was interrupted."""
        self._began.clear()
