"""The check of 13.4: where first fit places blocks of memory, and when it gives up."""

from ....checks import Trial, exercise

ROUND = [("a", 3), ("b", 1), ("c", 1), ("d", 1), ("a", 0), ("c", 0), ("e", 3), ("f", 1)]
SIMPLE = [("a", 4), ("b", 3), ("c", 2)]
REUSED = [("a", 4), ("b", 3), ("a", 0), ("c", 2), ("d", 2), ("e", 1)]
TWO_HOLES = [("a", 4), ("b", 1), ("c", 2), ("d", 1), ("a", 0), ("c", 0), ("e", 2), ("f", 2)]
MERGED = [("a", 2), ("b", 2), ("c", 2), ("d", 2), ("a", 0), ("b", 0), ("e", 4), ("c", 0), ("e", 0), ("f", 6)]
FULL = [("a", 2), ("b", 2), ("c", 2), ("a", 0), ("c", 0), ("d", 3), ("e", 2)]  # enough is free, but not in one piece
LOW_LATER = [("a", 2), ("b", 2), ("c", 2), ("a", 0), ("d", 1), ("c", 0), ("e", 1), ("f", 1)]


def large_enough(hole, nbytes, blocks=()):
    return hole[1] - hole[0] >= nbytes


def lowest(fitting, last):
    return fitting[0]


def goes_round(fitting, last):
    """The next hole behind the block that was placed last."""
    return next((hole for hole in fitting if hole[0] >= last), fitting[0])


@exercise(
    "13.4", "Where does the block go?", minutes=30, difficulty=2,
    replaces=("zerocourse.activations.arena:*",),
    trials=[Trial([(SIMPLE, 12), (SIMPLE, 9), (REUSED, 12), (ROUND, 8)]), Trial([(TWO_HOLES, 12), (LOW_LATER, 12), (MERGED, 8)]),
            Trial([(FULL, 6), (SIMPLE, 8)])],
    mistakes={
        "best fit": {"pick": lambda fitting, last: min(fitting, key=lambda hole: hole[1] - hole[0])},
        "worst fit": {"pick": lambda fitting, last: max(fitting, key=lambda hole: hole[1] - hole[0])},
        "next fit": {"pick": goes_round},
        "from the top": {"pick": lambda fitting, last: fitting[-1]},
        "never reused": {"reuse": False},
        "not merged": {"merge": False},
        "one too many": {"fits": lambda hole, nbytes, blocks: hole[1] - hole[0] > nbytes},
        "last byte": {"end": lambda size: size - 1},
        "before the lowest": {"fits": lambda hole, nbytes, blocks: large_enough(hole, nbytes) and (hole[0] or not blocks)},
        "no end": {"end": lambda size: 1 << 40},
        "bytes free": {"fits": lambda hole, nbytes, blocks: True},
        "goes on": {"stops": False},
    })
def first_fit(events, size, *, pick=lowest, reuse=True, merge=True, fits=large_enough,
              end=lambda size: size, stops=True):
    """The addresses of the blocks in order, None for one that does not fit."""
    free, blocks, places, last = [(0, end(size))], {}, [], 0
    for name, nbytes in events:
        if not nbytes:
            if reuse:
                free = joined(free + [blocks.pop(name)], merge)
            continue
        fitting = [hole for hole in free if fits(hole, nbytes, blocks)]
        if not fitting:
            places.append(None)
            if stops:
                break
            blocks[name] = (0, 0)
            continue
        last, stop = hole = pick(fitting, last)
        free = [(last + nbytes, stop) if each == hole else each for each in free]
        free = [each for each in free if each[1] > each[0]]
        blocks[name] = (last, last + nbytes)
        places.append(last)
    return places


def joined(holes, merge):
    """The holes from the lowest on, and those that touch each other as one."""
    found = []
    for start, stop in sorted(holes):
        if merge and found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        elif stop > start:
            found.append((start, stop))
    return found
