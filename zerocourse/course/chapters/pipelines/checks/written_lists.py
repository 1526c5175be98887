"""The checks of 17.2 and 17.5: schedules written as lists, looked at without running them, and then run by real ranks."""

import torch
import torch.nn.functional as F
from torch import nn

from .....parallel.pipeline import Action, Pipeline, Schedule, deadlock, problems, simulate, with_transfers
from ....checks import Board, Trial, When, Wrong, exercise

SIZES = [(4, 8), (2, 4), (3, 7), (4, 2), (1, 3), (5, 5)]


def lists_of(answer, ranks, micro_batches, kinds):
    """The answer's list for each rank. Raises Wrong for what is no list of (kind, micro-batch)."""
    lists = []
    for rank in range(ranks):
        found = answer(ranks, micro_batches, rank)
        if not isinstance(found, list):
            raise Wrong(f"it returned a {type(found).__name__}, and a list of tuples is wanted")
        for each in found:
            if not (isinstance(each, tuple) and len(each) == 2 and each[0] in kinds and type(each[1]) is int):
                raise Wrong(f"its list for rank {rank} has {each!r}: an entry is a tuple such as ('F', 0), of "
                            f"{' or '.join(kinds)} and a micro-batch")
        lists.append([Action(kind, rank, micro_batch) for kind, micro_batch in found])
    return lists


def planned(answer, ranks, micro_batches, kinds):
    owner = list(range(ranks))
    lists = lists_of(answer, ranks, micro_batches, kinds)
    return Schedule("your schedule", [with_transfers(actions, owner) for actions in lists], owner, micro_batches)


def first_problem(plan):
    return next(problems(plan), "") or deadlock(plan) or ""


def looked_at(answer, ranks, micro_batches):
    """What the lists say of themselves."""
    plan = planned(answer, ranks, micro_batches, ("F", "B"))
    seen = {"problem": first_problem(plan)}
    if not seen["problem"]:
        timing = simulate(plan)
        seen["held"] = [timing.in_flight(rank) for rank in range(ranks)]
        seen["idle"] = [int(timing.idle(rank)) for rank in range(ranks)]
    return seen | {"lists": [[f"{action.kind}{action.micro_batch}" for action in actions if not action.is_transfer]
                             for actions in plan.actions]}


def run_really(answer, micro_batches):
    """The same lists, run by real ranks."""
    from torch import distributed
    ranks = distributed.get_world_size()
    torch.manual_seed(1)
    layers = [nn.Linear(4, 4) for _ in range(ranks)]
    model = nn.Sequential(*layers)
    inputs, targets = torch.randn(micro_batches, 4), torch.randn(micro_batches, 4)
    plan = planned(answer, ranks, micro_batches, ("F", "B"))
    pipeline = Pipeline(layers, plan, F.mse_loss)
    pipeline.step(inputs, targets)
    mine = {name: param.grad.clone() for name, param in pipeline.named_parameters().items()}
    model.zero_grad()
    F.mse_loss(model(inputs), targets).backward()
    return {"gradients": all(torch.allclose(mine[name], param.grad, atol=1e-6)
                             for name, param in model.named_parameters() if name in mine)}


@exercise(
    "17.2", "1F1B as a list", minutes=30, difficulty=2,
    replaces=("zerocourse.parallel.pipeline.schedules.synchronous:*", "zerocourse.parallel.pipeline.schedules.zero_bubble:*"),
    trials=[Trial(SIZES, looked_at), Trial([(4,)], run_really, worlds=(2, 3))],
    mistakes={
        "GPipe": {"warm": lambda ranks, rank, most: most},
        "one too few": {"warm": lambda ranks, rank, most: min(max(ranks - 2 - rank, 0), most)},
        "one too many": {"warm": lambda ranks, rank, most: min(ranks - rank, most)},
        "the same on every rank": {"warm": lambda ranks, rank, most: min(ranks - 1, most)},
        "mirrored": {"warm": lambda ranks, rank, most: min(rank, most)},
        "one after the other": {"warm": lambda ranks, rank, most: 0},
        "no end": {"rest": lambda first, most: []},
        "last one missing": {"rest": lambda first, most: list(range(first, most - 1))},
        "backwards from the end": {"rest": lambda first, most: list(range(most - 1, first - 1, -1))},
        "more than there are": {"warm": lambda ranks, rank, most: ranks - 1 - rank},
        "B before F": {"pair": ("B", "F")},
        "counted from 1": {"first": 1},
    })
def one_f_one_b(ranks, micro_batches, rank, *, warm=lambda ranks, rank, most: min(ranks - 1 - rank, most),
                rest=lambda first, most: list(range(first, most)), pair=("F", "B"), first=0):
    """Forwards, then pairs, then backwards."""
    warm_up = warm(ranks, rank, micro_batches)
    actions = [("F", first + number) for number in range(warm_up)]
    for number in range(micro_batches - warm_up):
        actions += [(kind, first + (warm_up if kind == "F" else 0) + number) for kind in pair]
    return actions + [("B", first + number) for number in rest(max(micro_batches - warm_up, 0), micro_batches)]


# 17.5 ---------------------------------------------------------------------------------------------------------------

def without_weights(work):
    """The order of F and B, in which an I is a B."""
    return [("F" if kind == "F" else "B", number) for kind, number in work if kind != "W"]


def is_early(work, rank, micro_batches):
    """Does a W come before the I that is as many micro-batches later as rank r has room for?"""
    at = {**{(kind, number): at for at, (kind, number) in enumerate(work)},
          **{(part, number): at for at, (kind, number) in enumerate(work) if kind == "B" for part in "IW"}}
    return any(at["W", number] < at["I", number + rank] for number in range(micro_batches - rank))


def measured(answer, ranks, micro_batches):
    """What matters of a schedule whose backward comes in two parts."""
    plan = planned(answer, ranks, micro_batches, ("F", "B", "I", "W"))
    seen = {"problem": first_problem(plan)}
    if not seen["problem"]:
        timing = simulate(plan)
        seen["_held"] = max(timing.in_flight(rank) for rank in range(ranks))
        seen["_idle"] = int(max(timing.idle(rank) for rank in range(ranks)))
        seen["_ranks"], seen["_goal"], seen["_makespan"] = ranks, ranks - 1, int(timing.makespan)
        works = [[(action.kind, action.micro_batch) for action in actions if not action.is_transfer] for actions in plan.actions]
        begins = [next(at for at, (kind, _) in enumerate(work) if kind != "F") for work in works]
        seen |= {"too many": seen["_held"] > ranks and next(
                     ("forwards" for rank in range(ranks) if timing.in_flight(rank) > ranks and begins[rank] > ranks - rank), "W"),
                 "too slow": seen["_idle"] > ranks - 1 and ("order" if any(
                     without_weights(work) != one_f_one_b(ranks, micro_batches, rank) for rank, work in enumerate(works)) else
                     "W" if any(is_early(work, rank, micro_batches) for rank, work in enumerate(works)) else "else")}
        # where nobody waits for it, a whole backward is as good as its two parts
        seen["whole"] = bool(seen["too slow"]) and any(kind == "B" for work in works[1:] for kind, _ in work)
    return seen


@exercise(
    "17.5", "Beat 1F1B", minutes=40, difficulty=3,
    replaces=("zerocourse.parallel.pipeline.schedules.synchronous:*", "zerocourse.parallel.pipeline.schedules.zero_bubble:*"),
    trials=[Trial([(4, 8), (2, 4), (3, 9), (5, 5), (1, 2)], measured)],
    board=(Board("units of time in all cases", lambda seen: sum(case["_makespan"] for case in seen[0][0]), 94, 94,
                 "the last rank has 3m units of work, and its first input comes after p − 1", ("too slow", "whole")),),
    mistakes={
        "too many forwards": ({"more": 1, "halves": True, "drain": True}, When("too many", lambda got, want: got == "forwards")),
        "not 1F1B": ({"more": -1, "halves": True, "drain": True}, When("too slow", lambda got, want: got == "order")),
        "W at once": {"late": lambda ranks, rank: 0, "halves": True, "drain": True},
        "W at the end": {"late": lambda ranks, rank: 10**6, "halves": True, "drain": True},
        "whole backwards": {"halves": False},
        "W forgotten": {"drain": False},
        "W before I": {"late": lambda ranks, rank: -1, "halves": True, "drain": True},
    })
def my_schedule(ranks, micro_batches, rank, *, late=lambda ranks, rank: rank, halves=True, drain=True, more=0):
    """ZB-H1."""
    warm_up = min(max(0, ranks - 1 - rank + more), micro_batches)
    delay = late(ranks, rank)
    actions = [("F", number) for number in range(warm_up)]
    for number in range(micro_batches):
        actions += [("F", warm_up + number)] * (warm_up + number < micro_batches)
        early = delay < 0
        actions += [("W", number)] * early + [("I" if halves else "B", number)]
        actions += [("W", number - delay)] * (halves and not early and number >= delay)
    left = range(max(micro_batches - max(delay, 0), 0), micro_batches) if halves and drain else ()
    return actions + [("W", number) for number in left]
