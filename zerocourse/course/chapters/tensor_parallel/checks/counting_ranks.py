"""The check of 16.4: who counts a parameter in a norm, judged by the digits of `audit`."""

import torch
from torch import nn

from .....parallel.norms import audit, grad_norm
from .....parallel.tensor.cuts import Cut
from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.observers.stage_runs import WatchedComm
from ....checks.words import a

KINDS = {"wte.weight": "vocabulary", "wpe.weight": "whole", "ln_1.weight": "whole", "attn.q.weight": "columns",
         "attn.k.weight": "kv", "attn.v.weight": "kv", "attn.k.bias": "kv", "attn.q.bias": "columns", "attn.proj.weight": "rows",
         "attn.proj.bias": "rows", "mlp.c_fc.bias": "columns", "unbiased.weight": "rows"}
HEADS, WIDTH = 12, 12  # of width 1


def cut_of(name, ranks, kv_heads):
    """How a parameter of KINDS is cut; None where every rank has all of it."""
    kind = KINDS[name]
    if kind == "whole" or (kind == "rows" and name.endswith("bias")):
        return None
    if kind == "kv":
        return Cut.even(0, kv_heads, ranks, 1, kv_heads)
    return Cut.even(1 if kind == "rows" else 0, WIDTH, ranks, 1, HEADS)


def asked(answer, rank, ranks, kv_heads):
    counted = answer(dict(KINDS), rank, ranks, kv_heads)
    if not isinstance(counted, (list, tuple, set, frozenset)) or not set(counted) <= set(KINDS):
        raise Wrong(f"it returned {a(counted)} that is no list of the parameters' names: {counted!r:.80}", MISUSED)
    return counted


def audited_on_a_rank(answer, kv_heads):
    """How often the norm counts each parameter, on real ranks."""
    comm = WatchedComm()
    counted, params = asked(answer, comm.rank, comm.world_size, kv_heads), {}
    for name in KINDS:
        cut, whole = cut_of(name, comm.world_size, kv_heads), torch.zeros(WIDTH, WIDTH)
        params[name] = nn.Parameter(whole if cut is None else cut.take(whole[:max(cut.size, 1)], comm.rank))
        params[name].tensor_rank, params[name].counts_in_norm = comm.rank, name in counted
        if cut is not None:
            params[name].tensor_cut = cut
    digits = audit(params, lambda: grad_norm(params.values(), [comm]), comm)
    return {"digits": {name: times for name, times in digits.items() if times != 1}}


def parts_counted(answer, ranks, kv_heads):
    """How often each part of each parameter is counted, over all ranks."""
    times = {}
    for rank in range(ranks):
        counted = asked(answer, rank, ranks, kv_heads)
        for name in KINDS:
            cut = cut_of(name, ranks, kv_heads)
            part = name, 0 if cut is None else cut.by_rank.index(cut.by_rank[rank])
            times[part] = times.get(part, 0) + (name in counted)
    wrong = {part: number for part, number in times.items() if number != 1}
    first = next(iter(wrong), ("", 0))[0]
    counting = sorted({rank for rank in range(ranks) for name in asked(answer, rank, ranks, kv_heads) if cut_of(name, ranks, kv_heads) is None})
    return {"parts": sorted([name, part, number] for (name, part), number in wrong.items()),
            "_names": ", ".join(dict.fromkeys(name for name, _ in wrong)),
            "_times": f"({first}) {[number for (name, _), number in times.items() if name == first]} times",
            "whole": counting}


def last_of(copies, rank, ranks):
    return rank % copies == copies - 1


@exercise(
    "16.4", "Who counts?", minutes=20, difficulty=2,
    replaces=("zerocourse.parallel.tensor.cuts:counts_here", "zerocourse.parallel.tensor.cuts:Cut.is_first"), timeout=15,
    trials=[Trial(lambda world: [(world,), (1,)], audited_on_a_rank, worlds=(2, 3)),
            Trial([(2, 2), (4, 2), (6, 3), (6, 2), (4, 1), (2, 4), (1, 2)], parts_counted)],
    mistakes={
        "all": {"whole": lambda rank, ranks: True, "kv": lambda copies, rank, ranks: True},
        "copies": {"whole": lambda rank, ranks: True},
        "nowhere": {"whole": lambda rank, ranks: False},
        "the last rank": {"whole": lambda rank, ranks: rank == ranks - 1},
        "rank 0 alone": {"cut": lambda rank: rank == 0, "kv": lambda copies, rank, ranks: rank == 0},
        "kv on each": {"kv": lambda copies, rank, ranks: True},
        "kv on rank 0": {"kv": lambda copies, rank, ranks: rank == 0},
        "kv in turn": {"kv": lambda copies, rank, ranks: rank < ranks // copies},
        "kv nowhere": {"kv": lambda copies, rank, ranks: copies == 1},
        "kv biases are whole": {"kv_bias": lambda rank: rank == 0},
        "row biases are cut": {"row_bias": lambda rank: True},
        "row weights are whole": {"row_weight": lambda rank: rank == 0},
        "column biases are whole": {"column_bias": lambda rank: rank == 0},
        "the vocabulary is whole": {"words": lambda rank: rank == 0},
    })
def counted_here(kinds, rank, ranks, kv_heads, *, whole=lambda rank, ranks: rank == 0, cut=lambda rank: True,
                 kv=lambda copies, rank, ranks: rank % copies == 0, row_bias=None, row_weight=None, column_bias=None, words=None,
                 kv_bias=None):
    """What is cut counts everywhere, what is whole on one rank."""
    def counts(name, kind):
        bias = name.endswith("bias")
        if kind == "kv":
            return kv_bias(rank) if bias and kv_bias else kv(max(ranks // kv_heads, 1), rank, ranks)
        if kind == "whole" or kind == "rows" and bias and row_bias is None:
            return whole(rank, ranks)
        own = {"rows": row_bias if bias else row_weight, "columns": column_bias if bias else None, "vocabulary": words}[kind]
        return (own or cut)(rank)
    return [name for name, kind in kinds.items() if counts(name, kind)]
