"""What the events of a step say beyond themselves: why a rank stood still, what it did where nothing was recorded, and
which collectives were under way at once. Timelines and traces are drawn from this. It communicates nothing.

Events are dictionaries, as `events.Event` has them, of one step.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import BadInput

COLLECTIVES = ("all_gather", "reduce_scatter")
TRANSFERS = ("down", "up", "read", "write")  # between device and host, and between host and disk
ROOT, PYTHON = "root", "Python"  # what fills a gap: the units outside of all blocks compute, or nothing of the model does
LINK = "the link"


class Interval(NamedTuple):
    """start, end: seconds, on the clock of the events.   what: the unit, or why there is nothing.   verb: the event's."""

    start: float
    end: float
    what: str
    verb: str


def ranks_of(events: Iterable[dict]) -> list[int]:
    return sorted({event["rank"] for event in events})


def computing(events: Sequence[dict], rank: int) -> list[Interval]:
    """What the rank computed: forwards and backwards of blocks, and the optimizer's step, in order of time.

    The root's own are not among them, as they last as long as those of its blocks together. Where a model has no
    blocks, they are all there is.
    """
    mine = [event for event in events if event["rank"] == rank and event["verb"] in ("forward", "backward", "step")]
    blocks = [event for event in mine if event["verb"] == "step" or event["unit"] != ROOT]
    found, until = [], float("-inf")
    for event in sorted(blocks if any(event["verb"] != "step" for event in blocks) else mine, key=lambda event: event["start"]):
        # The next block's backward is noticed before the one before is left.
        start, until = max(event["start"], min(until, event["end"])), max(until, event["end"])
        found.append(Interval(start, event["end"], event["unit"], event["verb"]))
    return found


def collectives(events: Sequence[dict], rank: int, verb: str) -> list[Interval]:
    """The rank's collectives of one kind, from their issue to their end, in the order of issue."""
    mine = [event for event in events if event["rank"] == rank and event["verb"] == verb]
    return [Interval(event["start"], event["end"], event["unit"], verb) for event in sorted(mine, key=lambda event: event["start"])]


def in_rows(intervals: Iterable[Interval]) -> list[list[Interval]]:
    """The intervals in as few rows as possible, so that in no row two overlap. They must be in the order of their starts."""
    rows: list[list[Interval]] = []
    for interval in intervals:
        free = next((row for row in rows if row[-1].end <= interval.start), None)
        if free is None:
            rows.append([interval])
        else:
            free.append(interval)
    return rows


def refuse_host_times(events: Iterable[dict]) -> None:
    """Raises BadInput where the host's clock timed what a GPU did: who stood still, and how long, cannot be seen then."""
    issued = next((event for event in events if event.get("host_time")), None)
    if issued is not None:
        raise BadInput(f"{issued['verb']} of {issued['unit']} ran on a GPU, and its times are those at which the host issued it: nothing "
                       "can be said of who waited for what; only events that the GPU timed itself can be drawn (see `comm.device_clock`)")


def waiting(events: Sequence[dict], rank: int) -> list[Interval]:
    """When the rank stood still, and why: `what` is "rank 1" until that rank, the last of all, had issued the same
    collective, and from then on `LINK`. With the events of one rank alone, it is always the link."""
    refuse_host_times(events)
    issued = defaultdict(lambda: defaultdict(list))  # by verb and unit, then by rank: when they were issued, in order
    for event in sorted(events, key=lambda event: event["start"]):
        if event["verb"] in COLLECTIVES:
            issued[event["verb"], event["unit"]][event["rank"]].append(event["start"])
    mine = sorted((event for event in events if event["rank"] == rank), key=lambda event: event["end"])
    found = []
    for index, wait in enumerate(mine):
        if wait["verb"] != "wait":
            continue
        start, end = wait["start"], wait["end"]
        of_wait = next((event for event in mine[index + 1 :] if event["verb"] in COLLECTIVES and event["unit"] == wait["unit"]
                        and event["start"] <= start), None)
        if of_wait is not None:
            by_rank = issued[of_wait["verb"], of_wait["unit"]]
            number = by_rank[rank].index(of_wait["start"])
            others = [(times[number], other) for other, times in by_rank.items() if other != rank and number < len(times)]
            late, last = max(others, default=(start, rank))
            if late > start:
                found.append(Interval(start, min(late, end), f"rank {last}", "wait"))
                start = min(late, end)
        if end > start:
            found.append(Interval(start, end, LINK, "wait"))
    return found


def gaps(events: Sequence[dict], rank: int) -> list[Interval]:
    """Where the rank neither computed a block nor stood still, from the first event of any rank to the last: `what` is
    `ROOT` where the root computes (embeddings before the first block; the last norm, the head and the loss after the last
    one), else `PYTHON`: hooks, copies and the loop around the step."""
    compute, waits = computing(events, rank), waiting(events, rank)
    mine = [event for event in events if event["rank"] == rank]
    busy = sorted([*compute, *waits, *(Interval(event["start"], event["end"], "", "reshard") for event in mine
                                       if event["verb"] == "reshard")])
    of_root = [(event["start"], event["end"], event["verb"]) for event in mine
               if event["unit"] == ROOT and event["verb"] in ("forward", "backward")]
    inner = {verb: [each for each in compute if each.verb == verb] for verb in ("forward", "backward")}
    found, until, end = [], min(event["start"] for event in events), max(event["end"] for event in events)
    for interval in [*busy, Interval(end, end, "", "")]:
        if interval.start > until:
            middle = (until + interval.start) / 2
            inside = [verb for start, end, verb in of_root if start <= middle <= end]
            edge = any(not inner[verb] or middle < inner[verb][0].start or middle > inner[verb][-1].end for verb in inside)
            found.append(Interval(until, interval.start, ROOT if edge else PYTHON, "gap"))
        until = max(until, interval.end)
    return found
