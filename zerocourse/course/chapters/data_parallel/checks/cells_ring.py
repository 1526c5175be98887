"""The checks of what chapter 04 asks for itself: 04.w1, the turns of a ring, and 04.w2, an average of unequal parts."""

import torch
import torch.distributed as dist

from .....classics.ring import ring_all_reduce, turn_the_ring
from ....checks import Trial, When, exercise
from ....checks.observers.wire import Wire

# 04.w1 ----------------------------------------------------------------------------------------------------------------

def turned(answer, n):
    """What the answer makes of a buffer of n elements, and with how many turns."""
    rank, world, turns = dist.get_rank(), dist.get_world_size(), []
    places, held = torch.arange(n).tensor_split(world), []

    def watched(parts, rank, pass_on):
        def turn(leaving, arriving, add):
            turns.append(add)
            pass_on(leaving, arriving, add)
        held.extend(parts)
        answer(parts, rank, turn)

    with Wire():
        ring_all_reduce(torch.arange(n) + 100.0 * (rank + 1), watched)
    whole = [number for number in range(world) if torch.equal(held[number], world * places[number] + 50.0 * world * (world + 1))]
    return {"silent": not turns, "half": len(whole) == 1 and len(turns) == world - 1,
            **{f"part {number}": part for number, part in enumerate(held)}, "turns": len(turns), "adds": sum(turns), "_whole": sum(whole[:1])}


def turns_of(parts, rank, pass_on, *, adds=True, copies=False, first=-1, second=0, more=0, halves=2, direction=-1, fixed=False,
             arrives=-1):
    """Two halves of N - 1 turns.   first, second: the part that leaves in a half's first turn, counted from this rank.
    fixed: the same part leaves in each turn.   arrives: the place of what arrives, counted from what leaves."""
    ranks = len(parts)
    for start, add in ((first, adds), (second, copies))[:halves]:
        for turn in range(ranks - 1 + more):
            leaving = rank + start + (0 if fixed else direction * turn)
            pass_on(leaving % ranks, (leaving + arrives) % ranks, add)


def averaged_sum(parts, rank, pass_on):
    turns_of(parts, rank, pass_on)
    for part in parts:
        part /= len(parts)


@exercise(
    "04.w1", "A ring, turn by turn", minutes=12, difficulty=2, answer="turn_the_ring", own=turn_the_ring,
    replaces=("zerocourse.classics.ring:ring_reduce_scatter", "zerocourse.classics.ring:ring_all_gather"),
    timeout=15, trials=[Trial([(12,)], turned, worlds=(2, 3)), Trial([(7,)], turned, worlds=(3,))],
    mistakes={
        "silent": (lambda parts, rank, pass_on: None, When("silent")),
        "one half": ({"halves": 1}, When("half")),
        "added in both": {"copies": True},
        "copied in both": {"adds": False},
        "halves in the other order": {"adds": False, "copies": True, "first": 0, "second": -1},
        "second half starts too far": ({"second": -1}, {"second": 1}),
        "same part": {"fixed": True},
        "same place": {"arrives": 0},
        "place on the right": {"arrives": 1},
        "other way round": {"direction": 1},
        "average": averaged_sum,
        "another turn": ({"more": 1}, When("turns")),
    })
def ring_turns(parts, rank, pass_on, **knobs):
    """All parts are summed, in 2 (N - 1) turns."""
    turns_of(parts, rank, pass_on, **knobs)


# 04.w2 ----------------------------------------------------------------------------------------------------------------

def average_gradient(gradient, samples):
    """Make every rank's gradient that of the whole batch, in place.

    gradient: the average over this rank's samples.
    samples: how many these are; other ranks may have more or fewer.
    """
    total = torch.tensor(float(samples))
    dist.all_reduce(total)
    gradient.mul_(samples / total.item())
    dist.all_reduce(gradient)


def gradient_of_all(answer, samples):
    """What becomes of the gradients of ranks with so many samples."""
    rank = dist.get_rank()
    gradient = torch.tensor([2.0, -4.0, 8.0]) * (rank + 1)
    with Wire(agree=True) as wire:
        answer(gradient, samples[rank])
    return {"silent": not wire.calls, "gradient": gradient}


def own_average(gradient, samples, *, weight=lambda samples, total, ranks: samples / total, adds=True, before=True,
                in_place=True):
    """weight: of this rank's gradient, before (or after) the ranks' are added."""
    total = torch.tensor(float(samples))
    dist.all_reduce(total)
    result = gradient if in_place else gradient.clone()
    factor = weight(samples, total.item(), dist.get_world_size())
    if before:
        result *= factor
    if adds:
        dist.all_reduce(result)
    if not before:
        result *= factor


def weigh(weight, **more):
    return {"weight": weight, **more}


@exercise(
    "04.w2", "The average of unequal parts", minutes=10, difficulty=1, answer="average_gradient", own=average_gradient,
    trials=[Trial(lambda world: [((4,) * world,), ((6, 2, 1)[:world],)], gradient_of_all, worlds=(2, 3), close=1e-6)],
    mistakes={
        "silent": (lambda gradient, samples: None, When("silent")),
        "as if equal": weigh(lambda samples, total, ranks: 1 / ranks),
        "summed": weigh(lambda samples, total, ranks: 1),
        "not divided by the total": weigh(lambda samples, total, ranks: samples),
        "divided by its own": (weigh(lambda samples, total, ranks: 1 / samples), weigh(lambda samples, total, ranks: 1 / samples, before=False)),
        "weighted after": weigh(lambda samples, total, ranks: samples / total, before=False),
        "never added": weigh(lambda samples, total, ranks: samples / total, adds=False),
        "divided twice": weigh(lambda samples, total, ranks: samples / total / ranks),
        "not in place": {"in_place": False},
    })
def average_of_unequal(gradient, samples, **knobs):
    """Each sample counts the same."""
    own_average(gradient, samples, **knobs)
