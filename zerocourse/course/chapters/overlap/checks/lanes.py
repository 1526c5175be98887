"""The check of 8.6: a step of stage 3 on two lanes, one that computes and a link."""

import copy
import operator
from collections import Counter

from ....checks import Trial, When, exercise
from ....checks.words import a, value_text

NAMES = ("forward", "backward", "gather", "reduce")
EVEN = [(1.0, 2.0, 8.0)] * 4  # forward seconds, backward seconds, bytes
MIXED = [(2.0, 4.0, 4.0), (0.5, 1.0, 16.0), (1.0, 3.0, 8.0), (4.0, 6.0, 2.0)]
CASES = [([(1.0, 2.0, 4.0)], 0, 4.0, 4.0), (EVEN[:2], 0, 8.0, 8.0), (EVEN, 0, 8.0, 8.0), (EVEN, 1, 8.0, 8.0),
         (EVEN, 1, 8.0, 4.0), (EVEN, 1, 8.0, 32.0), (EVEN, 2, 16.0, 4.0), (EVEN, 2, 24.0, 4.0), (EVEN, 3, 1000.0, 8.0),
         (EVEN, 9, 1.0, 4.0), (MIXED, 0, 1.0, 4.0), (MIXED, 1, 10.0, 4.0), (MIXED, 2, 20.0, 4.0),
         (MIXED, 1, 6.0, 16.0), (MIXED, 3, 1000.0, 2.0)]


def events_of(answer, *case):
    """The answer's events in the order of their starts."""
    events = answer(*copy.deepcopy(case))
    if not isinstance(events, (list, tuple)):
        return {"form": f"it returned {a(events)}, {value_text(events, 60)}"}
    if strange := [event for event in events if not is_event(event)]:
        return {"form": f"it has an event {value_text(strange[0], 80)}"}
    return {"form": "", "events": sorted(map(tuple, events), key=lambda event: (*event[2:], *event[:2]))}


def is_event(event):
    return isinstance(event, (list, tuple)) and len(event) == 4 and event[0] in NAMES \
        and all(isinstance(value, (int, float)) for value in event[1:])


def first_difference(case, got, want):
    """In words, where two lists of events differ for the first time."""
    extra = Counter(got) - Counter(want)
    for event in Counter(want) - Counter(got):
        other = next((other for other in extra if other[:2] == event[:2]), None)
        return "at other times" if other else "missing", {"event": event, "other": other}
    return "too many", {"event": next(iter(extra)), "events": len(got), "right": len(want)}


@exercise(
    "8.6", "Two lanes", minutes=60, difficulty=3, timeout=5,
    trials=[Trial(CASES, events_of, words={"events": first_difference})],
    mistakes={
        "no events": (lambda *case: max(event[3] for event in simulate(*case)), When("form")),
        "kept": {"kept": lambda place, n: place >= n},
        "last kept": {"kept": lambda place, n: place == n},
        "forwards": {"back": list},
        "together": {"lane": lambda what, number: number},
        "second link": {"lane": lambda what, number: what},
        "too early": {"waits": False},
        "one farther": {"reach": lambda place, prefetch, n: place + prefetch + 1},
        "one less far": {"reach": lambda place, prefetch, n: max(place, place + prefetch - 1)},
        "within a pass": {"reach": lambda place, prefetch, n: min(place + prefetch, n - 1 if place < n else 2 * n)},
        "last bucket": {"last": False},
        "more than": {"full": operator.gt},
        "one by one": {"full": lambda bucket, limit: True},
        "all at the end": {"full": lambda bucket, limit: False},
        "bucket without the rest": {"carries": False},
        "never emptied": {"empties": False},
        "gathers first": {"gathers_first": True},
        "stands still": {"stands_still": True},
        "no overlap": {"reach": lambda place, prefetch, n: place, "stands_still": True},
        "from the start": {"issued": lambda what, now: 0.0 if what == "gather" else now},
        "next step": {"more": True},
        "durations": lambda *case: [(*event[:3], event[3] - event[2]) for event in simulate(*case)],
    })
def simulate(blocks, prefetch, bucket_bytes, rate, *, back=reversed, kept=lambda place, n: False, waits=True, last=True,
             reach=lambda place, prefetch, n: place + prefetch, lane=lambda what, number: "the link", full=operator.ge,
             issued=lambda what, now: now, carries=True, empties=True, gathers_first=False, stands_still=False,
             more=False):
    """The events of a step, (what, block, start, end).
    kept(place, n): is the block not gathered for this place?   reach: the last place to gather for now.
    lane(what, number): on which link a message travels.   issued(what, now): when, as the link sees it."""
    n, events, links, there, now, bucket = len(blocks), [], {}, [], 0.0, 0.0  # there: when each place's gather ends
    places = [("forward", i) for i in range(n)] + [("backward", i) for i in back(range(n))]

    def send(what, block, size):
        which = lane(what, len(events))
        start = max(issued(what, now), links.get(which, 0.0))
        links[which] = start + size / rate
        events.append((what, block, start, links[which]))
        return links[which]

    def look_ahead(place):
        for ahead in range(len(there), min(reach(place, prefetch, n) + 1, 2 * n)):
            block = places[ahead][1]
            there.append(0.0 if kept(ahead, n) else send("gather", block, blocks[block][2]))

    for place, (what, block) in enumerate(places):
        look_ahead(place)
        start = max(now, there[place]) if waits else now
        now = start + blocks[block][what == "backward"]
        events.append((what, block, start, now))
        bucket += blocks[block][2] * (what == "backward")
        final = place == 2 * n - 1
        if what == "backward" and (full(bucket, bucket_bytes) or final and last):
            if gathers_first and not final:
                look_ahead(place + 1)
            arrived = send("reduce", block, bucket if carries else blocks[block][2])
            now, bucket = max(now, arrived) if stands_still else now, 0.0 if empties else bucket
    if more:
        send("gather", 0, blocks[0][2])
    return events
