"""A step of stage 3 on two lanes, one that computes and a link, and the ways to get it wrong (exercise 8.6)."""

from ..words import a, value_text

EVEN = [(1.0, 2.0, 8.0)] * 4  # forward seconds, backward seconds, bytes
MIXED = [(2.0, 4.0, 4.0), (0.5, 1.0, 16.0), (1.0, 3.0, 8.0), (4.0, 6.0, 2.0)]
CASES = [([(1.0, 2.0, 4.0)], 0, 4.0, 4.0), (EVEN[:2], 0, 8.0, 8.0), (EVEN, 0, 8.0, 8.0), (EVEN, 1, 8.0, 8.0),
         (EVEN, 1, 8.0, 4.0), (EVEN, 1, 8.0, 32.0), (EVEN, 2, 16.0, 4.0), (EVEN, 2, 24.0, 4.0), (EVEN, 3, 1000.0, 8.0),
         (EVEN, 9, 1.0, 4.0), (MIXED, 0, 1.0, 4.0), (MIXED, 1, 10.0, 4.0), (MIXED, 2, 20.0, 4.0),
         (MIXED, 1, 6.0, 16.0), (MIXED, 3, 1000.0, 2.0)]


def play(blocks, prefetch, bucket_bytes, rate, *, keeps=False, forwards=False, wide=False, blind=False, deeper=0,
         only_in_pass=False, loses_last=False, more_than=False, one_by_one=False, all_at_end=False, gathers_first=False,
         stands_still=False, from_zero=False):
    """The events of a step, (what, block, start, end); the switches are misunderstandings."""
    n, events, link = len(blocks), [], 0.0
    back = range(n) if forwards else range(n - 1, -1, -1)
    plan = [("forward", i) for i in range(n)] + [("backward", i) for i in back]
    here, filled, position_done = {}, 0.0, 0.0

    def travel(what, i, size, issued):
        nonlocal link
        start = issued if wide else max(link, issued)
        end = start + size / rate
        link = max(link, end)
        events.append((what, i, start, end))
        return end

    def gathers(number, issued):
        last = min(number + prefetch + deeper, n - 1 if only_in_pass and number < n else 2 * n - 1)
        for position in range(number, max(number, last) + 1):
            if position not in here:
                i = plan[position][1]
                known = keeps and position >= n
                here[position] = 0.0 if known else travel("gather", i, blocks[i][2], 0.0 if from_zero else issued)

    for number, (what, i) in enumerate(plan):
        gathers(number, position_done)
        start = position_done if blind else max(position_done, here[number])
        position_done = start + blocks[i][0 if what == "forward" else 1]
        events.append((what, i, start, position_done))
        if what == "backward":
            filled, last = filled + blocks[i][2], number == 2 * n - 1
            full = filled > bucket_bytes if more_than else filled >= bucket_bytes
            if (one_by_one or full and not all_at_end) or last and not loses_last:
                if gathers_first and not last:
                    gathers(number + 1, position_done)
                end = travel("reduce", i, filled, position_done)
                position_done = max(position_done, end) if stands_still else position_done
                filled = 0.0
    return events


MISTAKES = [
    ("You kept the parameters from the forward: stage 3 frees them, and the backward gathers them again.",
     {"keeps": True}),
    ("The backward goes through the blocks from the last to the first.", {"forwards": True}),
    ("You let several messages travel at the same time, each at the full rate: the link sends one after the other.",
     {"wide": True}),
    ("A block computed before its parameters were there: it waits for its gather.", {"blind": True}),
    ("You gathered one block farther ahead than `prefetch`.", {"deeper": 1}),
    ("You gathered one block less far ahead than `prefetch`.", {"deeper": -1}),
    ("You stopped looking ahead at the end of the forward: the first gathers of the backward can travel during the "
     "last forwards.", {"only_in_pass": True}),
    ("The last bucket never left: what is in it after the last backward has to travel too.", {"loses_last": True}),
    ("You closed a bucket only when it had more than `bucket_bytes`: at least so many are enough.",
     {"more_than": True}),
    ("You sent every block's gradients by themselves: they wait in the bucket until it has `bucket_bytes`.",
     {"one_by_one": True}),
    ("You sent all gradients at the end: a bucket leaves as soon as it has `bucket_bytes`.", {"all_at_end": True}),
    ("You put the next gather before the bucket that is full at the same moment: the bucket comes first.",
     {"gathers_first": True}),
    ("The compute lane stood still while a bucket travelled: only a gather is waited for.", {"stands_still": True}),
    ("All gathers were issued at the start: a gather is issued when a block at most `prefetch` places before it is "
     "reached.", {"from_zero": True}),
]
NAMES = ("forward", "backward", "gather", "reduce")


def tidy(events):
    """Events in the order of their starts, as tuples; something else stays as it is."""
    good = isinstance(events, (list, tuple)) and all(isinstance(e, (list, tuple)) and len(e) == 4 for e in events)
    if not good or not all(isinstance(value, (int, float)) for e in events for value in e[1:]):
        return events
    return sorted(((str(e[0]), *e[1:]) for e in events), key=lambda e: (e[2], e[3], e[0], e[1]))


def first_difference(got, right) -> str:
    """Where the events differ for the first time, in words."""
    form = "a list of events (what, block, start, end) is wanted"
    if not isinstance(got, (list, tuple)):
        return f"it returned {a(got)}, {value_text(got, 60)}: {form}."
    if got != tidy(got) or any(not isinstance(e, (list, tuple)) or len(e) != 4 for e in got):
        return f"it returned {value_text(got, 80)}: {form}."
    if strange := next((e for e in got if e[0] not in NAMES), None):
        return f"it has an event {strange[0]!r}: there are {', '.join(NAMES)}."
    for number, event in enumerate(right):
        if number < len(got) and _same(got[number], event):
            continue
        same_kind = sum(_key(other) == _key(event) for other in right[:number])
        mine = [other for other in got if _key(other) == _key(event)]
        text = f"{event[0]} {event[1]} runs from {event[2]:g} to {event[3]:g}"
        if len(mine) <= same_kind:
            return f"{text}, and it has no such event."
        if not _same(mine[same_kind], event):
            return f"{text}, and it says from {mine[same_kind][2]:g} to {mine[same_kind][3]:g}."
        extra = next((other for other in got if not any(_same(other, each) for each in right)), got[number])
        return f"it has {extra[0]} {extra[1]} from {extra[2]:g} to {extra[3]:g}, which is one too many."
    extra = got[len(right)]
    return (f"it has {len(got)} events where {len(right)} are right: behind them comes {extra[0]} {extra[1]} from "
            f"{extra[2]:g} to {extra[3]:g}.")


def _key(event):
    return event[0], event[1]


def _same(one, other) -> bool:
    return _key(one) == _key(other) and all(abs(x - y) < 1e-9 for x, y in zip(one[2:], other[2:], strict=True))
