"""The checks of 25.1 and 25.2: how many ranks a step needs, and aligned slices that are even on any number of ranks."""

from math import inf

from .....formulas import states
from ....checks import FORMULAS, exercise

# 25.1 ---------------------------------------------------------------------------------------------------------------

BYTES = 16  # of model states for each parameter


def own_ranks(params, floor, card):
    return states.fewest_ranks(params, 3, card - floor)


@exercise(
    "25.1", "How many ranks does a step need?", minutes=15, difficulty=1, own=own_ranks,
    replaces=FORMULAS,
    sample=lambda random: (random.randint(1, 10**10), random.randint(0, 10**9), random.randint(10**8, 2 * 10**9)),
    cases=[(1000, 0, 1600), (1000, 800, 2400), (1000, 800, 1600), (1000, 100, 399), (1001, 0, 16000), (100, 5, 52), (7, 9, 25),
           (7, 9, 24), (7, 30, 20), (7 * 10**9, 5 * 10**9, 24 * 10**9), (10**6, 0, 16), (1000, 0, 16000)],
    mistakes={
        "no floor": {"room_of": lambda floor, card: card},
        "floor divided": (lambda params, floor, card: -(-(BYTES * params + floor) // card) if card > floor + BYTES - 1 else None,
                          lambda params, floor, card: -(-(params + floor // BYTES) // (card // BYTES)) if card >= BYTES else None),
        "share rounded down": {"ranks_of": lambda params, share: params // (share + 1) + 1},
        "rounded down": {"ranks_of": lambda params, share: params // share or 1},
        "one more": {"ranks_of": lambda params, share: params // share + 1},
        "part of a parameter": {"share_of": lambda room: room / BYTES},
        "power of two": {"ranks_of": lambda params, share: 1 << (-(-params // share) - 1).bit_length()},
        "must be less": {"room_of": lambda floor, card: card - floor - 1},
        "always some": {"least": float("-inf")},
        "14 bytes": {"share_of": lambda room: room // 14},
        "zero": {"none": 0},
        "gave up early": lambda params, floor, card: next((n for n in [ranks_for_step(params, floor, card)] if n and n <= 1000), None),
        "one parameter": {"least": 2 * BYTES},
    })
def ranks_for_step(params, floor, card, *, room_of=lambda floor, card: card - floor, share_of=lambda room: room // BYTES,
                   ranks_of=lambda params, share: int(-(-params // share)), least=BYTES, none=None):
    """The smallest N, or None."""
    room = room_of(floor, card)
    if room < least:
        return none
    share = share_of(room)
    return ranks_of(params, share) if share else params


# 25.2 ---------------------------------------------------------------------------------------------------------------

def all_to(first):
    """The remainder on one rank: the first, or the last."""
    def sizes(numel, ranks):
        each, left = divmod(numel, ranks)
        return [each + left * (rank == (0 if first else ranks - 1)) for rank in range(ranks)]
    return sizes


def even(numel, ranks):
    each, left = divmod(numel, ranks)
    return [each + (rank < left) for rank in range(ranks)]


def ceiled(numel, ranks):
    each = -(-numel // ranks)
    return [max(0, min(each, numel - rank * each)) for rank in range(ranks)]


def floored(numel, ranks, align):
    """The bug: whole units, and all that is left on the last rank."""
    size = numel // ranks // align * align
    return [size * rank for rank in range(ranks)] + [numel]


@exercise(
    "25.2", "Find the bug: fine with two ranks", minutes=20, difficulty=2,
    cases=[(48, 4, 4), (36, 2, 8), (26, 8, 4), (46, 4, 4), (118, 8, 4), (0, 3, 8), (5, 1, 4), (3, 2, 8), (797, 64, 8), (90, 7, 1), (12, 3, 4)],
    mistakes={
        "the bug": (floored, {"sizes": all_to(first=False)}),
        "no unit": lambda numel, ranks, align: [*cut_aligned(numel // align * align, ranks, align)[:-1], numel],
        "on the first": {"sizes": all_to(first=True)},
        "rounded up": {"sizes": ceiled},
        "elements first": lambda numel, ranks, align: [
            *(min(numel, -(-(numel * rank // ranks) // align) * align) for rank in range(ranks)), numel],
        "not aligned": lambda numel, ranks, align: cut_aligned(numel, ranks, 1),
        "padded": {"most": lambda numel, align: numel + align},
        "last bound alone": lambda numel, ranks, align: [*cut_aligned(numel, ranks, align, most=lambda numel, align: inf)[:-1], numel],
        "lost": {"sizes": lambda units, ranks: [units // ranks] * ranks},
        "larger last": {"sizes": lambda units, ranks: even(units, ranks)[::-1]},
        "one too many": {"sizes": lambda units, ranks: [units // ranks + (rank <= units % ranks) for rank in range(ranks)]},
        "lengths": {"starts": None},
        "no end": {"ends": False},
    })
def cut_aligned(numel, ranks, align, *, sizes=even, starts=0, ends=True, most=lambda numel, align: numel):
    """Bounds of slices that differ by one unit of `align` elements at most, the longer ones first."""
    lengths = [align * each for each in sizes(-(-numel // align), ranks)]
    if starts is None:
        return [min(each, numel) for each in lengths]
    bounds = [min(sum(lengths[:rank]), most(numel, align)) for rank in range(ranks + 1)]
    return bounds if ends else bounds[:-1]
