"""The check of 17.1: how many micro-batches make a bubble small."""

import math
from fractions import Fraction

from ....checks import exercise


@exercise(
    "17.1", "How many micro-batches?", minutes=10, difficulty=1,
    cases=[(4, 10, 1), (8, 20, 1), (2, 50, 1), (4, 10, 2), (16, 25, 4), (8, 25, 1), (3, 30, 1), (4, 13, 1), (1, 5, 1), (4, 5, 3),
           (12, 11, 1), (12, 22, 1), (2, 25, 2), (1, 5, 2), (3, 5, 2), (4, 20, 3), (1, 50, 4)],
    mistakes={
        "of the ideal time": {"rest": lambda percent: 100},
        "p": {"lost": lambda ranks, chunks: ranks},
        "chunks forgotten": {"by_chunks": lambda chunks: 1},
        "chunks twice": {"by_chunks": lambda chunks: chunks**2},
        "more stages": {"lost": lambda ranks, chunks: ranks * chunks - 1, "by_chunks": lambda chunks: 1},
        "no groups": {"group": lambda ranks, chunks: 1},
        "always groups": {"group": lambda ranks, chunks: ranks},
        "rounded down": {"whole": math.floor},
        "rounded": {"whole": round},
        "in floats": {"need_of": lambda lost, percent, chunks: math.ceil(lost * (1 - percent / 100) / (percent / 100) / chunks)},
        "below": {"whole": lambda need: math.floor(need) + 1},
        "none": {"least": lambda ranks: 0},
        "at least p": {"least": lambda ranks: ranks},
    })
def micro_batches_for(ranks, percent, chunks, *, lost=lambda ranks, chunks: ranks - 1, rest=lambda percent: 100 - percent,
                      by_chunks=lambda chunks: chunks, group=lambda ranks, chunks: ranks if chunks > 1 else 1,
                      whole=math.ceil, least=lambda ranks: 1, need_of=None):
    """From (p − 1)/(v m + p − 1) ≤ share."""
    need = whole(Fraction(lost(ranks, chunks) * rest(percent), percent * by_chunks(chunks)))
    need = need_of(lost(ranks, chunks), percent, chunks) if need_of else need
    size = group(ranks, chunks)
    return -(-max(least(ranks), need) // size) * size
