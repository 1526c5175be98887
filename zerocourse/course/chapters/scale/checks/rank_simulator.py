"""The check of 25.5: a simulator of one rank."""

from ....checks import exercise

BLOCKS = [(1000, 4.0), (1003, 5.0), (502, 2.0)]
CASES = [(BLOCKS, 4, 1000.0, 0.0), (BLOCKS, 4, 125.0, 0.0), (BLOCKS, 4, 400.0, 0.125), (BLOCKS, 64, 4000.0, 0.0625),
         (BLOCKS, 1, 10.0, 1.0), ([(64, 1.0)], 8, 16.0, 0.0), ([(999, 1.0)] * 5, 2, 2000.0, 0.25),
         ([(4000, 3.0), (10, 8.0), (4000, 1.0), (10, 8.0)], 2, 1000.0, 0.0),
         ([(10, 1.0), (1000, 1.0), (10, 1.0)], 2, 100.0, 0.0), ([(300, 1.0), (200, 2.0), (300, 3.0)], 2, 50.0, 0.0),
         ([(300, 3.0), (10, 3.0), (300, 1.0)], 2, 20.0, 0.0)]


def there_and_back(count):
    """(block, pass) in the order in which they are computed."""
    return [(k, "forward") for k in range(count)] + [(k, "backward") for k in reversed(range(count))]


@exercise(
    "25.5", "A simulator of one rank", minutes=50, difficulty=3, cases=CASES,
    mistakes={
        "no prefetch": ({"ahead": False}, {"ahead": False, "reduced": "after the gather"}),
        "gathered again": {"again": True},
        "kept": {"keeps": True},
        "at once": {"queue": lambda free, at: at},
        "back in order": {"order": lambda count: there_and_back(count)[:count] + [(k, "backward") for k in range(count)]},
        "two links": {"lane_of": lambda verb: verb},
        "gather first": {"reduced": "after the gather"},
        "sent once": ({"others": lambda ranks: 1}, {"others": lambda ranks: min(1, ranks - 1)}),
        "no padding": ({"share": lambda numel, ranks: numel / ranks}, {"share": lambda numel, ranks: numel // ranks},
                       {"share": lambda numel, ranks: 2 * numel * (ranks - 1) // ranks / 2, "others": lambda ranks: 1}),
        "own slice too": {"others": lambda ranks: ranks if ranks > 1 else 0},
        "one latency": {"turns": lambda ranks: ranks > 1},
        "one more turn": {"turns": lambda ranks: ranks if ranks > 1 else 0},
        "fp32": {"size": 4},
        "backward as long": {"backward": 1},
        "ends with the computing": {"until": lambda now, free: now},
        "reduced at the end": {"reduced": "last"},
        "reduced too early": {"reduced": "begin"},
        "not reduced": {"reduced": None},
        "waits alone": {"stands": lambda seconds, compute, waits: sum(waits)},
        "the first wait": {"stands": lambda seconds, compute, waits: seconds - compute - waits[0]},
        "last of equals": {"longest": lambda waits: max(range(len(waits)), key=lambda at: (waits[at], at))},
    })
def simulate_rank(blocks, ranks, rate, latency, *, ahead=True, again=False, keeps=False, queue=max, order=there_and_back,
                  share=lambda numel, ranks: -(-numel // ranks), others=lambda ranks: ranks - 1, turns=lambda ranks: ranks - 1,
                  size=2, backward=2, until=max, reduced="end", stands=lambda seconds, compute, waits: seconds - compute,
                  longest=lambda waits: waits.index(max(waits)), lane_of=lambda verb: ""):
    """What a rank sends, how long it takes, how long it does not compute, and where it waits longest."""
    now = sent = 0
    free, pending = {}, []

    def issue(block, at, verb="reduce_scatter"):
        nonlocal sent
        nbytes = others(ranks) * size * share(blocks[block][0], ranks)
        sent += nbytes
        lane = lane_of(verb)
        free[lane] = queue(free.get(lane, 0), at) + nbytes / rate + turns(ranks) * latency
        return free[lane]

    visits, waits, compute = order(len(blocks)), [], 0
    arrives = issue(0, 0, "all_gather")
    for place, (block, phase) in enumerate(visits):
        begins = max(now, arrives)
        waits.append(begins - now)
        seconds = blocks[block][1] * (backward if phase == "backward" else 1)
        if reduced == "begin" and phase == "backward":
            issue(block, begins)
        following = visits[place + 1][0] if place + 1 < len(visits) else None
        gathers = following is not None and (following != block or again) and not (keeps and place + 1 >= len(blocks))
        if gathers and ahead:
            arrives = issue(following, begins, "all_gather")
        while pending:
            issue(*pending.pop())
        now, compute = begins + seconds, compute + seconds
        if reduced == "end" and phase == "backward":
            issue(block, now)
        if reduced == "after the gather" and phase == "backward":
            pending.append((block, now))
        if gathers and not ahead:
            arrives = issue(following, now, "all_gather")
    for block in reversed(range(len(blocks))) if reduced == "last" else [block for block, _ in pending]:
        issue(block, now)
    ends = until(now, max(free.values()))
    return {"sent": sent, "seconds": ends, "idle": stands(ends, compute, waits), "waits_for": visits[longest(waits)]}
