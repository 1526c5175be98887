"""The check of 8.3: what a recorded step of stage 3 tells who reads its timeline."""

from itertools import pairwise

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a
from ..recorded_step import SETTINGS, recorded_step

GATHER, REDUCE = "all_gather", "reduce_scatter"


def of(events, *verbs):
    return [event for event in events if event["verb"] in verbs]


def by_start(events):
    return sorted(events, key=lambda event: event["start"])


def length(event):
    return 1e3 * (event["end"] - event["start"])


def added(events):
    """Milliseconds of all of them together, those at the same time several times."""
    return sum(map(length, events))


def covered(events):
    """Milliseconds in which at least one of them goes on."""
    times = sorted({event[edge] for event in events for edge in ("start", "end")})
    return 1e3 * sum(end - start for start, end in pairwise(times)
                     if any(event["start"] <= start and end <= event["end"] for event in events))


def longest_wait(events, *verbs):
    """(verb, unit) of the collective for which the rank stood still longest: it is the one that ends with the wait."""
    for wait in sorted(of(events, "wait"), key=length, reverse=True):
        candidates = [event for event in of(events, *verbs) if event["unit"] == wait["unit"]]
        waited_for = min(candidates, key=lambda event: abs(event["end"] - wait["end"]), default=None)
        if waited_for and abs(waited_for["end"] - wait["end"]) < 1e-3:
            return waited_for["verb"], waited_for["unit"]


def later(mine, other, edge="start"):
    """Milliseconds by which that collective begins (or ends) later on the other rank."""
    verb, unit = longest_wait(mine, GATHER, REDUCE)
    own, peers = ([event for event in of(events, verb) if event["unit"] == unit][-1] for events in (mine, other))
    return 1e3 * (peers[edge] - own[edge])


def units(events):
    return [event["unit"] for event in by_start(events)]


def before_backward(events):
    begun = min(event["start"] for event in of(events, "backward"))
    return [event for event in events if event["end"] <= begun]


def peak(events):
    """The first event at whose end most bytes were alive."""
    return max(by_start(events), key=lambda event: (event["alive"], -event["end"]))


def running_at_peak(events):
    """The block whose backward had reached its end, or was going on, at the peak."""
    moment = peak(events)["end"]
    return next(event["unit"] for event in by_start(of(events, "backward"))
                if event["unit"] != "root" and event["start"] < moment <= event["end"])


RIGHT = {"waited": lambda mine, other: added(of(mine, "wait")),
         "under_way": lambda mine, other: covered(of(mine, GATHER, REDUCE)),
         "longest_wait": lambda mine, other: longest_wait(mine, GATHER, REDUCE),
         "later": later,
         "buckets": lambda mine, other: units(of(mine, REDUCE)),
         "peak": lambda mine, other: peak(mine)["alive"],
         "peak_in": lambda mine, other: running_at_peak(mine),
         "prefetch": lambda mine, other: SETTINGS["prefetch"]}


def entries(answer):
    """What the answer says, entry by entry; verdicts never tell what is right."""
    said = answer()
    if not isinstance(said, dict):
        raise Wrong(f"it returned {a(said)}: return a dictionary with the entries {', '.join(RIGHT)}", MISUSED)
    if missing := [name for name in RIGHT if said.get(name) is None]:
        raise Wrong(f"what it returned has no entry '{missing[0]}': the entries are {', '.join(RIGHT)}", MISUSED)
    return {name: said[name] for name in RIGHT}


def in_seconds(name):
    return {name: lambda mine, other: RIGHT[name](mine, other) / 1e3}


def of_rank_0(name):
    return {name: lambda mine, other: RIGHT[name](other, mine)}


@exercise(
    "8.3", "Read this timeline", minutes=25, difficulty=2,
    trials=[Trial(observe=entries, close=0.002)],  # so near that milliseconds may be rounded to whole ones
    mistakes={
        "rank 0": tuple(map(of_rank_0, ("waited", "under_way", "longest_wait"))),
        "seconds": tuple(map(in_seconds, ("waited", "under_way", "later"))),
        "spans": ({"waited": lambda mine, other: added(of(mine, GATHER, REDUCE))},
                  {"waited": lambda mine, other: covered(of(mine, GATHER, REDUCE))}),
        "one pass": {"waited": lambda mine, other: added(of(before_backward(mine), "wait"))},
        "one wait": {"waited": lambda mine, other: max(map(length, of(mine, "wait")))},
        "sum": {"under_way": lambda mine, other: added(of(mine, GATHER, REDUCE))},
        "gap": {"under_way": lambda mine, other: 1e3 * (max(event["end"] for event in of(mine, GATHER, REDUCE))
                                                        - min(event["start"] for event in of(mine, GATHER, REDUCE)))},
        "gathers alone": {"under_way": lambda mine, other: covered(of(mine, GATHER))},
        "longest gather": {"longest_wait": lambda mine, other: longest_wait(mine, GATHER)},
        "gather of it": {"longest_wait": lambda mine, other: (GATHER, longest_wait(mine, GATHER, REDUCE)[1])},
        "wait itself": {"longest_wait": lambda mine, other: ("wait", longest_wait(mine, GATHER, REDUCE)[1])},
        "ends": {"later": lambda mine, other: later(mine, other, "end")},
        "turned over": {"later": lambda mine, other: -later(mine, other)},
        "wait for later": {"later": lambda mine, other: max(map(length, of(mine, "wait")))},
        "span for later": {"later": lambda mine, other: max(map(length, of(mine, REDUCE)))},
        "forward order": ({"buckets": lambda mine, other: sorted(units(of(mine, REDUCE)))},
                          {"buckets": lambda mine, other: units(of(before_backward(mine), GATHER))[:7]}),
        "gathers' order": {"buckets": lambda mine, other: units(of(mine, GATHER))[len(units(of(mine, REDUCE))):]},
        "no root": {"buckets": lambda mine, other: [unit for unit in units(of(mine, REDUCE)) if unit[:4] != "root"]},
        "forward's peak": {"peak": lambda mine, other: peak(before_backward(mine))["alive"]},
        "at the end": {"peak": lambda mine, other: max(mine, key=lambda event: event["end"])["alive"]},
        "both ranks": {"peak": lambda mine, other: peak(mine)["alive"] + peak(other)["alive"]},
        "bucket's unit": {"peak_in": lambda mine, other: of(mine, REDUCE)[0]["unit"]},
        "root's": {"peak_in": lambda mine, other: "root"},
        "next unit": {"peak_in": lambda mine, other: "h.1"},
        "itself too": {"prefetch": lambda mine, other: SETTINGS["prefetch"] + 1},
        "root too": {"prefetch": lambda mine, other: SETTINGS["prefetch"] + 2},
        "issued then": {"prefetch": lambda mine, other: 1},
    })
def read_timeline(**knobs):
    """The answers to all questions about rank 1. knobs: another function for an entry of `RIGHT`."""
    events = recorded_step()
    mine, other = ([event for event in events if event["rank"] == rank] for rank in (1, 0))
    return {name: knobs.get(name, right)(mine, other) for name, right in RIGHT.items()}
