"""What happened in a step, and when. Timelines are drawn, and overlap is proved, from these events."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

import torch

from .device_clock import DeviceClock, DeviceMoment, clock_of

MOST_EVENTS = 100_000  # a rank that makes no steps, as in a long evaluation, forgets its oldest events
HOSTS_OWN = ("read", "write")  # what the host does itself, also where the rest is done by a GPU


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that a rank did, with its beginning and end.

    verb: forward, backward, all_gather, reduce_scatter, all_to_all, wait, reshard, step; down and up (to the host, and back); read and
        write (a disk); send and recv (from rank to rank).
    unit: the part of the model it was done for.   start, end: seconds of the machine's monotonic clock, so that
    ranks on one machine share it. A collective runs from its issue to the moment it was known to be complete; the
    part of that in which the rank stood still is a `wait` of its own.
    bytes: what the verb moved or freed.   alive: bytes alive on the rank when it ended.
    kinds: the same by kind (see `measure.stage_meter.KINDS`), of which `alive` is the sum; empty where no stage counts.
    host_time: a GPU did it, and the times are those at which the host issued it. They say nothing of the GPU.
    """

    rank: int
    step: int
    verb: str
    unit: str
    start: float | DeviceMoment
    end: float | DeviceMoment
    bytes: int
    alive: int
    kinds: dict[str, int] = field(default_factory=dict)
    host_time: bool = False


class Recorder:
    """Keeps the events of one rank's last `keep` optimizer steps, including the one under way.

    alive: a function that says how many bytes are alive (a ledger's; by default the model states of the stage).
    kinds: a function that says of how many bytes of which kind these consist (a stage gives its own).
    clock: a function that says how late it is, in seconds: the machine's, or a simulation's. For work on a GPU it is the GPU's,
        which gives moments that become seconds when they are asked for (see `device_clock`).
    """

    def __init__(self, rank: int = 0, keep: int = 2):
        self.rank, self.keep, self.step = rank, keep, 0
        self.alive: Callable[[], int] = lambda: 0
        self.kinds: Callable[[], dict[str, int]] = dict
        self.clock: Callable[[], float | DeviceMoment] = time.perf_counter
        self.apart = False  # does a device compute beside the host?
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)

    def time_on(self, device: torch.device) -> None:
        """From now on it is this device that computes. What is timed by the host all the same is marked as `host_time`."""
        if not self.apart and device.type != "cpu" and self.clock is time.perf_counter:
            self.apart, self.clock = True, clock_of(device) or self.clock

    def record(self, verb: str, unit: str, start: float | DeviceMoment, nbytes: int = 0,
               end: float | DeviceMoment | None = None) -> None:
        """Record that `verb`, which began at `start`, ended at `end`, or ends now."""
        end = self.clock() if end is None else end
        by_host = self.apart and verb not in HOSTS_OWN and any(isinstance(edge, float) for edge in (start, end))
        self.events.append(Event(self.rank, self.step, verb, unit, start, end, nbytes, self.alive(), self.kinds(), by_host))

    @contextmanager
    def span(self, verb: str, unit: str, nbytes: int = 0) -> Iterator[None]:
        start = self.clock()
        yield
        self.record(verb, unit, start, nbytes)

    def next_step(self) -> None:
        """Begin another step and forget the oldest."""
        self.step += 1
        while self.events and self.events[0].step <= self.step - self.keep:
            self.events.popleft()

    def of_step(self, step: int) -> list[dict]:
        """The events of one step as plain dictionaries, which can be sent to another process or written as JSON. Where a GPU
        computed, this waits for it. `host_time` is there only where it is true."""
        if isinstance(self.clock, DeviceClock):
            self.resolve(self.clock)
        return [{name: value for name, value in asdict(event).items() if name != "host_time" or value}
                for event in self.events if event.step == step]

    def resolve(self, clock: DeviceClock) -> None:
        """Give moments their seconds, once: who asks again gets the same."""
        moments = {id(edge): edge for event in self.events for edge in (event.start, event.end) if not isinstance(edge, float)}
        seconds = dict(zip(moments, clock.seconds(moments.values()), strict=True))
        self.events = deque((replace(event, start=seconds.get(id(event.start), event.start), end=seconds.get(id(event.end), event.end))
                             for event in self.events), maxlen=MOST_EVENTS)
