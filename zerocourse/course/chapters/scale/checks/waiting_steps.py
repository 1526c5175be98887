"""The check of 25.3: why a rank of many stands still."""

from itertools import dropwhile, takewhile

from ....checks import exercise

COMPUTES, COLLECTIVES = ("forward", "backward", "step"), ("all_gather", "reduce_scatter")


def step_of(text):
    """Events from "all_gather 0 2, forward 2 5" (verb, start, end)."""
    return [{"verb": verb, "start": float(start), "end": float(end)} for verb, start, end in map(str.split, text.split(", "))]


HIDDEN = "forward 0 6, all_gather 1 3, backward 6 14, reduce_scatter 7 9, step 14 15"
ENDS = "all_gather 0 2, wait 0 2, forward 2 6, all_gather 2 4, backward 6 14, reduce_scatter 11 17, wait 14 17, step 17 18"
MANY = ("all_gather 0 5, wait 0 5, forward 5 6, all_gather 5 10, wait 6 10, backward 10 12, reduce_scatter 12 17, wait 12 17, "
        "step 17 18")
LATE = "step 31 32, reduce_scatter 26 31.5, backward 24 26, all_gather 20 24, forward 14 20, all_gather 10 12"
GAP = "all_gather 0 8, forward 10 20, backward 20 40, reduce_scatter 44 48, step 50 51, reduce_scatter 30 34"


def overlap(one, other):
    return max(0.0, min(one["end"], other["end"]) - max(one["start"], other["start"]))


def lasts(events):
    return sum(event["end"] - event["start"] for event in events)


def left_over(sent, work):
    """Seconds of collectives during which nothing is computed."""
    return lasts(sent) - sum(overlap(one, other) for one in sent for other in work)


def until_later(sent, work):
    """The same, where the search ends at the first event that begins later."""
    return lasts(sent) - sum(overlap(one, other) for one in sent for other in takewhile(lambda each: each["start"] < one["end"], work))


def never_back(sent, work):
    """The same, where what is over once is not looked at again."""
    exposed = lasts(sent)
    for one in sent:
        work = list(dropwhile(lambda each, one=one: each["end"] <= one["start"], work))
        exposed -= sum(overlap(one, other) for other in work)
    return exposed


def all_idle(events, work):
    """Seconds of the step during which nothing is computed."""
    return max(event["end"] for event in events) - min(event["start"] for event in events) - lasts(work)


@exercise(
    "25.3", "Read this timeline: what would help?", minutes=25, difficulty=2,
    cases=[(step_of(HIDDEN), 8, 0.25), (step_of(ENDS), 5, 0.25), (step_of(MANY), 17, 0.25), (step_of(MANY), 20, 0.25), (step_of(LATE), 9, 0.125),
           (step_of(GAP), 3, 0.5), (step_of(ENDS), 13, 0.25), (step_of("all_gather 0 4, forward 4 6"), 3, 1.0),
           (step_of("all_gather 0 10, forward 0 5, backward 5 10"), 4, 0.25), (step_of("all_gather 0 4"), 2, 0.5),
           (step_of("all_gather 0 4"), 1, 3.0), (step_of("all_gather 0 4, forward 1 9"), 3, 0.5),
           (step_of("backward 4 8, forward 0 4, all_gather 2 4"), 3, 0.25)],
    mistakes={
        "all of it": {"stood": lambda events, sent, work: lasts(sent)},
        "idle": {"stood": lambda events, sent, work: all_idle(events, work)},
        "waits": {"stood": lambda events, sent, work: lasts([each for each in events if each["verb"] == "wait"])},
        "steps hide nothing": {"work_verbs": ("forward", "backward")},
        "waits compute": {"work_verbs": (*COMPUTES, "wait")},
        "exactly half": {"half": 0.5 - 1e-12},
        "gathers alone": {"sent_verbs": ("all_gather",)},
        "reductions alone": {"sent_verbs": ("reduce_scatter",)},
        "once": {"times": lambda sent: 1},
        "N": {"hops": lambda ranks: ranks},
        "without ranks": {"hops": lambda ranks: 1},
        "always the link": {"of": lambda sent, exposed: float("inf")},
        "of what is exposed": {"of": lambda sent, exposed: exposed},
        "nearly all of it": {"half": 0.9},
        "never nothing": {"hidden": lambda sent, exposed: False},
        "nearly nothing": {"hidden": lambda sent, exposed: exposed < lasts(sent) / 2},
        "as they come": ({"stood": lambda events, sent, work: until_later(sent, work)}, {"stood": lambda events, sent, work: never_back(sent, work)},
                         {"stood": lambda events, sent, work: left_over(sent, [each for each in work if each["start"] >= work[0]["start"]])}),
    })
def read_step(events, ranks, latency, *, stood=lambda events, sent, work: left_over(sent, work), work_verbs=COMPUTES,
              sent_verbs=COLLECTIVES, times=len, hops=lambda ranks: ranks - 1, of=lambda sent, exposed: lasts(sent), half=0.5,
              hidden=lambda sent, exposed: exposed <= 0):
    """Seconds exposed, seconds of latency, and what helps."""
    work = [event for event in events if event["verb"] in work_verbs]
    sent = [event for event in events if event["verb"] in sent_verbs]
    exposed, turns = stood(events, sent, work), times(sent) * hops(ranks) * latency
    helps = "nothing" if hidden(sent, exposed) else "fewer ranks" if turns > half * of(sent, exposed) else "a faster link"
    return {"exposed": exposed, "latency": turns, "helps": helps}
