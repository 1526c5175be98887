"""What happened in a step, and when. Timelines are drawn, and overlap is proved, from these events."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

MOST_EVENTS = 100_000  # a rank that makes no steps, as in a long evaluation, forgets its oldest events


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
    """

    rank: int
    step: int
    verb: str
    unit: str
    start: float
    end: float
    bytes: int
    alive: int
    kinds: dict[str, int] = field(default_factory=dict)


class Recorder:
    """Keeps the events of one rank's last `keep` optimizer steps, including the one under way.

    alive: a function that says how many bytes are alive (a ledger's; by default the model states of the stage).
    kinds: a function that says of how many bytes of which kind these consist (a stage gives its own).
    clock: a function that says how late it is, in seconds: the machine's, or a simulation's.
    """

    def __init__(self, rank: int = 0, keep: int = 2):
        self.rank, self.keep, self.step = rank, keep, 0
        self.alive: Callable[[], int] = lambda: 0
        self.kinds: Callable[[], dict[str, int]] = dict
        self.clock: Callable[[], float] = time.perf_counter
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)

    def record(self, verb: str, unit: str, start: float, nbytes: int = 0, end: float | None = None) -> None:
        """Record that `verb`, which began at `start`, ended at `end`, or ends now."""
        end = self.clock() if end is None else end
        self.events.append(Event(self.rank, self.step, verb, unit, start, end, nbytes, self.alive(), self.kinds()))

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
        """The events of one step as plain dictionaries, which can be sent to another process or written as JSON."""
        return [asdict(event) for event in self.events if event.step == step]
