"""The check of 23.w2, which chapter 23 asks for itself: where tokens lie in a cache of blocks."""

from ....checks import exercise


def slots_of(table, start, end, size):
    """Where keys and values of tokens `start` to `end` of a sequence lie (without `end`).

    table: its blocks, in order; block number b has the slots from b · size on.
    Returns a list of slots, one for each token.
    """
    return [table[place // size] * size + place % size for place in range(start, end)]


@exercise(
    "23.w2", "A table of blocks", minutes=8, difficulty=1, answer="slots_of", own=slots_of,
    cases=[([5, 2, 7], 0, 12, 4), ([5, 2, 7], 3, 9, 4), ([0, 1], 0, 6, 3), ([9], 2, 4, 8), ([4, 3, 1], 1, 3, 1), ([6, 2], 5, 5, 4)],
    mistakes={
        "as if in order": {"block": lambda table, number: number},
        "blocks alone": {"inside": lambda place, size: 0},
        "from the start": {"counted": lambda start, end: range(end - start)},
        "the end too": {"counted": lambda start, end: range(start, end + (start < end))},
        "block as slot": {"times": lambda block, size: block},
        "turned": {"inside": lambda place, size: size - 1 - place % size},
        "first block": {"block": lambda table, number: table[0] + number},
    })
def slots_of_tokens(table, start, end, size, *, block=lambda table, number: table[min(number, len(table) - 1)],
                    inside=lambda place, size: place % size, counted=range, times=lambda block, size: block * size):
    """A list of slots."""
    return [times(block(table, place // size), size) + inside(place, size) for place in counted(start, end)]
