"""A backward as lanes: what a rank computes, where it waits, and what travels meanwhile. Of a recorded step here; of a program that has
not run yet in `simulation.program_clock`. It communicates nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .intervals import Interval, collectives, computing, waiting

COMPUTES, WAITS, GATHERS, REDUCTIONS, SUMS = "computes", "waits", "gathers", "reductions", "sums"
TRAVELS = {GATHERS: "gather", REDUCTIONS: "reduction", SUMS: "sum"}


@dataclass(frozen=True)
class BackwardLanes:
    """lanes: intervals by lane, those of WAITS included, from 0.   unit: of time."""

    lanes: dict[str, list[Interval]]
    unit: str

    @property
    def takes(self) -> float:
        """To the end of the last collective."""
        return max(each.end for lane in self.lanes.values() for each in lane)

    @property
    def waited(self) -> float:
        return sum(each.end - each.start for each in self.lanes[WAITS])

    @property
    def begun(self) -> list[str]:
        """What travels, in the order in which it began."""
        begun = [(each, word) for lane, word in TRAVELS.items() for each in self.lanes[lane]]
        return [f"{word} of {each.what}" for each, word in sorted(begun, key=lambda pair: pair[0].start)]


def recorded_lanes(events: Sequence[dict]) -> BackwardLanes:
    """Of the events of one rank's step: what began after its last forward had ended, in milliseconds from then on."""
    rank = events[0]["rank"]
    begin = max(event["end"] for event in events if event["verb"] == "forward")

    def since(intervals: Iterable[Interval]) -> list[Interval]:
        return [each._replace(start=1e3 * (each.start - begin), end=1e3 * (each.end - begin)) for each in intervals
                if each.start >= begin and each.verb != "step"]

    gathers, reductions = (since(collectives(events, rank, verb)) for verb in ("all_gather", "reduce_scatter"))
    waits = since(waiting(events, rank))
    computes = list(without(waits, since(computing(events, rank))))
    return BackwardLanes({COMPUTES: computes, WAITS: waits, GATHERS: gathers, REDUCTIONS: reductions, SUMS: []}, "ms")


def without(waits: Sequence[Interval], computes: Iterable[Interval]) -> Iterator[Interval]:
    """What is left of each when the waits inside of it are taken out."""
    for each in computes:
        inside = [wait for wait in waits if wait.end > each.start and wait.start < each.end]
        edges = [each.start, *(edge for wait in inside for edge in (wait.start, wait.end)), each.end]
        yield from (each._replace(start=start, end=end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start)
