"""The check of 19.1: causal attention to keys and values that come round a ring of real ranks."""

import functools
import gc
import math

import torch
from torch import Tensor

from .....layout.rankmap import Layout
from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.observers.stage_runs import WatchedComm
from ....checks.words import a


def in_a_ring(answer, tokens, width):
    """How far a rank's output is from that of one process, in fp64, and what was passed on."""
    comm = WatchedComm()
    q, k, v = (torch.randn(tokens, width, dtype=torch.float64) for _ in range(3))
    scores = (q @ k.T / math.sqrt(width)).masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf)
    wanted, passed, came, copied = scores.softmax(-1) @ v, 0, [], False

    def pass_on(tensor: Tensor) -> Tensor:
        """To the next rank; returns what the rank before passed on."""
        if not torch.is_tensor(tensor):
            raise Wrong(f"it passed on {a(tensor)}: pass on one tensor at a time", MISUSED)
        nonlocal passed, copied
        passed += tensor.numel()
        sizes = torch.zeros(comm.world_size, dtype=torch.int64)
        sizes[comm.rank] = tensor.numel()
        comm.all_gather(sizes, Layout.split(comm.world_size, comm.world_size), "size").wait()
        if len({*sizes.tolist()}) > 1:
            raise Wrong(f"the ranks passed on {sizes.tolist()} numbers: all of them must pass on tensors of one shape", MISUSED)
        everybodys = tensor.new_zeros(comm.world_size, tensor.numel())  # gathered, as WatchedComm says who has not come
        everybodys[comm.rank] = tensor.flatten()
        comm.all_gather(everybodys.view(-1), Layout.split(everybodys.numel(), comm.world_size), "block").wait()
        came.append(everybodys[comm.rank - 1].view(tensor.shape))
        while sum(each.numel() for each in came) > 2 * (k.numel() + v.numel()) // comm.world_size:
            old, ours = came[0].flatten()[-1:], {each.untyped_storage().data_ptr() for each in (k, v, everybodys, *came)}
            copied |= any((each == old).any() for each in gc.get_objects() if type(each) is Tensor and each.dtype == old.dtype
                          and each.untyped_storage().data_ptr() not in ours)
            came.pop(0).fill_(torch.nan)  # what comes is written into the room of what came two rounds before
        return came[-1]

    part = slice(tokens // comm.world_size * comm.rank, tokens // comm.world_size * (comm.rank + 1))
    out = answer(q[part], k[part], v[part], comm.rank, comm.world_size, pass_on)
    if not torch.is_tensor(out) or out.shape != wanted[part].shape:
        raise Wrong(f"it returned {a(out)}: return the output of this rank's tokens, {list(wanted[part].shape)}", MISUSED)
    seen = {"passed": passed, "finite": bool(out.isfinite().all())}
    if seen["finite"]:
        seen |= {"copied": copied, "first row": out[0] - wanted[part][0], "output": out - wanted[part],
                 "_off": f"{(out - wanted[part]).abs().max():.0e}"}
    return seen


def never_rescaled(q, k, v, rank, ranks, pass_on, sums=False):
    """An online softmax whose output stays as it is when a larger score comes.   sums: are its sums rescaled?"""
    largest, total, out = q.new_full((len(q), 1), -torch.inf), q.new_zeros(len(q), 1), torch.zeros_like(q)
    for step in range(ranks):
        if step:
            k, v = pass_on(k), pass_on(v)
        if step <= rank:
            scores = q @ k.T / math.sqrt(q.shape[1])
            if not step:
                scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
            before, largest = largest, torch.maximum(largest, scores.amax(1, keepdim=True))
            weights = (scores - largest).exp()
            total, out = total * ((before - largest).exp() if sums else 1) + weights.sum(1, keepdim=True), out + weights @ v
    return out / total


@exercise(
    "19.1", "A ring of keys and values", minutes=50, difficulty=3, timeout=15,
    replaces=("zerocourse.parallel.context.score_block:*",),
    trials=[Trial([(6, 3), (12, 4)], in_a_ring, worlds=(1, 2, 3), close=1e-9), Trial([(8, 2)], in_a_ring, worlds=(4,), close=1e-9)],
    mistakes={
        "own block alone": {"rounds": lambda ranks: 0},
        "one round": {"rounds": lambda ranks: min(1, ranks - 1)},
        "once too often": {"rounds": lambda ranks: ranks, "last_counts": False},
        "own block again": {"rounds": lambda ranks: ranks},
        "the wrong owner": {"owner": lambda rank, step, ranks: (rank + step) % ranks},
        "everybody's keys": {"sees": lambda rank, of: True},
        "not the own ones": {"sees": lambda rank, of: of < rank},
        "no diagonal": {"diagonal": None},
        "not itself": {"diagonal": 0},
        "a mask for every block": {"always": True},
        "unscaled": {"scale": lambda width: 1.0},
        "a mean": {"mean": True},
        "values stay": {"travels": "k"},
        "own sums alone": {"carried": lambda step, sums, more, total: sums if step else total},
        "larger sum": {"carried": lambda step, sums, more, total: torch.maximum(sums, more)},
        "never rescaled": never_rescaled,
        "output not rescaled": functools.partial(never_rescaled, sums=True),
        "blocks kept": ({"waits": list}, {"waits": lambda blocks: [(step, k.clone(), v.clone()) for step, k, v in blocks]}),
        "stuck": {"while_needed": True},
    })
def ring_attention(q, k, v, rank, ranks, pass_on, *, rounds=lambda ranks: ranks - 1, last_counts=True,
                   owner=lambda rank, step, ranks: (rank - step) % ranks, sees=lambda rank, of: of <= rank, diagonal=1,
                   always=False, scale=math.sqrt, mean=False, travels="kv", while_needed=False,
                   carried=lambda step, sums, more, total: total, waits=iter):
    """Blocks come from the ranks before, one by one, and each is joined to the result."""
    out, sums = torch.zeros_like(q), q.new_full((len(q),), -torch.inf)
    outs = []

    def coming(k, v):
        for step in range((rank if while_needed else rounds(ranks)) + 1):
            if step:
                k = pass_on(k)
                v = pass_on(v) if "v" in travels else v
            yield step, k, v

    blocks = coming(k, v)
    for step, k, v in waits(blocks):
        of = owner(rank, step, ranks)
        if not sees(rank, of) or (step == ranks and not last_counts):
            continue
        scores = q @ k.T / scale(q.shape[1])
        if (of == rank or always) and diagonal is not None:
            scores = scores.masked_fill(torch.ones_like(scores).triu(diagonal).bool(), -torch.inf)
        more = scores.logsumexp(-1)
        total = torch.logaddexp(sums, more)
        weights = (scores - total[:, None]).exp().nan_to_num(0)
        out, sums = out * (sums - total).exp().nan_to_num(0)[:, None] + weights @ v, carried(step, sums, more, total)
        outs.append((scores - more[:, None]).exp().nan_to_num(0) @ v)
    return sum(outs) / len(outs) if mean else out
