"""Recorded events as a trace that https://ui.perfetto.dev opens: a process for each rank, lanes of what it computed, of
its collectives and its waits, and counters of its bytes by kind. It communicates nothing.

The format is Chrome's Trace Event Format, in JSON: "X" is a block with its beginning `ts` and length `dur`, both in
microseconds, "C" a counter's value, and "M" a name. The blocks of one lane (thread) may not overlap except by containing
each other, so collectives that are under way together get lanes of their own.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .intervals import COLLECTIVES, TRANSFERS, collectives, gaps, in_rows, ranks_of, waiting

COMPUTE, WAITS, GAPS, FIRST_COLLECTIVE = 1, 2, 3, 10  # numbers of lanes; collectives begin at 10, 20, ...
LANES = {COMPUTE: "compute", WAITS: "stands still", GAPS: "between"}
WORDS = {"all_gather": "all-gather", "reduce_scatter": "reduce-scatter", "down": "down to the host", "up": "up from the host",
         "read": "read from disk", "write": "written to disk"}


def trace(events: Sequence[dict]) -> dict:
    """The trace of one step of any number of ranks, as an object for JSON. events: as `events.Event` has them."""
    begin = min((event["start"] for event in events), default=0.0)
    shown = [entry for rank in ranks_of(events) for entry in of_rank(events, rank, begin)]
    return {"traceEvents": shown, "displayTimeUnit": "ms"}


def write(events: Sequence[dict], path: str | Path) -> Path:
    """Write the trace to a file, which ui.perfetto.dev opens by "Open trace file"; returns its path."""
    path = Path(path)
    path.write_text(json.dumps(trace(events)) + "\n")
    return path


def of_rank(events: Sequence[dict], rank: int, begin: float) -> Iterator[dict]:
    mine = sorted((event for event in events if event["rank"] == rank), key=lambda event: event["end"])
    yield named("process_name", rank, 0, name=f"rank {rank}")
    yield named("process_sort_index", rank, 0, sort_index=rank)
    lanes = dict(LANES)

    def block(lane: int, name: str, start: float, end: float, **args) -> dict:
        return {"ph": "X", "name": name, "cat": lanes[lane], "pid": rank, "tid": lane, "ts": micro(start - begin),
                "dur": round(micro(end - begin) - micro(start - begin), 3), "args": args}

    for event in nested(event for event in mine if event["verb"] not in (*COLLECTIVES, *TRANSFERS, "wait")):
        yield block(COMPUTE, f"{event['verb']} {event['unit']}", event["start"], event["end"], bytes=event["bytes"])
    for wait in waiting(events, rank):
        yield block(WAITS, f"waits for {wait.what}", wait.start, wait.end)
    for gap in gaps(events, rank):
        yield block(GAPS, gap.what, gap.start, gap.end)
    for place, verb in enumerate((*COLLECTIVES, *TRANSFERS), 1):
        moved = {(event["start"], event["unit"]): event["bytes"] for event in mine if event["verb"] == verb}
        for number, row in enumerate(in_rows(collectives(events, rank, verb))):
            lane = FIRST_COLLECTIVE * place + number
            lanes[lane] = WORDS[verb] + (f" {number + 1}" if number else "")
            for each in row:
                yield block(lane, f"{WORDS[verb]} {each.what}", each.start, each.end, bytes=moved[each.start, each.what])
    for lane, name in lanes.items():
        yield named("thread_name", rank, lane, name=name)
        yield named("thread_sort_index", rank, lane, sort_index=lane)
    for event in mine:
        values = event.get("kinds") or {"alive": event["alive"]}
        yield {"ph": "C", "name": "bytes alive", "pid": rank, "tid": 0, "ts": micro(event["end"] - begin), "args": values}


def nested(events: Iterable[dict]) -> Iterator[dict]:
    """Each block lies inside another one or apart from it: where one begins inside of another and ends after it, as the
    backward of a block that is noticed before the last one is left, it begins with that one's end."""
    around: list[float] = []  # the ends of the blocks that this one begins in
    for event in sorted(events, key=lambda event: (event["start"], -event["end"])):
        start = event["start"]
        while around and (around[-1] <= start or around[-1] < event["end"]):
            start = max(start, around.pop())
        around.append(event["end"])
        yield event | {"start": start}


def named(what: str, rank: int, lane: int, **args) -> dict:
    return {"ph": "M", "name": what, "pid": rank, "tid": lane, "args": args}


def micro(seconds: float) -> float:
    """Seconds as microseconds, to the nanosecond."""
    return round(seconds * 1e6, 3)
