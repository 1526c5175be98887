"""The check of 8.3: what a recorded step of stage 3 tells who reads its timeline."""

from itertools import pairwise

from ....checks.exercise import exercise
from ....checks.trace import Trial
from ....checks.verdict import MISUSED, Wrong
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
    """What the answer says, entry by entry; verdicts never tell what is right.

    waited: rank 1 did not stand still for {got} ms.
    under_way: it was not for {got} ms that at least one collective was under way on rank 1.
    longest_wait: it was not {got} for which rank 1 stood still longest.
    later: it was not {got} ms after rank 1 that rank 0 issued this collective.
    buckets: rank 1 did not issue its reductions in the order {got}.
    peak: {got} bytes are not the most that were alive on rank 1.
    peak_in: the peak was not reached in the backward of {got}.
    prefetch: the run did not have `prefetch={got}`.
    """
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
    "8.3", "Read this timeline", minutes=25, difficulty=2, answer="read_timeline",
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
    """The answers to all questions about rank 1. knobs: another function for an entry of `RIGHT`.

    rank 0: That is so on rank 0: the questions are about rank 1, which had less to compute.
    seconds: You returned seconds: milliseconds are asked for.
    spans: You counted how long collectives were under way: the rank stands still only in the `wait` events, and it
        computes during the rest.
    one pass: You counted the waits of the forward: those of the backward count too.
    one wait: That is the longest wait: all waits together are asked for.
    sum: You added up all collectives: where several are under way at once, the same milliseconds counted several times.
    gap: You took the time from the first beginning to the last end: between the two passes nothing was under way.
    gathers alone: You left out the reductions.
    longest gather: You looked at gathers only: a rank waits for reductions as well.
    gather of it: You named the gather of that unit: the wait ends when a collective of its unit ends, and here it is
        another one.
    wait itself: You named the wait: which collective of that unit ends when the wait does?
    ends: You compared the ends: they say when a rank knew that the collective was complete; who is late shows where it
        starts.
    turned over: You turned the difference over: rank 0 came later, so it is positive.
    wait for later: That is how long rank 1 waited for it: rank 1 had issued it long before it began to wait.
    span for later: That is how long it was under way on rank 1, its own way over the link included: compare the starts
        on the two ranks.
    forward order: You sorted the units, or took the order of the forward: the backward goes through the blocks from the
        last to the first.
    gathers' order: You took the order of the gathers: the root is gathered first, and its gradients are complete last.
    no root: You left out the root, whose gradients are reduced too.
    forward's peak: You stopped at the forward: in the backward there are gradients too.
    at the end: That is what remains after the step: the peak is the largest number on the way.
    both ranks: You added the ranks up: the bytes of one rank are asked for.
    bucket's unit: You took the unit of a reduction that ends at the same height: its bucket is from an earlier
        backward; whose backward had just ended?
    root's: The root's backward goes on around all the others: which block's backward was it?
    next unit: That block's backward began only when the peak was reached: the one that ended then made it.
    itself too: You counted the block that computes: `prefetch` counts only those that are gathered ahead of it.
    root too: You counted everything that is gathered while the first block computes: neither the root nor the block
        itself is ahead of it.
    issued then: You counted the gathers issued when a block was reached: at the second block that is one, because the
        other has been under way since the block before.
    right: now you know why rank 1 stood still: it had less to compute, and rank 0 came late to every reduction.
    """
    events = recorded_step()
    mine, other = ([event for event in events if event["rank"] == rank] for rank in (1, 0))
    return {name: knobs.get(name, right)(mine, other) for name, right in RIGHT.items()}
