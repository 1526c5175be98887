"""The check of 8.4: timelines, and how many seconds of their communication are exposed."""

import copy
import functools
import math
from itertools import pairwise

from ....checks import Trial, exercise
from ....checks.observers.stage_runs import train

COMPUTES, TRAVELS = ("forward", "backward", "step"), ("all_gather", "reduce_scatter")


def timeline(text):
    """Events from "all_gather 0 2, forward 2 5 root" (verb, start, end, unit), in the order of their ends."""
    rows = [(*row.split(), "h.0")[:4] for row in text.split(",")] if text else []
    events = [{"verb": verb, "unit": unit, "start": float(start), "end": float(end)} for verb, start, end, unit in rows]
    return sorted(events, key=lambda event: event["end"])


TIMELINES = [timeline(text) for text in (
    "all_gather 0 2, forward 2 5",
    "all_gather 1 3, forward 0 4",
    "forward 0 6, all_gather 1 4, wait 3 3.5, wait 3.5 4, reshard 6 6",
    "all_gather 0 4, reshard 0.5 1, all_gather 1 3 h.1, forward 4 8",
    "all_gather 0 6, forward 1 5 root, forward 2 4",
    "forward 0 2, wait 3 4, reduce_scatter 1 4, step 4 6, all_gather 4.5 5.5",
    ("all_gather 0 1, forward 0.5 3, wait 0.5 1, all_gather 1.5 2.5, backward 3.5 6, reduce_scatter 5 8, wait 6 8, "
     "step 8 9"),
    "forward 0 1, wait 2 3, backward 3 4",
    "all_gather 0 3, forward 1 4 root, wait 2 3, forward 3 4",
    "")]


def lasted(events, verbs):
    return sum(event["end"] - event["start"] for event in events if event["verb"] in verbs)


@functools.cache
def real_events():
    """Those of one step of stage 3, the same for all answers as long as the ranks live. Collective, once."""
    return train({}, stage=3, steps=2, prefetch=1)["events"]


def real_step(answer):
    """The answer for a real step of stage 3, beside the right one."""
    events = real_events()
    got, right = answer(copy.deepcopy(events)), exposed_seconds(events)
    exposed = isinstance(got, (int, float)) and math.isclose(got, right, rel_tol=1e-4, abs_tol=1e-7)
    return {"exposed": exposed, "_events": len(events), "_got": got, "_right": f"{right:.9f}"}


@exercise(
    "8.4", "What a timeline exposes", minutes=30, difficulty=2,
    cases=[(events,) for events in TIMELINES], trials=[Trial(observe=real_step, worlds=(2,))],
    mistakes={
        "all collectives": (lambda events: lasted(events, TRAVELS), {"computes": ()}),
        "waits": lambda events: lasted(events, ("wait",)),
        "waiting computes": ({"stops": lambda wait, event: False},
                             {"stops": lambda wait, event: False, "computes": (*COMPUTES, "wait")}),
        "own wait": {"stops": lambda wait, event: wait["unit"] == event["unit"]},
        "once each": {"weight": lambda sent, busy: sent * (not busy)},
        "nested": ({"weight": lambda sent, busy: sent * (1 - busy), "stops": lambda wait, event: False},
                   {"weight": lambda sent, busy: sent * (1 - busy)}),
        "sums": (lambda events: max(0.0, lasted(events, TRAVELS) - lasted(events, COMPUTES)),
                 lambda events: lasted(events, TRAVELS) - lasted(events, COMPUTES)),
        "hidden": ({"weight": lambda sent, busy: bool(sent and busy)},
                   {"weight": lambda sent, busy: bool(sent and busy), "stops": lambda wait, event: False}),
        "idle": {"weight": lambda sent, busy: not busy},
        "others compute": {"computes": (*COMPUTES, "reshard")},
        "forward alone": {"computes": ("forward",)},
        "no step": {"computes": ("forward", "backward")},
        "gathers alone": {"travels": ("all_gather",)},
        "not sorted": ({"order": list}, {"order": lambda times: list(dict.fromkeys(times))}),
        "rounded": lambda events: round(exposed_seconds(events), 1),
    })
def exposed_seconds(events, *, travels=TRAVELS, computes=COMPUTES, stops=lambda wait, event: True, order=sorted,
                    weight=lambda sent, busy: bool(sent and not busy)):
    """Seconds in which something travels and nothing computes, segment by segment.
    stops(wait, event): does the rank not compute in this event during this wait?"""
    exposed, times = 0.0, order(event[edge] for event in events for edge in ("start", "end"))
    for start, end in pairwise(times):
        going = [event for event in events if event["start"] <= start and end <= event["end"]]
        waits = [event for event in going if event["verb"] == "wait"]
        sent = sum(event["verb"] in travels for event in going)
        busy = sum(event["verb"] in computes and not any(stops(wait, event) for wait in waits) for event in going)
        exposed += (end - start) * weight(sent, busy)
    return exposed
