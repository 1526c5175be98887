"""The checks of chapter 05, ZeRO-1: here 5.1 to 5.3, in which nothing or one number is sent; the others start ranks
with data of their own and train.
"""

import math
import operator

import torch

from .....layout.rankmap import Layout
from ....checks import FORMULAS, Trial, When, Wrong, exercise
from ....checks.observers.stage_probe import bytes_under
from ....checks.observers.stage_runs import WatchedComm

# 5.1 ----------------------------------------------------------------------------------------------------------------

def slices(numel, ranks, *, least=0, size=lambda numel, ranks: -(-numel // ranks)):
    """Elements of a flat buffer that each rank owns, without padding."""
    size = size(numel, ranks)
    return [max(least, min(numel, (rank + 1) * size) - rank * size) for rank in range(ranks)]


def own_adam_bytes(rows, ranks):
    layouts = [Layout.build({"row": (numel,)}, ranks) for numel in rows]
    return [8 * sum(layout.real(rank) for layout in layouts) for rank in range(ranks)]


def shared(share):
    return {"share": share}


@exercise(
    "5.1", "The optimizer's bytes, rank by rank", minutes=10, difficulty=1,
    own=own_adam_bytes, replaces=("zerocourse.layout.rankmap:Layout.build", *FORMULAS),
    sample=lambda random: ([random.randint(1, 10**random.randint(1, 6)) for _ in range(random.randint(1, 4))],
                           random.randint(1, 9)),
    cases=[([12], 4), ([800, 1600], 2), ([10**9], 8), ([30, 6], 3), ([7], 1)],  # they divide evenly
    trials=[Trial([([10], 4), ([5], 4), ([801, 1601], 2), ([3], 8), ([7, 7, 7], 3), ([7744], 3)])],
    mistakes={
        "one average": {"each": 4},
        "master copy": {"each": 12},
        "all states": {"each": 16},
        "elements": {"each": 1},
        "whole": shared(lambda n, ranks: [n] * ranks),
        "padding": shared(lambda n, ranks: [-(-n // ranks)] * ranks),
        "end to end": lambda rows, ranks: adam_bytes([sum(rows)], ranks),
        "rest to the last": shared(lambda n, ranks: [n // ranks] * (ranks - 1) + [n - (ranks - 1) * (n // ranks)]),
        "rest dealt out": shared(lambda n, ranks: [n // ranks + (rank < n % ranks) for rank in range(ranks)]),
        "rounded down": shared(lambda n, ranks: [n // ranks] * ranks),
        "below 0": shared(lambda n, ranks: slices(n, ranks, least=-math.inf)),
        "padding of the last": tuple(shared(lambda n, ranks, least=least: [-(-n // ranks)] * (ranks - 1)
                                            + [max(least, n - (ranks - 1) * -(-n // ranks))])
                                     for least in (0, -math.inf)),
        "one more": shared(lambda n, ranks: slices(n, ranks, size=lambda n, ranks: n // ranks + 1)),
    })
def adam_bytes(rows, ranks, *, each=8, share=slices):
    """The bytes of each rank."""
    return [each * sum(of_rank) for of_rank in zip(*(share(n, ranks) for n in rows), strict=True)]


# 5.2 ----------------------------------------------------------------------------------------------------------------

def clip_cases(world):
    """(what it shows, slices of each rank, max_norm, the size of a number in the slices)."""
    of_ranks = [[[3.0, 4.0], [12.0, -5.0]], [[8.0, -6.0], [2.0]], [[-1.0, 2.0], [7.0, 4.0]]][:world]
    return [("a gradient that is too long", of_ranks, 6.5, 1.0),
            ("a gradient that is short enough", of_ranks, 1000.0, 1.0),
            ("a last rank that owns nothing", [*of_ranks[:-1], []], 6.5, 1.0),
            ("a very small gradient that is too long", of_ranks, 1e-6, 1e-7)]


def clip_on_a_rank(answer, _, of_ranks, max_norm, unit):
    """What the answer returns, does with this rank's slices, and sends."""
    comm = WatchedComm()
    mine = [torch.tensor(part) * unit for part in of_ranks[comm.rank]]
    norm = answer(list(mine), max_norm, comm)  # others hold the slices, and nobody its list
    try:
        norm = float(norm)
    except (TypeError, ValueError):
        raise Wrong(f"it returned {type(norm).__name__} {norm!r:.80}, and the norm is wanted, a tensor of one "
                    "number") from None
    return {"norm": norm, "slices": [part / unit for part in mine], "elements": comm.elements.total()}


def length(slices, power=2):
    """The norms of slices to some power, added up: a tensor of one number."""
    return torch.stack([part.norm()**power for part in slices] or [torch.zeros(())]).sum()


def norm_of_all(slices, comm):
    """The norm of all ranks' slices, brought to every rank."""
    most = int(comm.all_reduce(torch.tensor(float(sum(part.numel() for part in slices))), "max"))
    row, place = torch.zeros(most * comm.world_size), comm.rank * most
    for part in slices:
        row[place:place + part.numel()], place = part, place + part.numel()
    comm.all_gather(row, Layout.build({"row": (row.numel(),)}, comm.world_size), "row").wait()
    return row.norm()


@exercise(
    "5.2", "The norm of a gradient in slices", minutes=15, difficulty=2, timeout=15,
    replaces=("zerocourse.zero.ddp:*", "zerocourse.zero.ddp:DataParallel.grad_norm",
              "zerocourse.zero.ddp:DataParallel.clip_grad_norm_"),
    trials=[Trial(clip_cases, clip_on_a_rank, worlds=(2, 3), close=1e-4)],
    mistakes={
        "own slices": {"norm": lambda slices, comm: length(slices).sqrt()},
        "norms added": ({"norm": lambda slices, comm: comm.all_reduce(length(slices).sqrt())},
                        {"norm": lambda slices, comm: comm.all_reduce(length(slices, 1))},
                        {"norm": lambda slices, comm: comm.all_reduce(length(slices, 1) ** 2).sqrt()}),
        "no root": {"norm": lambda slices, comm: comm.all_reduce(length(slices))},
        "mean": ({"norm": lambda slices, comm: (comm.all_reduce(length(slices)) / comm.world_size).sqrt()},
                 {"norm": lambda slices, comm: comm.all_reduce(length(slices).sqrt()) / comm.world_size}),
        "largest": {"norm": lambda slices, comm: comm.all_reduce(length(slices).sqrt(), "max")},
        "after": {"after": True},
        "longer": ({"most": math.inf}, {"most": math.inf, "eps": 0}),
        "norm alone": {"eps": 0},
        "unchanged": {"scale": lambda part, factor, *_: part * factor},
        "each slice": {"scale": lambda part, factor, own, most: part.mul_(min(1.0, most / part.norm()))},
        "own norm decides": {"scale": lambda part, factor, own, most: part.mul_(factor if own > most else 1.0)},
        "a square a slice": {"norm": lambda slices, comm: comm.all_reduce(
            torch.stack([part.norm()**2 for part in slices])).sum().sqrt()},
        "cut off": {"scale": lambda part, factor, own, most: part.clamp_(-most, most)},
        "own factor": {"scale": lambda part, factor, own, most: part.mul_(min(1.0, most / own))},
        "together": ({"norm": norm_of_all}, When("elements", operator.gt)),
        "stuck": {"norm": lambda slices, comm: comm.all_reduce(length(slices)).sqrt() if slices else torch.zeros(())},
    })
def clip_slices(slices, max_norm, comm, *, norm=lambda slices, comm: comm.all_reduce(length(slices)).sqrt(), eps=1e-6,
                most=1.0, after=False, scale=lambda part, factor, own, most: part.mul_(factor)):
    """The norm of all ranks' slices, which are scaled in place."""
    total, own = norm(slices, comm), length(slices).sqrt()
    for part in slices:
        scale(part, min(most, max_norm / (total + eps)), own, max_norm)
    return total.clamp(max=max_norm) if after else total


# 5.3 ----------------------------------------------------------------------------------------------------------------

HOW = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 0.05, "weight_decay": 0.3}


def adamw_on_a_rank(answer):
    """Two buffers, of which the answer is given a slice each, after each of four steps; and what it keeps."""
    seed = torch.Generator().manual_seed(5)
    rows = [torch.randn(7, generator=seed), torch.randn(4, generator=seed)]
    mine, state, seen, spoiled = [rows[0][2:5], rows[1][:2]], {}, {}, 0
    for step in range(4):
        gradients = [torch.randn(3, generator=seed), torch.randn(2, generator=seed)]
        given = [gradient.clone() for gradient in gradients]
        answer(list(mine), given, state, *HOW.values())
        spoiled += not all(map(torch.equal, given, gradients))
        seen[f"step {step + 1}"] = [row.clone() for row in rows]
    return {**seen, "spoiled": spoiled, "bytes": bytes_under(state, but=rows)}


@exercise(
    "5.3", "AdamW on slices", minutes=25, difficulty=2,
    replaces=("torch.optim:AdamW.step", "torch.optim:Adam.step", "torch.optim.adamw:adamw", "torch.optim.adam:adam"),
    trials=[Trial(observe=adamw_on_a_rank)],
    mistakes={
        "unchanged": {"in_place": False},
        "l2": {"decay": "l2"},
        "no decay": {"decay": None},
        "step per slice": {"count": lambda step, number: 2 * step + number - 1},
        "no correction": {"correct": False},
        "count stays": {"count": lambda step, number: 1},
        "count from 2": {"count": lambda step, number: step + 1},
        "count from 0": ({"count": lambda step, number: step - 1},
                         When("step 1", lambda got, want: not torch.cat(got).isfinite().all())),
        "eps inside": {"eps_inside": True},
        "decayed after": {"decay": "after"},
        "begins anew": ({"forget": True}, {"forget": True, "count": lambda step, number: 1}),
        "betas swapped": {"swap": True},
        "gradients spoiled": {"spoil": True},
        "less in state": (When("bytes", operator.lt), {"elsewhere": {}}),
        "more in state": (When("bytes", operator.gt), {"keep": True}),
    })
def adamw(slices, gradients, state, lr, betas, eps, weight_decay, *, in_place=True, decay="before", correct=True,
          count=lambda step, number: step, eps_inside=False, forget=False, swap=False, spoil=False, elsewhere=None,
          keep=False):
    """One step of AdamW on slices, in place."""
    state["step"] = step = state.get("step", 0) + 1
    averages = state if elsewhere is None else elsewhere
    beta1, beta2 = betas[::-1] if swap else betas
    for number, (param, gradient) in enumerate(zip(slices, gradients, strict=True)):
        p, t = param if in_place else param.clone(), count(step, number)
        g = gradient + weight_decay * p if decay == "l2" else gradient
        m, v = averages.get(number, (0, 0)) if step > 1 and not forget else (0, 0)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        averages[number] = m, v
        m_hat, v_hat = (m / (1 - beta1**t), v / (1 - beta2**t)) if correct else (m, v)
        p.mul_(1 - lr * weight_decay * (decay == "before"))
        p.sub_(lr * m_hat / ((v_hat + eps).sqrt() if eps_inside else v_hat.sqrt() + eps))
        p.mul_(1 - lr * weight_decay * (decay == "after"))
        if spoil:
            gradient.mul_(1 - beta1)
        if keep:
            state[number, "gradient"] = gradient.clone()
