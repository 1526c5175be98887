"""The check of 16.2: the rows of one matrix of queries, keys and values that a rank has."""

from .....parallel.tensor.cuts import Cut
from ....checks import Trial, exercise


def own_rows(n_embd, n_head, rank, ranks):
    """As the package has them."""
    if n_head % ranks:
        raise ValueError("the ranks must divide the heads")
    return [row for rows in Cut.even(0, 3 * n_embd, ranks, 3, n_head).by_rank[rank] for row in rows]


def upper_part(n_embd, n_head, rank, ranks):
    size = 3 * n_embd // ranks
    return list(range(size * rank, size * (rank + 1)))


def without_heads(n_embd, n_head, rank, ranks):
    size = n_embd // ranks
    return [part * n_embd + row for part in range(3) for row in range(size * rank, size * (rank + 1))]


@exercise(
    "16.2", "Which rows of q, k and v?", minutes=15, difficulty=2,
    replaces=("zerocourse.parallel.tensor.cuts:Cut.even", "zerocourse.parallel.tensor.cuts:Cut.take"),
    cases=[(8, 4, 0, 2), (8, 4, 1, 2), (12, 6, 1, 3)],
    trials=[Trial([(12, 4, 2, 4), (6, 3, 0, 1), (24, 6, 1, 2)]), Trial([(12, 4, 0, 3), (12, 3, 1, 2), (8, 2, 3, 4)])],
    mistakes={
        "one piece": upper_part,
        "queries alone": {"parts": 1},
        "heads": {"rows": lambda head, width: [head]},
        "one row a head": {"rows": lambda head, width: [head * width]},
        "in turn": {"heads": lambda n_head, rank, ranks: range(rank, n_head, ranks)},
        "head by head": {"by_head": True},
        "as if head by head": {"place": lambda part, row, n_embd, width: row // width * 3 * width + part * width + row % width},
        "keys too near": {"apart": lambda n_embd, ranks: n_embd // ranks},
        "whole q": {"alone": True},
        "through a head": (without_heads, {"refuses": False}),
        "heads are lost": {"refuses": False, "heads": lambda n_head, rank, ranks:
                           range(n_head // ranks * rank, n_head // ranks * (rank + 1))},
    })
def qkv_rows(n_embd, n_head, rank, ranks, *, parts=3, heads=None, rows=lambda head, width: range(head * width, (head + 1) * width),
             place=lambda part, row, n_embd, width: part * n_embd + row, by_head=False, alone=False, refuses=True,
             apart=lambda n_embd, ranks: n_embd):
    """Rank r's heads of q, then of k, then of v."""
    if n_head % ranks and refuses:
        raise ValueError("the ranks must divide the heads")
    width, between = n_embd // n_head, apart(n_embd, ranks)
    if heads is None:
        own = range(n_embd * rank // ranks, n_embd * (rank + 1) // ranks) if n_head % ranks else \
            [row for head in range(n_head // ranks * rank, n_head // ranks * (rank + 1)) for row in rows(head, width)]
    else:
        own = [row for head in heads(n_head, rank, ranks) for row in rows(head, width)]
    if alone:
        return [*own, *range(n_embd, 3 * n_embd)]
    if by_head:
        return [place(part, row, between, width) for start in range(0, len(own), width) for part in range(parts)
                for row in own[start:start + width]]
    return [place(part, row, between, width) for part in range(parts) for row in own]
