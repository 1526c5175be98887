"""The check of 26.5: what two timelines say about a claim on prefetching."""

from ....checks import exercise


def timeline(text):
    """Events from "read 0 2, step 2 5" (verb, start, end)."""
    return [{"verb": verb, "start": float(start), "end": float(end)}
            for verb, start, end in (row.split() for row in text.split(", "))]


def seconds_of(intervals, order=sorted):
    """During which at least one of them is under way."""
    total, until = 0.0, float("-inf")
    for start, end in order(intervals):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


COMPUTES, SENDS = ("forward", "backward", "step"), ("all_gather", "reduce_scatter")

PAIRS = [  # off, on, claimed
    ("all_gather 0 2, forward 2 6, backward 6 14, reduce_scatter 14 16",
     "all_gather 0 2, forward 1 5, backward 5 13, reduce_scatter 12 14", 0.23),
    ("all_gather 0 1, forward 1 5, backward 5 14, reduce_scatter 14 15",
     "all_gather 0 1, forward 1 5, backward 5 13, reduce_scatter 12 14", 0.23),
    ("all_gather 0 5, forward 5 9, backward 9 15, reduce_scatter 15 20",
     "all_gather 0 5, forward 1 5, backward 5 11, reduce_scatter 6 11", 0.8),
    ("all_gather 10 12, all_gather 11 14, forward 14 18, reduce_scatter 20 22, step 22 24",
     "forward 3 8, all_gather 3 8, step 8 9", 0.5),
    ("forward 4 6, all_gather 0 4, backward 8 10, all_gather 6 8, reduce_scatter 10 14, step 14 15",
     "all_gather 0 2, all_gather 2 4, forward 2 4, backward 4 8, reduce_scatter 6 9, step 9 10, wait 0 40", 0.5),
    ("forward 0 8, all_gather 8 10, wait 10 30", "forward 0 8, all_gather 6 8", 0.25),
    ("all_gather 0 3, forward 3 6, wait 6 7, backward 7 10, reduce_scatter 10 13",
     "all_gather 0 3, forward 3 6, backward 6 9, reduce_scatter 9 12", 0.05),
    ("all_gather 0 10, all_gather 2 3, all_gather 4 5, forward 10 20", "all_gather 0 10, all_gather 2 3, forward 8 18", 0.5),
    ("all_gather 0 4, reduce_scatter 2 6, forward 6 16", "all_gather 0 4, reduce_scatter 2 6, forward 6 16", 0.7),
    ("all_gather 0 4, forward 2 8", "all_gather 0 4, forward 1 7", 0.5),
    ("all_gather 0 2, forward 2 8, reduce_scatter 8 12", "all_gather 0 2, reduce_scatter 4 10, forward 5 9", 0.3),
    ("all_gather 0 3.5, forward 3.5 13.5", "all_gather 0 3.5, forward 1 11", 0.23),
    ("all_gather 0 1, forward 1 4", "all_gather 0 1, forward 0 3", 0.333),
    ("all_gather 0 1, forward 30 40", "all_gather 0 1, forward 1 10", 2.0),  # more than prefetching could explain
    ("backward 6 14, forward 2 6, all_gather 0 2", "all_gather 0 2, forward 1 5, backward 5 13", 0.05),
]


def lasting(events):
    """From the first beginning to the last end."""
    return max(event["end"] for event in events) - min(event["start"] for event in events)


def busy(events, verbs, count=seconds_of):
    return count([(event["start"], event["end"]) for event in events if event["verb"] in verbs])


def of_step(events):
    """Without what neither computes nor sends."""
    return [event for event in events if event["verb"] in COMPUTES + SENDS]


@exercise(
    "26.5", "Read these timelines: does prefetch bring so much?", minutes=30, difficulty=2,
    cases=[(timeline(off), timeline(on), claimed) for off, on, claimed in PAIRS],
    mistakes={
        "time saved": {"gain": lambda off, on: 1 - on / off},
        "upside down": {"gain": lambda off, on: on / off - 1},
        "a factor": {"gain": lambda off, on: off / on},
        "added up": {"count": lambda each: sum(end - start for start, end in each)},
        "not sorted": {"count": lambda each: seconds_of(each, list)},
        "from first to last": {"count": lambda each: max(end for _, end in each) - min(start for start, _ in each)},
        "computing alone": {"bound": lambda compute, sent, lasts: (compute + sent) / compute - 1},
        "sending alone": {"bound": lambda compute, sent, lasts: (compute + sent) / sent - 1},
        "the bound with overlap": {"bound_from": 1},
        "length of the step": {"bound": lambda compute, sent, lasts: lasts / max(compute, sent) - 1},
        "waiting counts": {"events": lambda events: events},
        "all bound, no look": {"answers": lambda gain, most, claimed: "true" if claimed <= most else "impossible"},
        "the bound is impossible": {
            "answers": lambda gain, most, claimed: "impossible" if claimed >= most else "true" if gain >= claimed else "false"},
        "false, not impossible": {"answers": lambda gain, most, claimed: "true" if gain >= claimed else "false"},
    })
def judge_prefetch(off, on, claimed, *, gain=lambda off, on: off / on - 1, count=seconds_of, bound_from=0,
                   events=of_step,
                   bound=lambda compute, sent, lasts: (compute + sent) / max(compute, sent) - 1,
                   answers=lambda gain, most, claimed: "impossible" if claimed > most else "true" if gain >= claimed
                   else "false"):
    """The verdict, the gain that is measured, and the most that it could be."""
    steps = [events(each) for each in (off, on)]
    compute, sent = (busy(steps[bound_from], verbs, count) for verbs in (COMPUTES, SENDS))
    without, with_it = map(lasting, steps)
    got, most = gain(without, with_it), bound(compute, sent, without)
    return answers(got, most, claimed), got, most
