"""The check of 25.w1, which chapter 25 asks for itself: how long a collective takes on a ring."""

import math

from ....checks import exercise


def ring_seconds(nbytes, ranks, rate, latency):
    """How long an all-gather takes that goes around a ring, in seconds.

    nbytes: of the whole buffer, of which each rank has an equal slice at the beginning.
    rate: bytes that a rank can send in a second.
    latency: seconds that each turn of the ring takes besides, however little is sent.
    In a turn each rank sends one slice to the next, until all have all of them.
    """
    turns = ranks - 1
    return turns * (nbytes / ranks / rate + latency)


@exercise(
    "25.w1", "Seconds from bytes", minutes=6, difficulty=1, answer="ring_seconds", own=ring_seconds,
    replaces=("zerocourse.simulation.clusters:Network.seconds",),
    cases=[(4800, 4, 100.0, 0.5), (4800, 2, 100.0, 0.5), (4800, 16, 100.0, 0.0), (100, 1, 10.0, 1.0), (1e9, 512, 1e9, 2e-5)],
    mistakes={
        "N turns": {"turns_of": lambda ranks: ranks},
        "the whole buffer": {"slice_of": lambda nbytes, ranks: nbytes},
        "one latency": {"latencies": lambda turns: min(turns, 1)},
        "no latency": {"latencies": lambda turns: 0},
        "sent once": {"slices": lambda turns: min(turns, 1)},
        "a tree": {"turns_of": lambda ranks: math.ceil(math.log2(ranks))},
        "there and back": {"slices": lambda turns: 2 * turns},
    })
def ring_time(nbytes, ranks, rate, latency, *, turns_of=lambda ranks: ranks - 1, slice_of=lambda nbytes, ranks: nbytes / ranks,
              latencies=lambda turns: turns, slices=lambda turns: turns):
    """The bytes of all turns, and a latency for each."""
    turns = turns_of(ranks)
    return slices(turns) * slice_of(nbytes, ranks) / rate + latencies(turns) * latency
