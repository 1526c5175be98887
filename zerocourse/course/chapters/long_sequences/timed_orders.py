"""How long a ring takes with the tokens cut contiguously and in zig-zag, on real ranks that sleep where they would compute.

A sleeping rank needs no core, so any number of ranks can be timed on two. Keys and values are sent and waited for as in
the ring itself.
"""

import time
from statistics import median

import torch

from ....comm import Comm
from ....parallel.context.ring_attention import RingAttention
from ....parallel.context.token_cut import ORDERS


def timed_orders(tokens: int, whole: float, rounds: int) -> dict[str, float]:
    """By order: the median seconds of a forward, from one barrier to the next. Collective.

    whole: seconds that all pairs of the sequence's queries and keys would take on one rank, those behind the mask included.
    """
    comm, seconds = Comm(), {order: [] for order in ORDERS}
    for _ in range(rounds):
        for order, spent in seconds.items():
            ring = RingAttention(comm, order=order)
            of_a_block = whole / (len(ring.parts[0]) * comm.world_size) ** 2
            comm.all_reduce(torch.zeros(1))
            begin = time.perf_counter()
            for owner, _ in ring.travelling(torch.zeros(tokens // comm.world_size)):
                time.sleep(of_a_block * len(list(ring.visible(owner))))
            comm.all_reduce(torch.zeros(1))  # over when the last one is
            spent.append(time.perf_counter() - begin)
    return {order: median(spent) for order, spent in seconds.items()}
