"""The check of 9.3: where ranks that hang have gone separate ways."""

from collections import Counter
from functools import partial
from itertools import zip_longest

from ....checks import Trial, exercise

BEGIN = ["all_gather h.0", "all_gather h.1", "reduce_scatter h.1", "reduce_scatter h.0"]


def without(calls, place):
    return calls[:place] + calls[place + 1 :]


def with_call(calls, place, call):
    return [*calls[:place], call, *calls[place + 1 :]]


def minority(of_ranks, silence=True):
    """The ranks that do not what most do; all of them where no call has more ranks than any other."""
    (call, most), *others = Counter(call for call in of_ranks if silence or call).most_common()
    tied = any(number == most for _, number in others)
    return [rank for rank, other in enumerate(of_ranks) if tied or other != call]


def differs(of_ranks):
    return len(set(of_ranks)) > 1


@exercise(
    "9.3", "Read a desync report", minutes=20, difficulty=2,
    cases=[([BEGIN, BEGIN, BEGIN],), ([BEGIN, BEGIN, with_call(BEGIN, 2, "reduce_scatter h.0")],),
           ([BEGIN, with_call(BEGIN, 1, "reduce_scatter h.1"), BEGIN],)],
    trials=[Trial([([BEGIN, without(BEGIN, 2), BEGIN],), ([BEGIN, BEGIN, BEGIN[:3]],), ([BEGIN[:1], BEGIN, BEGIN],),
                   ([with_call(BEGIN, 0, "broadcast h.0"), BEGIN, BEGIN],), ([BEGIN, with_call(BEGIN, 1, "all_gather h.2")],),
                   ([BEGIN, BEGIN[:2]],), ([BEGIN, [BEGIN[1], BEGIN[0], *BEGIN[2:]], BEGIN],), ([[], [], []],),
                   ([BEGIN, BEGIN, without(BEGIN, 3), without(BEGIN, 3)],),
                   ([BEGIN[:3], BEGIN[:3], BEGIN],),  # most have ended
                   ([BEGIN, BEGIN, *(with_call(BEGIN, 1, f"all_gather h.{unit}") for unit in (4, 5, 6))],),  # most, and not half
                   ([BEGIN[:1], BEGIN[:2], BEGIN[:3]],),  # most have ended, at lengths that differ
                   ([[call] for call in BEGIN[:3]],), ([[call] for call in (*BEGIN[:2], *BEGIN[:3])],)])],
    mistakes={
        "from 0": {"first": 0},
        "too short": {"together": zip},
        "last one": {"which": lambda splits: splits[-1]},
        "like rank 0": {"odd": lambda of_ranks: [rank for rank, call in enumerate(of_ranks) if call != of_ranks[0]]},
        "the many": {"odd": lambda of_ranks: sorted({*range(len(of_ranks))} - {*minority(of_ranks)})},
        "in a tie": {"odd": lambda of_ranks: [rank for rank, call in enumerate(of_ranks)
                                              if call != Counter(of_ranks).most_common(1)[0][0]]},
        "in a tie of three": {"odd": lambda of_ranks: minority(of_ranks) if len(set(of_ranks)) == 2 else
                              [rank for rank, call in enumerate(of_ranks) if call != Counter(of_ranks).most_common(1)[0][0]]},
        "silence left out": {"odd": partial(minority, silence=False)},
        "ends alone": {"shortest_first": True},
        "verbs alone": {"seen": lambda call: call and call.split()[0]},
        "units alone": {"seen": lambda call: call and call.split()[1]},
        "any order": {"look": lambda calls: [sorted(of_rank) for of_rank in calls]},
    })
def first_split(calls, *, first=1, together=zip_longest, which=lambda splits: splits[0], odd=minority,
                seen=lambda call: call, look=lambda calls: calls, shortest_first=False):
    """The number of the first call that differs, and who differs."""
    places = [[seen(call) for call in place] for place in together(*look(calls))]
    splits = [(number, odd(place)) for number, place in enumerate(places, first) if differs(place)]
    if shortest_first and splits and splits[0][0] > min(map(len, calls)):
        return splits[0][0], odd([len(each) for each in calls])
    return which(splits) if splits else None
