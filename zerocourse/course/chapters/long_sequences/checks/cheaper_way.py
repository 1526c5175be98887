"""The check of 19.4: what a ring and Ulysses send for the attention of one layer, and which of them sends less."""

import math

from ....checks import exercise

CASES = [(4, 32, 32, 128, 4096), (4, 64, 8, 128, 4096), (8, 64, 8, 128, 4096), (8, 12, 12, 64, 1024), (16, 64, 8, 128, 32768), (2, 16, 2, 4, 64),
         (6, 12, 4, 8, 96), (3, 8, 8, 16, 48), (1, 8, 2, 16, 64), (4, 8, 3, 16, 64), (2, 16, 8, 4, 64), (16, 32, 32, 64, 2048), (12, 48, 8, 8, 96)]


def of_ring(ranks, heads, kv_heads, width, tokens, *, hops=lambda ranks: ranks - 1, sent=6, own=True, queries=False):
    """Keys and values in the forward, and again in the backward with their gradients behind them."""
    return sent * hops(ranks) * (tokens // ranks if own else tokens) * ((heads if queries else kv_heads) * width)


def of_ulysses(ranks, heads, kv_heads, width, tokens, *, copies=lambda kv_heads, ranks, heads: math.lcm(kv_heads, ranks),
               ways=2, part=lambda ranks, elements: elements * (ranks - 1) // ranks, tensors=2, back=lambda copies, kv_heads: copies):
    """Queries, keys, values and output, there and back."""
    kv = copies(kv_heads, ranks, heads)
    return part(ranks, tokens // ranks * width * sum(tensors * heads + 2 * each for each in (kv, back(kv, kv_heads))[:ways]))


@exercise(
    "19.4", "Ring or Ulysses?", minutes=25, difficulty=2, cases=CASES,
    mistakes={
        "P hops": {"ring": {"hops": lambda ranks: ranks}},
        "backward goes P hops": {"ring": {"sent": 2, "hops": lambda ranks: 3 * ranks - 1}},
        "gradients go P hops": {"ring": {"sent": 2, "hops": lambda ranks: 3 * ranks - 2}},
        "forward alone": ({"ring": {"sent": 2}}, {"ulysses": {"ways": 1}}, {"ring": {"sent": 2}, "ulysses": {"ways": 1}}),
        "no gradients": {"ring": {"sent": 4}},
        "all tokens": {"ring": {"own": False}},
        "own part as well": {"ulysses": {"part": lambda ranks, elements: elements}},
        "no copies": {"ulysses": {"copies": lambda kv_heads, ranks, heads: kv_heads}},
        "copies for all": tuple({"ulysses": {"copies": copies}} for copies in (
            lambda kv_heads, ranks, heads: kv_heads * ranks, lambda kv_heads, ranks, heads: heads,
            lambda kv_heads, ranks, heads: heads if kv_heads % ranks else kv_heads)),
        "copies go alone": {"ulysses": {"back": lambda copies, kv_heads: kv_heads}},
        "heads of queries": {"ring": {"queries": True}},
        "output forgotten": {"ulysses": {"tensors": 1}},
        "half a head": {"limit": False},
        "never with copies": {"limit": "kv_heads"},
        "always Ulysses": {"choose": lambda sent, key: [*sent][-1]},
        "a tie": {"choose": lambda sent, key: min(reversed(sent), key=key)},
        "the larger one": {"choose": max},
    })
def cheaper(ranks, heads, kv_heads, width, tokens, *, ring=None, ulysses=None, limit=True, choose=min):
    """The one that sends less; of two that send the same, the ring, which may hide it."""
    sent = {"ring": of_ring(ranks, heads, kv_heads, width, tokens, **(ring or {}))}
    if not limit or heads % ranks == 0 == (kv_heads % ranks if limit == "kv_heads" else 0):
        sent["Ulysses"] = of_ulysses(ranks, heads, kv_heads, width, tokens, **(ulysses or {}))
    way = choose(sent, key=sent.get)
    return way, sent[way]
