"""The checks of chapter 08, overlap: here 8.1 and 8.2, the bound and what to gather ahead; the two timelines, the
forward that looks ahead and the simulator have files of their own.
"""

import operator

from .....zero.passes.schedule import Prefetcher
from ....checks import Trial, When, exercise

# 8.1 ----------------------------------------------------------------------------------------------------------------

def overlapped(C, M, e):
    """Seconds of a step with perfect overlap: C of compute, M of communication, of which e are exposed."""
    return e + max(C, M - e)


@exercise(
    "8.1", "The bound", minutes=10, difficulty=1,
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
    """The step's time without overlap over its time with perfect overlap."""
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


def place_of_name(recorded, so_far):
    return recorded.index(so_far[-1])


def last_place_of_name(recorded, so_far):
    return len(recorded) - 1 - recorded[::-1].index(so_far[-1])


def next_places(recorded, here, depth):
    return recorded[here + 1:here + 1 + depth]


def as_they_are(coming, so_far, depth):
    return coming


def each_or_now(coming, so_far, depth):
    return list(dict.fromkeys(coming))


def each_once(coming, so_far, depth):
    return [unit for unit in dict.fromkeys(coming) if unit != so_far[-1]]


def by_the_package(recorded, so_far, depth):
    """The same with the package's Prefetcher, which leaves the repetitions to its user."""
    prefetcher, ahead = Prefetcher(depth), []
    for units in (recorded, so_far):
        prefetcher.start()
        for unit in units:
            ahead = prefetcher.next_after(unit)
    return each_once(ahead, so_far, depth)


def sample_order(random):
    recorded = random.choices("abcde", k=random.randint(1, 8))
    so_far = recorded[:random.randint(1, len(recorded))]
    if random.random() < 0.3:
        so_far = [*so_far[:-1], random.choice("abcdef")]
    return recorded, so_far, random.randint(0, 4)


@exercise(
    "8.2", "What comes next", minutes=20, difficulty=2, own=by_the_package,
    replaces=("zerocourse.zero.passes.schedule:Prefetcher.next_after",), sample=sample_order,
    cases=[(ORDER, ORDER[:2], 2), (ORDER, ORDER[:1], 1), (ORDER, ORDER[:2], 0), (ORDER, ORDER[:4], 3),
           (ORDER, ORDER, 2), (NAMES, NAMES[:1], 5), (NAMES, NAMES[:2], 3)],  # plain
    trials=[Trial([(TWICE, TWICE[:4], 2), (TWICE, TWICE[:2], 2), (TWICE, TWICE[:3], 3), (TWICE, TWICE[:1], 4),
                   (ENDS_TWICE, ENDS_TWICE[:1], 5), (ENDS_TWICE, ENDS_TWICE[:2], 4)]),  # units that run twice
            Trial([(ORDER, ["root", "h.1"], 2), (ORDER, [*ORDER[:3], "new"], 1), (ORDER, ["root", "new", "h.1"], 2),
                   (ORDER, [*ORDER, "h.0"], 2), ([], ["root"], 2)])],  # a pass that is not like the last
    mistakes={
        "itself": tuple({"reach": lambda recorded, here, depth, more=more: recorded[here:here + depth + more],
                         "name": name} for more in (0, 1) for name in (as_they_are, each_or_now)),
        "one more": {"reach": lambda recorded, here, depth: recorded[here + 1:here + 2 + depth]},
        "one less": {"reach": lambda recorded, here, depth: recorded[here + 1:here + depth]},
        "all that is left": {"reach": lambda recorded, here, depth: recorded[here + 1:]},
        "end of the slice": ({"reach": lambda recorded, here, depth: recorded[here + 1:depth]},
                             {"reach": lambda recorded, here, depth: recorded[here + 1:depth + 1]}),
        "over the end": {"reach": lambda recorded, here, depth: [recorded[here + 1 + k] for k in range(depth)]},
        "place behind": {"place": lambda recorded, so_far: present_place(recorded, [*so_far, so_far[-1]])},
        "place of its name": tuple({"place": place, "name": name} for place in (place_of_name, last_place_of_name)
                                   for name in (each_once, each_or_now, as_they_are)),
        "in a circle": {"reach": lambda recorded, here, depth: (recorded * (depth + 2))[here + 1:here + 1 + depth]},
        "gave up": {"place": lambda recorded, so_far: present_place(recorded, so_far)
                    if recorded[:len(so_far)] == so_far else None},
        "trusted": {"place": lambda recorded, so_far: len(so_far) - 1},
        "beyond the record": {"place": lambda recorded, so_far: len(so_far) - 1
                              if recorded[len(so_far) - 1] == so_far[-1] else None},
        "named twice": ({"name": as_they_are},
                        {"name": lambda coming, so_far, depth: [unit for unit in coming if unit != so_far[-1]]}),
        "now": {"name": each_or_now},
        "ran already": {"name": lambda coming, so_far, depth: [
            unit for unit in dict.fromkeys(coming) if unit not in so_far]},
        "farther": {"reach": lambda recorded, here, depth: recorded[here + 1:],
                    "name": lambda *case: each_once(*case)[:case[-1]]},
        "order": ({"name": lambda *case: each_once(*case)[::-1]}, {"name": lambda *case: sorted(each_once(*case))},
                  When("returned", lambda got, want: isinstance(got, list) and sorted(map(str, got)) == sorted(want))),
    })
def gather_ahead(recorded, so_far, depth, *, place=present_place, reach=next_places, name=each_once):
    """The units to gather now, the nearest first."""
    here = place(recorded, so_far)
    return [] if here is None else name(reach(recorded, here, depth), so_far, depth)
