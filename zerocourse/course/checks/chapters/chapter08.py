"""The checks of chapter 08, overlap: the bound, what to gather ahead and what it takes, what a timeline exposes."""

import math

from ....zero.schedule import Prefetcher
from ..compare import same
from ..exercise import exercise
from ..lab import Lab, explanation
from ..words import call_text, value_text
from . import lanes
from .exposure import COMPUTES, TIMELINES, TRAVELS, each_alone, exposed_in, lasted, pairs, step_events
from .run_ahead import judge_ahead, run_ahead

# 8.1 ----------------------------------------------------------------------------------------------------------------

def bound(compute, communication, exposed):
    return (compute + communication) / (exposed + max(compute, communication - exposed))


@exercise("8.1", "The bound", minutes=10, difficulty=1, answer="speedup_bound")
def speedup_bound(lab: Lab):
    plain = [(1.0, 1.0, 0.0), (4.0, 1.0, 0.0), (1.0, 4.0, 0.0), (8.0, 0.5, 0.0)]
    mistakes = [
        ("You returned the seconds of the step: the speed-up is the time without overlap over the time with it.",
         lambda C, M, e: e + max(C, M - e)),
        ("You divided by the shorter one: with perfect overlap the longer one is what remains.",
         lambda C, M, e: (C + M) / min(C, M)),
        ("You turned the fraction over: a speed-up is the old time over the new.",
         lambda C, M, e: (e + max(C, M - e)) / (C + M)),
        ("You divided the longer one by the shorter.", lambda C, M, e: max(C, M) / min(C, M)),
        ("You took 2 for the bound: that is right only where both take equally long.", lambda C, M, e: 2.0),
        ("You let all communication hide behind the compute: when it is longer, a part of it remains.",
         lambda C, M, e: (C + M) / C),
    ]
    lab.compare(plain, bound, mistakes, exact=False)
    lab.compare([(1.0, 1.0, 0.25), (4.0, 1.0, 0.5), (1.0, 4.0, 0.5), (2.0, 2.0, 2.0), (3, 0, 0)], bound, [
        ("You left out the exposed seconds: they are there before or after all compute.",
         lambda C, M, e: (C + M) / max(C, M)),
        ("You counted the exposed seconds twice: they belong to the communication, so only M - e is left to hide.",
         lambda C, M, e: (C + M) / (e + max(C, M))),
        ("You took the exposed seconds away and never added them: the step lasts that much longer.",
         lambda C, M, e: (C + M) / max(C, M - e)),
        ("You added the exposed seconds to the step without overlap too: there they are part of M already.",
         lambda C, M, e: (C + M + e) / (e + max(C, M - e))), *mistakes], exact=False)
    return "at most 2, where both take equally long and nothing is exposed."


# 8.2 ----------------------------------------------------------------------------------------------------------------

def ahead(recorded, so_far, depth, *, from_here=False, first=False, wraps=False, trusts=False, repeats=False,
          farther=False, now=False, more=0):
    """What to gather; the switches are misunderstandings."""
    here, unit = len(so_far) - 1, so_far[-1]
    if recorded[here:here + 1] != [unit] and not trusts:
        if not (first and unit in recorded):
            return []
    if first and unit in recorded:
        here = recorded.index(unit)
    line = recorded + recorded if wraps else recorded
    coming = line[here + (not from_here):]
    if farther:
        return list(dict.fromkeys(other for other in coming if other != unit))[:depth]
    coming = coming[:depth + more]
    if repeats:
        return coming
    return [other for other in dict.fromkeys(coming) if other != unit or now or from_here]


def aheads(**how):
    return lambda *case: ahead(*case, **how)


def by_the_package(recorded, so_far, depth):
    """The same with the package's Prefetcher, which leaves the repetitions to its user."""
    prefetcher, found = Prefetcher(depth), []
    for units in (recorded, so_far):
        prefetcher.start()
        for unit in units:
            found = prefetcher.next_after(unit)
    return [unit for unit in dict.fromkeys(found) if unit != so_far[-1]]


def _sample_order(random):
    recorded = random.choices("abcde", k=random.randint(1, 8))
    so_far = recorded[:random.randint(1, len(recorded))]
    if random.random() < 0.3:
        so_far = [*so_far[:-1], random.choice("abcdef")]
    return recorded, so_far, random.randint(0, 4)


@exercise("8.2", "What comes next", minutes=20, difficulty=2, answer="gather_ahead", own=by_the_package,
          replaces=("zerocourse.zero.schedule:Prefetcher.next_after",), sample=_sample_order)
def gather_ahead(lab: Lab):
    order = ["root", "h.0", "h.1", "h.2", "h.3"]
    cases = [(order, order[:2], 2), (order, order[:1], 1), (order, order[:2], 0), (order, order[:4], 3),
             (order, order, 2)]
    twice = ["root", "emb", "h.0", "emb", "h.1", "h.2"]
    cases += [(twice, twice[:4], 2), (twice, twice[:2], 2), (twice, twice[:3], 3), (twice, twice[:1], 4)]
    cases += [(order, ["root", "h.1"], 2), (order, [*order[:3], "new"], 1), (order, [*order, "h.0"], 2),
              (order, ["root", "new", "h.1"], 2), ([], ["root"], 2)]
    lab.compare(cases, ahead, [
        ("You began with the unit that computes now: it is whole already.", aheads(from_here=True, repeats=True)),
        ("You began with the unit that computes now: it is whole already.", aheads(from_here=True)),
        ("You gathered one unit more than `depth`.", aheads(more=1)),
        ("You gathered one unit less than `depth`.", aheads(more=-1)),
        ("You gathered everything that is left: only the next `depth` units, since each takes memory.",
         aheads(more=99)),
        ("You looked for the unit's first place in the recorded order: a unit may run twice, so take the place from "
         "how many have run.", aheads(first=True)),
        ("At the end you began with the start of the order again: the next pass begins when it begins.",
         aheads(wraps=True)),
        ("You gave up because another unit ran earlier: only the present place counts.",
         lambda recorded, so_far, depth: ahead(recorded, so_far, depth) if recorded[:len(so_far)] == so_far else []),
        ("You trusted the record although another unit runs now: then nobody knows what comes, and nothing is "
         "gathered.",
         aheads(trusts=True)),
        ("You named a unit again that is whole now, or named one twice: each needs one gather.", aheads(repeats=True)),
        ("You named the unit that computes now, which comes again later: it is whole now.", aheads(now=True)),
        ("You looked farther than `depth` places to make up for a unit that comes twice: more blocks would be whole at "
         "once than `depth` allows.", aheads(farther=True)),
        ("The order is wrong: the nearest unit is gathered first.", lambda *case: ahead(*case)[::-1]),
    ])
    return "the nearest first, none twice, and nothing where the record does not fit."


# 8.3 ----------------------------------------------------------------------------------------------------------------

def windows(root, blocks, depth, *, size=1, cut=True):
    """Bytes gathered while each block computes."""
    line = blocks if cut else blocks + blocks
    return [root + sum(line[i:i + depth + size]) for i in range(len(blocks))]


def deepest_of(root, blocks, room, peak=lambda *case: max(windows(*case)), fits=lambda need, room: need <= room,
               last=1, none=None):
    depths = [depth for depth in range(len(blocks) + 1 - last) if fits(peak(root, blocks, depth), room)]
    return max(depths, default=none)


def deepest_by(**how):
    return lambda *case: deepest_of(*case, **how)


@exercise("8.3", "How deep a prefetch fits", minutes=20, difficulty=2, answer="deepest_prefetch",
          replaces=("zerocourse.zero.schedule:Prefetcher.next_after",))
def deepest_prefetch(lab: Lab):
    uneven = [10, 40, 20, 30, 10, 5]
    cases = [(0, [10, 10, 10, 10], 25), (0, [10, 10, 10, 10], 30), (7, [10, 10, 10, 10], 26), (5, uneven, 45),
             (5, uneven, 65), (5, uneven, 94), (5, uneven, 95), (5, uneven, 104), (5, uneven, 115), (0, [10], 10),
             (5, uneven, 10**9), (20, [10, 10], 29), (0, [10, 10], 9), (4, [1, 1, 50], 54), (4, [50, 1, 1], 55),
             (0, [10, 10, 50], 20)]
    lab.compare(cases, deepest_of, [
        ("You left out the root: it stays whole during the whole forward.", deepest_by(
            peak=lambda root, blocks, depth: max(windows(0, blocks, depth)))),
        ("Each block must fit by itself, also the last one, behind which there is nothing to gather.", deepest_by(
            peak=lambda root, blocks, depth: max(windows(root, blocks, depth)[:-1] or [0]))),
        ("You counted `depth` blocks: the block that computes is whole too, so it is depth + 1.", deepest_by(
            peak=lambda root, blocks, depth: max(windows(root, blocks, depth, size=0)))),
        ("You counted depth + 2 blocks: the block before is freed as soon as it has computed.", deepest_by(
            peak=lambda root, blocks, depth: max(windows(root, blocks, depth, size=2)))),
        ("You took the largest block depth + 1 times: blocks differ, so look at those that follow each other.",
         deepest_by(peak=lambda root, blocks, depth: root + (depth + 1) * max(blocks))),
        ("You took the average block depth + 1 times: the peak is where large blocks follow each other.", deepest_by(
            peak=lambda root, blocks, depth: root + (depth + 1) * sum(blocks) / len(blocks))),
        ("You looked at the first depth + 1 blocks only: the peak may come later.", deepest_by(
            peak=lambda root, blocks, depth: windows(root, blocks, depth)[0])),
        ("You took the depth + 1 largest blocks: only blocks that follow each other are whole together.", deepest_by(
            peak=lambda root, blocks, depth: root + sum(sorted(blocks)[::-1][:depth + 1]))),
        ("After the last block you went on with the first: a pass ends there.", deepest_by(
            peak=lambda root, blocks, depth: max(windows(root, blocks, depth, cut=False)))),
        ("You want room to be left: what fills it to the last byte fits.", deepest_by(
            fits=lambda need, room: need < room)),
        ("With n blocks nothing is left to gather ahead beyond a depth of n - 1: that is the most.",
         deepest_by(last=0)),
        ("Where not even one block fits, None is right: a depth of 0 still needs the block that computes.",
         deepest_by(none=0)),
        ("Where not even one block fits, None is right.", deepest_by(none=-1)),
    ])
    return "the root, the block that computes, and as many ahead as the room allows."


# 8.4 ----------------------------------------------------------------------------------------------------------------

@exercise("8.4", "What a timeline exposes", minutes=30, difficulty=2, answer="exposed_seconds")
def exposed_seconds(lab: Lab):
    lab.compare([(events,) for events in TIMELINES], exposed_in, [
        ("You added up all collectives: what travels while the rank computes is hidden.",
         lambda events: lasted(events, TRAVELS)),
        ("You added up the waits: a collective is also exposed where the rank does nothing at all, and a wait without "
         "a collective is not communication.", lambda events: lasted(events, ("wait",))),
        ("You counted waiting as computing: a forward's time includes the waits inside it.",
         lambda events: exposed_in(events, waits=False)),
        ("You counted collectives that travel together once each: seconds in which several travel are the same "
         "seconds.",
         each_alone),
        ("You subtracted a unit's compute and that of the unit around it: the root's forward contains those of the "
         "blocks, and the same second counted twice.", pairs),
        ("You subtracted all compute from all communication: only compute at the same time hides anything.",
         lambda events: max(0.0, lasted(events, TRAVELS) - lasted(events, COMPUTES))),
        ("You counted what is hidden: the part of the communication during which nothing computes is wanted.",
         lambda events: exposed_in(events, computes=(), waits=False)
         - exposed_in(events)),
        ("You took every other event for computing: only `forward`, `backward` and `step` compute.",
         lambda events: exposed_in(events, computes=(*COMPUTES, "reshard"))),
        ("You left out `backward` or `step`: they compute as well.",
         lambda events: exposed_in(events, computes=("forward",))),
        ("You left out `step`: the optimizer computes as well.",
         lambda events: exposed_in(events, computes=("forward", "backward"))),
    ], exact=False)
    for rank, found in enumerate(lab.run(step_events, world=2)):
        right, got = exposed_in(found["events"]), found["answer"]
        if not isinstance(got, (int, float)) or not math.isclose(got, right, rel_tol=1e-4, abs_tol=1e-7):
            lab.wrong(f"a real step of stage 3 on rank {rank} of 2, {len(found['events'])} events: it returned "
                      f"{value_text(got)} where {right:.9f} is right. In a record events come in the order of their "
                      "ends.")
    return "from nine timelines made by hand, and from a real step of stage 3 on two ranks."


# 8.5 ----------------------------------------------------------------------------------------------------------------

@exercise("8.5", "A forward that looks ahead", minutes=35, difficulty=2, answer="forward_ahead", timeout=15,
          replaces=("zerocourse.zero.schedule:Prefetcher.next_after", "zerocourse.zero.shard:shard"))
def forward_ahead(lab: Lab):
    for world in (2, 3):
        for depth in (1, 0, 2, 7):
            for rank, found in enumerate(lab.run(run_ahead, depth, world=world)):
                judge_ahead(lab, found, depth, f"depth {depth}, rank {rank} of {world}")
    return "every gather left in time, at most depth + 1 layers were whole, and each was gathered once."


# 8.6 ----------------------------------------------------------------------------------------------------------------

@exercise("8.6", "Two lanes", minutes=60, difficulty=3, answer="simulate")
def simulate(lab: Lab):
    cases = lanes.CASES
    got = [lanes.tidy(value) for value in lab.calls(cases)]
    right = [lanes.tidy(lanes.play(*case)) for case in cases]
    bad = [i for i in range(len(cases)) if not same(got[i], right[i], exact=False)]
    if bad:
        first = bad[0]
        said = f"`{call_text('simulate', cases[first])}`: {lanes.first_difference(got[first], right[first])}"
        mistakes = [(sentence, lambda *case, how=how: lanes.tidy(lanes.play(*case, **how)))
                    for sentence, how in lanes.MISTAKES]
        lab.wrong(f"{said} {explanation(cases, got, bad, mistakes)}".rstrip())
    return "every event of every step. Now you can ask how long a step takes before you buy the link."
