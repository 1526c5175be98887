"""The checks of chapter 08, overlap: here 8.1 to 8.4, the bound, what to gather ahead and what it takes, what a timeline
exposes; the forward that looks ahead and the simulator have files of their own.
"""

import math
import operator
from itertools import pairwise

import torch

from ....models.gpt2 import GPT
from ....zero.schedule import Prefetcher
from ....zero.shard import shard
from ..exercise import exercise
from ..harness import When
from ..trace import Trial
from . import lanes, run_ahead  # noqa: F401  (8.6 and 8.5 are there)
from .stage_runs import CONFIG, WatchedComm, data

# 8.1 ----------------------------------------------------------------------------------------------------------------

def overlapped(C, M, e):
    """Seconds of a step with perfect overlap: C of compute, M of communication, of which e are exposed."""
    return e + max(C, M - e)


@exercise(
    "8.1", "The bound", minutes=10, difficulty=1, answer="speedup_bound",
    cases=[(1.0, 1.0, 0.0), (4.0, 1.0, 0.0), (1.0, 4.0, 0.0), (8.0, 0.5, 0.0)],
    trials=[Trial([(1.0, 1.0, 0.25), (4.0, 1.0, 0.5), (1.0, 4.0, 0.5), (2.0, 2.0, 2.0), (3, 0, 0), (0, 3, 1)])],
    mistakes={
        "seconds": {"ratio": lambda old, new: new},
        "saved": ({"ratio": operator.sub}, {"ratio": lambda old, new: 1 - new / old},
                  {"ratio": lambda old, new: old / new - 1}),
        "shorter": ({"new": lambda C, M, e: min(C, M)}, {"new": lambda C, M, e: e + min(C, M - e)}),
        "turned over": {"ratio": lambda old, new: new / old},
        "longer by shorter": lambda C, M, e: max(C, M) / min(C, M),
        "always 2": lambda C, M, e: 2.0,
        "compute alone": ({"old": lambda C, M, e: C}, {"old": lambda C, M, e: M}),
        "all hidden": {"new": lambda C, M, e: C},
        "left out": ({"new": lambda C, M, e: max(C, M)}, lambda C, M, e: (C + M - e) / max(C, M - e)),
        "twice": {"new": lambda C, M, e: e + max(C, M)},
        "never added": ({"new": lambda C, M, e: max(C, M - e)}, {"new": lambda C, M, e: max(C, M) - e}),
        "added before": ({"old": lambda C, M, e: C + M + e}, lambda C, M, e: (C + M + e) / (e + max(C, M))),
        "taken before": {"old": lambda C, M, e: C + M - e},
    })
def speedup_bound(C, M, e, *, old=lambda C, M, e: C + M, new=overlapped, ratio=operator.truediv):
    """The step's time without overlap over its time with perfect overlap.

    seconds: You returned the seconds of the step: the speed-up is the time without overlap over the time with it.
    saved: You returned what is saved: the speed-up is the time without overlap over the time with it.
    shorter: You divided by the shorter one: with perfect overlap the longer one is what remains.
    turned over: You turned the fraction over: a speed-up is the old time over the new.
    longer by shorter: You divided the longer one by the shorter.
    always 2: You took 2 for the bound: that is right only where both take equally long.
    compute alone: You compared with one of the two alone: without overlap the step lasts C + M.
    all hidden: You let all communication hide behind the compute: when it is longer, a part of it remains.
    left out: You left out the exposed seconds: they are there before or after all compute.
    twice: You counted the exposed seconds twice: they belong to the communication, so only M - e is left to hide.
    never added: You took the exposed seconds away and never added them: the step lasts that much longer.
    added before: You added the exposed seconds to the step without overlap too: there they are part of M already.
    taken before: You took the exposed seconds off the step without overlap: it lasts C + M, exposed or not.
    right: at most 2, where both take equally long and nothing is exposed.
    """
    return ratio(old(C, M, e), new(C, M, e))


# 8.2 ----------------------------------------------------------------------------------------------------------------

ORDER = ["root", "h.0", "h.1", "h.2", "h.3"]
NAMES = ["wte", "wpe", "h.0", "h.1", "ln_f", "head"]  # not in the order of the alphabet
TWICE = ["root", "emb", "h.0", "emb", "h.1", "h.2"]
ENDS_TWICE = ["wte", "h.1", "h.0", "h.1", "h.0", "wte"]


def present_place(recorded, so_far):
    """The place of the present unit in the record; None where the record has another one there, or none."""
    here = len(so_far) - 1
    return here if recorded[here:here + 1] == so_far[-1:] else None


def first_place(recorded, so_far):
    return recorded.index(so_far[-1]) if so_far[-1] in recorded else None


def next_places(recorded, here, depth):
    return recorded[here + 1:here + 1 + depth]


def each_once(coming, so_far, depth):
    return [unit for unit in dict.fromkeys(coming) if unit != so_far[-1]]


def by_the_package(recorded, so_far, depth):
    """The same with the package's Prefetcher, which leaves the repetitions to its user."""
    prefetcher, found = Prefetcher(depth), []
    for units in (recorded, so_far):
        prefetcher.start()
        for unit in units:
            found = prefetcher.next_after(unit)
    return each_once(found, so_far, depth)


def sample_order(random):
    recorded = random.choices("abcde", k=random.randint(1, 8))
    so_far = recorded[:random.randint(1, len(recorded))]
    if random.random() < 0.3:
        so_far = [*so_far[:-1], random.choice("abcdef")]
    return recorded, so_far, random.randint(0, 4)


@exercise(
    "8.2", "What comes next", minutes=20, difficulty=2, answer="gather_ahead", own=by_the_package,
    replaces=("zerocourse.zero.schedule:Prefetcher.next_after",), sample=sample_order,
    cases=[(ORDER, ORDER[:2], 2), (ORDER, ORDER[:1], 1), (ORDER, ORDER[:2], 0), (ORDER, ORDER[:4], 3),
           (ORDER, ORDER, 2), (NAMES, NAMES[:1], 5), (NAMES, NAMES[:2], 3)],  # plain
    trials=[Trial([(TWICE, TWICE[:4], 2), (TWICE, TWICE[:2], 2), (TWICE, TWICE[:3], 3), (TWICE, TWICE[:1], 4),
                   (ENDS_TWICE, ENDS_TWICE[:1], 5), (ENDS_TWICE, ENDS_TWICE[:2], 4)]),  # units that run twice
            Trial([(ORDER, ["root", "h.1"], 2), (ORDER, [*ORDER[:3], "new"], 1), (ORDER, ["root", "new", "h.1"], 2),
                   (ORDER, [*ORDER, "h.0"], 2), ([], ["root"], 2)])],  # a pass that is not like the last
    mistakes={
        "itself": tuple({"reach": lambda recorded, here, depth, more=more: recorded[here:here + depth + more],
                         "name": name} for more in (0, 1) for name in (lambda coming, *_: coming,
                                                                       lambda coming, *_: list(dict.fromkeys(coming)))),
        "one more": {"reach": lambda recorded, here, depth: recorded[here + 1:here + 2 + depth]},
        "one less": {"reach": lambda recorded, here, depth: recorded[here + 1:here + depth]},
        "all that is left": {"reach": lambda recorded, here, depth: recorded[here + 1:]},
        "end of the slice": ({"reach": lambda recorded, here, depth: recorded[here + 1:depth]},
                             {"reach": lambda recorded, here, depth: recorded[here + 1:depth + 1]}),
        "first place": ({"place": first_place}, {"place": lambda recorded, so_far: recorded.index(so_far[-1])},
                        {"place": lambda *case: None if present_place(*case) is None else first_place(*case)}),
        "in a circle": {"reach": lambda recorded, here, depth: (recorded * (depth + 2))[here + 1:here + 1 + depth]},
        "gave up": {"place": lambda recorded, so_far: present_place(recorded, so_far)
                    if recorded[:len(so_far)] == so_far else None},
        "trusted": {"place": lambda recorded, so_far: len(so_far) - 1},
        "beyond the record": {"place": lambda recorded, so_far: len(so_far) - 1
                              if recorded[len(so_far) - 1] == so_far[-1] else None},
        "named twice": ({"name": lambda coming, *_: coming},
                        {"name": lambda coming, so_far, depth: [unit for unit in coming if unit != so_far[-1]]}),
        "now": {"name": lambda coming, *_: list(dict.fromkeys(coming))},
        "ran already": {"name": lambda coming, so_far, depth: [
            unit for unit in dict.fromkeys(coming) if unit not in so_far]},
        "farther": {"reach": lambda recorded, here, depth: recorded[here + 1:],
                    "name": lambda *case: each_once(*case)[:case[-1]]},
        "order": ({"name": lambda *case: each_once(*case)[::-1]}, {"name": lambda *case: sorted(each_once(*case))},
                  When("returned", lambda got, want: isinstance(got, list) and sorted(map(str, got)) == sorted(want))),
    })
def gather_ahead(recorded, so_far, depth, *, place=present_place, reach=next_places, name=each_once):
    """The units to gather now, the nearest first.

    itself: You began with the unit that computes now: it is whole already.
    one more: You gathered one unit more than `depth`.
    one less: You gathered one unit less than `depth`.
    all that is left: You gathered everything that is left: only the next `depth` units, since each takes memory.
    end of the slice: You ended the slice at `depth`: a slice's end counts from the start of the record, so it is `depth`
        behind the slice's beginning.
    first place: You looked for the unit's place in the record by its name: a unit may run twice, or be new, so take the
        place from how many have run.
    in a circle: At the end you began with the start of the order again: the next pass begins when it begins.
    gave up: You gave up because another unit ran earlier: only the present place counts.
    trusted: You trusted the record although another unit runs now: then nobody knows what comes, and nothing is
        gathered.
    beyond the record: More units have run than the record has: then nobody knows what comes, and an empty list is right.
    named twice: You named a unit again that is whole now, or named one twice: each needs one gather.
    now: You named the unit that computes now, which comes again later: it is whole now.
    ran already: You left out what ran earlier in this pass: it was freed, so it is gathered again.
    farther: You looked farther than `depth` places to make up for a unit that comes twice: more blocks would be whole at
        once than `depth` allows.
    order: The order is wrong: the nearest unit is gathered first.
    right: the nearest first, none twice, and nothing where the record does not fit.
    """
    here = place(recorded, so_far)
    return [] if here is None else name(reach(recorded, here, depth), so_far, depth)


# 8.3 ----------------------------------------------------------------------------------------------------------------

UNEVEN = [10, 40, 20, 30, 10, 5]


def windows(blocks, size):
    """Bytes of so many blocks that follow each other, from each block on."""
    return [sum(blocks[i:i + size]) for i in range(len(blocks))]


def whole_at_once(root, blocks, depth):
    return root + max(windows(blocks, depth + 1))


def peaks(peak):
    return {"peak": peak}


@exercise(
    "8.3", "How deep a prefetch fits", minutes=20, difficulty=2, answer="deepest_prefetch",
    replaces=("zerocourse.zero.schedule:Prefetcher.next_after",),
    cases=[(0, [10, 10, 10, 10], 25), (0, [10, 10, 10, 10], 30), (7, [10, 10, 10, 10], 26), (5, UNEVEN, 45),
           (5, UNEVEN, 65), (5, UNEVEN, 94), (5, UNEVEN, 95), (5, UNEVEN, 104), (5, UNEVEN, 115), (0, [10], 10),
           (5, UNEVEN, 10**9), (4, [1, 1, 50], 54), (4, [50, 1, 1], 55), (0, [30, 5, 5, 20], 40)],
    trials=[Trial([(20, [10, 10], 29), (0, [10, 10], 9), (0, [10, 10, 50], 20)])],  # where nothing fits
    mistakes={
        "root": peaks(lambda root, blocks, depth: whole_at_once(0, blocks, depth)),
        "root each time": peaks(lambda root, blocks, depth: whole_at_once((depth + 1) * root, blocks, depth)),
        "last block": peaks(lambda root, blocks, depth: root + max(windows(blocks, depth + 1)[:-1], default=0)),
        "depth blocks": peaks(lambda root, blocks, depth: whole_at_once(root, blocks, depth - 1)),
        "block before": peaks(lambda root, blocks, depth: whole_at_once(root, blocks, depth + 1)),
        "largest": peaks(lambda root, blocks, depth: root + (depth + 1) * max(blocks)),
        "average": peaks(lambda root, blocks, depth: root + (depth + 1) * sum(blocks) / len(blocks)),
        "first blocks": peaks(lambda root, blocks, depth: root + sum(blocks[:depth + 1])),
        "largest ones": peaks(lambda root, blocks, depth: root + sum(sorted(blocks)[::-1][:depth + 1])),
        "in a circle": peaks(lambda root, blocks, depth: root + max(windows(blocks + blocks, depth + 1)[:len(blocks)])),
        "to the last byte": {"fits": operator.lt},
        "number of blocks": {"result": lambda depths: len(depths) or None},
        "beyond the end": {"last": lambda blocks: len(blocks)},
        "0 for nothing": {"result": lambda depths: max(depths, default=0)},
        "-1 for nothing": {"result": lambda depths: max(depths, default=-1)},
    })
def deepest_prefetch(root, blocks, room, *, peak=whole_at_once, fits=operator.le, last=lambda blocks: len(blocks) - 1,
                     result=lambda depths: max(depths, default=None)):
    """The largest depth at which the root and the blocks that are whole at once never need more than `room`.

    root: You left out the root: it stays whole during the whole forward.
    root each time: You counted the root with every block: it is whole once.
    last block: Each block must fit by itself, also the last one, behind which there is nothing to gather.
    depth blocks: You counted `depth` blocks: the block that computes is whole too, so it is depth + 1.
    block before: You counted depth + 2 blocks: the block before is freed as soon as it has computed.
    largest: You took the largest block depth + 1 times: blocks differ, so look at those that follow each other.
    average: You took the average block depth + 1 times: the peak is where large blocks follow each other.
    first blocks: You looked at the first depth + 1 blocks only: the peak may come later.
    largest ones: You took the depth + 1 largest blocks: only blocks that follow each other are whole together.
    in a circle: After the last block you went on with the first: a pass ends there.
    to the last byte: You want room to be left: what fills it to the last byte fits.
    number of blocks: You returned how many blocks fit: the depth counts those ahead, without the one that computes.
    beyond the end: With n blocks nothing is left to gather ahead beyond a depth of n - 1: that is the most.
    0 for nothing: Where not even one block fits, None is right: a depth of 0 still needs the block that computes.
    -1 for nothing: Where not even one block fits, None is right.
    right: the root, the block that computes, and as many ahead as the room allows.
    """
    return result([depth for depth in range(last(blocks) + 1) if fits(peak(root, blocks, depth), room)])


# 8.4 ----------------------------------------------------------------------------------------------------------------

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
    "all_gather 0 1, forward 0.5 3, wait 0.5 1, all_gather 1.5 2.5, backward 3.5 6, reduce_scatter 5 8, wait 6 8, "
    "step 8 9",
    "forward 0 1, wait 2 3, backward 3 4",
    "all_gather 0 3, forward 1 4 root, wait 2 3, forward 3 4",
    "")]


def lasted(events, verbs):
    return sum(event["end"] - event["start"] for event in events if event["verb"] in verbs)


def real_step(answer):
    """The answer for a real step of stage 3, beside the right one: its times are never the same twice.

    exposed: a real step of stage 3 on rank {rank} of {world}, {_events} events: it returned {_got} where {_right} is
        right. In a record events come in the order of their ends.
    """
    comm, model = WatchedComm(), GPT(CONFIG)
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.1), stage=3, prefetch=1, comm=comm)
    for tokens_BT in data(comm.rank, 2):
        model(tokens_BT[:, :-1], tokens_BT[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    recorder = model.zero.recorder
    events = recorder.of_step(recorder.step - 1)
    got, right = answer(events), exposed_seconds(events)
    exposed = isinstance(got, (int, float)) and math.isclose(got, right, rel_tol=1e-4, abs_tol=1e-7)
    return {"exposed": exposed, "_events": len(events), "_got": got, "_right": f"{right:.9f}"}


@exercise(
    "8.4", "What a timeline exposes", minutes=30, difficulty=2, answer="exposed_seconds",
    cases=[(events,) for events in TIMELINES], trials=[Trial(observe=real_step, worlds=(2,))],
    mistakes={
        "all collectives": (lambda events: lasted(events, TRAVELS), {"computes": ()}),
        "waits": lambda events: lasted(events, ("wait",)),
        "waiting computes": {"stops": lambda wait, event: False},
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
        "not sorted": {"order": list},
    })
def exposed_seconds(events, *, travels=TRAVELS, computes=COMPUTES, stops=lambda wait, event: True, order=sorted,
                    weight=lambda sent, busy: bool(sent and not busy)):
    """Seconds in which something travels and nothing computes, segment by segment.
    stops(wait, event): does the rank not compute in this event during this wait?

    all collectives: You added up all collectives: what travels while the rank computes is hidden.
    waits: You added up the waits: a collective is also exposed where the rank does nothing at all, and a wait without a
        collective is not communication.
    waiting computes: You counted waiting as computing: a forward's time includes the waits inside it.
    own wait: You let a wait stop its own unit only: the rank stands still then, also in the root's forward around it.
    once each: You counted collectives that travel together once each: seconds in which several travel are the same
        seconds.
    nested: You subtracted a unit's compute and that of the unit around it: the root's forward contains those of the
        blocks, and the same second counted twice.
    sums: You subtracted all compute from all communication: only compute at the same time hides anything.
    hidden: You counted what is hidden: the part of the communication during which nothing computes is wanted.
    idle: You counted all seconds in which the rank does not compute: only those in which a collective is under way are
        exposed communication.
    others compute: You took every other event for computing: only `forward`, `backward` and `step` compute.
    forward alone: You left out `backward` or `step`: they compute as well.
    no step: You left out `step`: the optimizer computes as well.
    gathers alone: You left out `reduce_scatter`: it is communication as well.
    not sorted: You took starts and ends as they come: in a record events come in the order of their ends, so sort all
        times first.
    right: from ten timelines made by hand, and from a real step of stage 3 on two ranks.
    """
    exposed, times = 0.0, order(dict.fromkeys(event[edge] for event in events for edge in ("start", "end")))
    for start, end in pairwise(times):
        going = [event for event in events if event["start"] <= start and end <= event["end"]]
        waits = [event for event in going if event["verb"] == "wait"]
        sent = sum(event["verb"] in travels for event in going)
        busy = sum(event["verb"] in computes and not any(stops(wait, event) for wait in waits) for event in going)
        exposed += (end - start) * weight(sent, busy)
    return exposed
