"""The checks of 25.1 and 25.2: how many ranks a step needs, and slices that are even on any number of ranks."""

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
           (7, 9, 24), (7, 30, 20), (7 * 10**9, 5 * 10**9, 24 * 10**9)],
    mistakes={
        "no floor": {"room_of": lambda floor, card: card},
        "floor divided": lambda params, floor, card: -(-(BYTES * params + floor) // card) if card > floor + BYTES - 1 else None,
        "rounded down": {"ranks_of": lambda params, share: params // share or 1},
        "one more": {"ranks_of": lambda params, share: params // share + 1},
        "part of a parameter": {"share_of": lambda room: room / BYTES},
        "power of two": {"ranks_of": lambda params, share: 1 << (-(-params // share) - 1).bit_length()},
        "must be less": {"room_of": lambda floor, card: card - floor - 1},
        "always some": {"least": float("-inf")},
        "14 bytes": {"share_of": lambda room: room // 14},
        "zero": {"none": 0},
    })
def ranks_for_step(params, floor, card, *, room_of=lambda floor, card: card - floor, share_of=lambda room: room // BYTES,
                   ranks_of=lambda params, share: int(-(-params // share)), least=BYTES, none=None):
    """The smallest N, or None.

    no floor: You left out the floor: every rank needs these bytes, however many ranks there are.
    floor divided: You divided the floor as well: N ranks do not make it smaller, and that is why it is called one.
    rounded down: You rounded down: with that many ranks each share is a little too large. Round up.
    one more: You took one rank too many where the division has no remainder.
    part of a parameter: You divided bytes: a rank holds whole parameters, so a room of 47 bytes is room for two.
    power of two: You took the next power of two: any number of ranks will do here.
    must be less: What fits exactly fits.
    always some: Where the floor leaves no room for a single parameter, no number of ranks is enough: return None.
    14 bytes: A parameter has 16 bytes of states: 2 for itself, 2 for its gradient, 12 of the optimizer.
    zero: Where no number of ranks is enough, return None and not 0, which somebody might calculate with.
    right: and when it is None, more cards do not help, but smaller units and fewer activations do.
    """
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


@exercise(
    "25.2", "Find the bug: fine with two ranks", minutes=20, difficulty=2,
    cases=[(12, 4), (9, 2), (7, 8), (11, 4), (30, 8), (0, 3), (5, 1), (100, 64)],
    mistakes={
        "the bug": {"sizes": all_to(first=True)},
        "on the last": {"sizes": all_to(first=False)},
        "rounded up": {"sizes": ceiled},
        "padded": {"sizes": lambda numel, ranks: [-(-numel // ranks)] * ranks},
        "lost": {"sizes": lambda numel, ranks: [numel // ranks] * ranks},
        "larger last": {"sizes": lambda numel, ranks: even(numel, ranks)[::-1]},
        "in between": {"sizes": lambda numel, ranks: [(rank + 1) * numel // ranks - rank * numel // ranks
                                                      for rank in range(ranks)]},
        "one too many": {"sizes": lambda numel, ranks: [numel // ranks + (rank <= numel % ranks) for rank in range(ranks)]},
        "lengths": {"starts": None},
        "no end": {"ends": False},
    })
def cut_evenly(numel, ranks, *, sizes=even, starts=0, ends=True):
    """Bounds of slices that differ by one element at most, the longer ones first.

    the bug: The bug is still there: the first rank gets all that is left over, up to N − 1 elements.
    on the last: Now the last rank gets all that is left over: give one element each to as many ranks.
    rounded up: You rounded each slice up: then the last ranks get less, or nothing, and the others too much.
    padded: Your slices go beyond the end: there is no padding here.
    lost: The elements that are left over belong to nobody.
    larger last: The longer slices come last: they are to come first.
    in between: Your slices are even, but the longer ones lie in between: they are to come first.
    one too many: One rank too many gets an element more.
    lengths: You returned lengths: bounds are wanted, N + 1 of them.
    no end: The last bound is missing: with N slices there are N + 1 bounds.
    right: with 4,096 ranks as well as with two.
    """
    lengths = sizes(numel, ranks)
    if starts is None:
        return lengths
    bounds = [sum(lengths[:rank]) for rank in range(ranks + 1)]
    return bounds if ends else bounds[:-1]
