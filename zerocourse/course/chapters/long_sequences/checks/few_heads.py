"""The check of 19.2: Ulysses on real ranks, for a model with fewer heads of keys than there are ranks."""

import math
import operator

import torch
import torch.nn.functional as F

from ....checks import MISUSED, Trial, When, Wrong, exercise
from ....checks.observers.stage_runs import WatchedComm
from ....checks.words import a

WIDTH = 4


def attended(answer, own, heads, kv_heads):
    """The output of a rank's tokens beside that of one process, in fp64, and how much was exchanged."""
    comm, sent = WatchedComm(), 0
    draw = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(comm.world_size * own, count, WIDTH, generator=draw, dtype=torch.float64) for count in (heads, kv_heads, kv_heads))
    whole = F.scaled_dot_product_attention(*(each.movedim(0, 1) for each in (q, k, v)), is_causal=True, enable_gqa=True).movedim(0, 1)

    def exchange(rows):
        """Row i goes to rank i; returns the rows that came."""
        nonlocal sent
        if not torch.is_tensor(rows) or len(rows) != comm.world_size:
            raise Wrong(f"it exchanged {a(rows)}: hand over one tensor with a row for each of the {comm.world_size} ranks", MISUSED)
        sent += rows.numel() - rows[0].numel()
        received = torch.empty_like(rows := rows.contiguous())
        comm.all_to_all(rows, received, "rows").wait()
        return received

    part = slice(own * comm.rank, own * (comm.rank + 1))
    out = answer(q[part].clone(), k[part].clone(), v[part].clone(), comm.world_size, exchange)
    if not torch.is_tensor(out) or out.shape != whole[part].shape:
        raise Wrong(f"it returned {a(out)}: return the output of this rank's tokens, {list(whole[part].shape)}", MISUSED)
    seen = {"finite": bool(out.isfinite().all())}
    return seen | {"sent": sent, "output": out.double() - whole[part]} if seen["finite"] else seen


def few(ranks, kv_heads, heads):
    return ranks // math.gcd(ranks, kv_heads)


def gathered(q, k, v, ranks, exchange):
    """Every rank gets all keys and values, and computes its own queries for all heads."""
    own = torch.cat([k, v], 2)
    everybodys = exchange(own.expand(ranks, *own.shape))
    before = next(rank for rank in range(ranks) if torch.equal(everybodys[rank], own)) * len(q)
    k, v = everybodys.flatten(0, 1)[:before + len(q)].movedim(0, 1).chunk(2, 2)
    mask = torch.arange(k.shape[1]) <= before + torch.arange(len(q))[:, None]
    return F.scaled_dot_product_attention(q.movedim(0, 1), k, v, attn_mask=mask, enable_gqa=True).movedim(0, 1)


@exercise(
    "19.2", "Ulysses with few heads of keys", minutes=40, difficulty=3, timeout=15,
    replaces=("zerocourse.parallel.context.ulysses:*",),
    trials=[Trial([(2, 4, 2), (3, 12, 2), (2, 12, 4), (2, 12, 3), (1, 4, 1)], attended, worlds=(1, 2, 4), close=1e-9),
            Trial([(2, 6, 2)], attended, worlds=(3,), close=1e-9)],
    mistakes={
        "too few copies": {"copies": lambda ranks, kv_heads, heads: 1},
        "too many copies": {"copies": lambda ranks, kv_heads, heads: heads // kv_heads},
        "gathered": (gathered, When("sent", operator.lt)),
        "tiled at home": {"tiled": True},
        "one after the other": {"repeat": lambda x, times: x.repeat(1, times, 1)},
        "no mask": {"causal": False},
        "unscaled": {"scale": 1.0},
        "every Nth head": tuple({"rows": lambda x, ranks: x.unflatten(1, (-1, ranks)).movedim(2, 0), "order": back} for back in (False, True)),
        "a view": {"rows": lambda x, ranks: x.reshape(ranks, len(x), -1, WIDTH)},
        "not back": {"back": lambda out, ranks, exchange: out.unflatten(0, (ranks, -1)).movedim(0, 1).flatten(1, 2)},
        "heads mixed": {"order": True},
        "only reshaped": {"back": lambda out, ranks, exchange: (came := exchange(out.unflatten(0, (ranks, -1)))).reshape(came.shape[1], -1, WIDTH)},
    })
def ulysses_attention(q, k, v, ranks, exchange, *, copies=few, repeat=lambda x, times: x.repeat_interleave(times, 1), causal=True, scale=None,
                      rows=lambda x, ranks: x.unflatten(1, (ranks, -1)).movedim(1, 0), back=None, order=False, tiled=False):
    """Repeat each head of keys as often as the ranks need it, turn, attend, and turn back."""
    times = copies(ranks, k.shape[1], q.shape[1])
    q, k, v = (exchange(rows(each, ranks)).flatten(0, 1) for each in (q, repeat(k, times), repeat(v, times)))
    k, v = (each.repeat(1, q.shape[1] // each.shape[1] if tiled else 1, 1) for each in (k, v))
    out = F.scaled_dot_product_attention(*(each.movedim(0, 1) for each in (q, k, v)), is_causal=causal, scale=scale, enable_gqa=True).movedim(0, 1)
    if back:
        return back(out, ranks, exchange)
    came = exchange(out.unflatten(0, (ranks, -1)))
    return came.movedim(0, 2).flatten(1, 2) if order else came.movedim(0, 1).flatten(1, 2)
