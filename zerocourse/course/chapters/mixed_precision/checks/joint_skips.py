"""The check of 10.4: fp16 gradients in slices are unscaled on all ranks, or on none."""

import operator

import torch

from .....layout.rankmap import Layout
from ....checks import Trial, When, exercise
from ....checks.observers.stage_runs import WatchedComm

INF, NAN = float("inf"), float("nan")


def skip_cases(world):
    """(what it shows, the slices of each rank, the loss scale)."""
    good = [[[2.0, -4.0], [8.0]], [[0.5, 1.0]], [[16.0], [-2.0]]][:world]
    return [("good gradients", good, 8.0),
            ("inf on the last rank", [*good[:-1], [[1.0, INF]]], 8.0),
            ("-inf on rank 0", [[[-INF, 1.0], [1.0]], *good[1:]], 8.0),
            ("inf in the second slice of the last rank", [*good[:-1], [[1.0], [INF]]], 8.0),
            ("NaN on the last rank", [*good[:-1], [[NAN], [1.0]]], 8.0),
            ("inf on every rank", [[[INF, 1.0]]] * world, 8.0),
            ("large gradients whose sum is above 65504", [[[60000.0, 60000.0]]] * world, 1024.0),
            ("gradients that are too small for fp16 when they are unscaled", [[[0.001, -0.0005]]] * world, 65536.0),
            ("a rank that owns nothing", [*good[:-1], []], 8.0),
            ("inf, and a rank that owns nothing", [[[INF]], *good[1:-1], []], 8.0)]


def unscaled_on_a_rank(answer, _, of_ranks, scale):
    """What comes of this rank's slices."""
    comm = WatchedComm()
    mine = [torch.tensor(part, dtype=torch.float16) for part in of_ranks[comm.rank]]
    result = answer(mine, scale, comm)
    right = not all(torch.tensor(part).isfinite().all() for parts in of_ranks for part in parts)
    tensors = [] if result is None else list(result)
    return {"skips": result is None, "values": [part.double() * scale for part in tensors],
            "dtypes": [str(part.dtype).removeprefix("torch.") for part in tensors], "elements": comm.elements.total(),
            "_did": "skips" if result is None else "makes the step", "_right": "skip" if right else "make it"}


def bad(part):
    return not part.isfinite().all()


def any_of(slices, judge=bad):
    return torch.tensor(float(any(judge(part) for part in slices)))


def bad_norm(slices, comm):
    """The norm of all slices, in fp16."""
    square = torch.stack([part.square().sum() for part in slices] or [torch.zeros((), dtype=torch.float16)]).sum()
    return comm.all_reduce(square.float(), "max").isfinite().logical_not()


def brought_together(slices, comm):
    most = int(comm.all_reduce(torch.tensor(float(sum(part.numel() for part in slices))), "max"))
    row, place = torch.zeros(most * comm.world_size), comm.rank * most
    for part in slices:
        row[place:place + part.numel()], place = part, place + part.numel()
    comm.all_gather(row, Layout.build({"row": (row.numel(),)}, comm.world_size), "row").wait()
    return bad(row)


@exercise(
    "10.4", "Skip together", minutes=20, difficulty=2, timeout=15,
    replaces=("zerocourse.engine.updates.half_precision:LossScaling.overflows", "zerocourse.zero.ddp:DataParallel.grad_norm"),
    trials=[Trial(skip_cases, unscaled_on_a_rank, worlds=(2, 3))],
    mistakes={
        "own slices": {"overflow": lambda slices, comm: any_of(slices)},
        "all must": {"overflow": lambda slices, comm: 1 - comm.all_reduce(1 - any_of(slices), "max")},
        "one alone": {"overflow": lambda slices, comm: comm.all_reduce(any_of(slices)) == 1},
        "NaN missed": {"overflow": lambda slices, comm: comm.all_reduce(
            any_of(slices, lambda p: p.isinf().any()), "max")},
        "inf missed": {"overflow": lambda slices, comm: comm.all_reduce(
            any_of(slices, lambda p: p.isnan().any()), "max")},
        "minus missed": {"overflow": lambda slices, comm: comm.all_reduce(
            any_of(slices, lambda p: p.isnan().any() or (p == INF).any()), "max")},
        "sum in fp16": ({"overflow": lambda slices, comm: comm.all_reduce(
            any_of(slices, lambda p: bad(p.sum())), "max")},
                        {"overflow": bad_norm}),
        "first slice alone": {"overflow": lambda slices, comm: comm.all_reduce(any_of(slices[:1]), "max")},
        "never": {"overflow": lambda slices, comm: False},
        "in fp16": ({"unscale": lambda part, scale: part / scale},
                    {"unscale": lambda part, scale: (part / scale).float()}),
        "multiplied": {"unscale": lambda part, scale: part.float() * scale},
        "scaled still": {"unscale": lambda part, scale: part.float()},
        "averaged": {"divide": True},
        "together": ({"overflow": brought_together}, When("elements", operator.gt)),
        "stuck": {"overflow": lambda slices, comm: slices and comm.all_reduce(any_of(slices), "max")},
    })
def unscale_or_skip(slices, loss_scale, comm, *, overflow=lambda slices, comm: comm.all_reduce(any_of(slices), "max"),
                    unscale=lambda part, scale: part.float() / scale, divide=False):
    """The unscaled slices, or None on every rank."""
    skip = bool(overflow(slices, comm))
    return None if skip else [unscale(part, loss_scale) / (comm.world_size if divide else 1) for part in slices]
