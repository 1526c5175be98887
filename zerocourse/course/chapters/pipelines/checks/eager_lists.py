"""The check of 17.7: 1F1B whose warm-up is as long as messages ask for, run on a clock with transfers."""

from .....parallel.pipeline import Costs, simulate
from ....checks import Trial, exercise
from .written_lists import first_problem, planned

CASES = [(2, 8, 1, 2, 3), (3, 9, 1, 2, 2), (4, 12, 1, 2, 1), (4, 12, 1, 1, 1), (3, 8, 2, 4, 1), (4, 8, 1, 2, 0), (2, 3, 1, 2, 4),
         (2, 5, 1, 1, 3), (2, 6, 1, 3, 2), (3, 8, 1, 3, 1), (2, 8, 3, 3, 3)]


def hops_of(ranks, rank):
    """Between a rank and the last one."""
    return ranks - 1 - rank


def clocked(answer, ranks, micro_batches, forward, backward, transfer):
    """How long the lists take with transfers, and how much each rank holds."""
    def timed(lists):
        return simulate(lists, Costs(forward, backward, transfer=transfer))

    def own(ranks, micro_batches, rank):
        return answer(ranks, micro_batches, rank, forward, backward, transfer)

    def ours(ranks, micro_batches, rank):
        return eager(ranks, micro_batches, rank, forward, backward, transfer)

    plan = planned(own, ranks, micro_batches, ("F", "B"))
    seen = {"problem": first_problem(plan)}
    if seen["problem"]:
        return seen
    timing, goal = timed(plan), timed(planned(ours, ranks, micro_batches, ("F", "B")))
    seen["_units"], seen["_goal"] = int(timing.makespan), int(goal.makespan)
    over = [rank for rank in range(ranks) if timing.in_flight(rank) > goal.in_flight(rank)]
    seen["_rank"] = over[0] if over else 0
    seen["_held"], seen["_enough"] = (each.in_flight(seen["_rank"]) for each in (timing, goal))
    return seen | {"too slow": seen["_units"] > seen["_goal"], "too many": bool(over)}


@exercise(
    "17.7", "Memory buys latency", minutes=25, difficulty=2,
    replaces=("zerocourse.parallel.pipeline.schedules.synchronous:*",
              "zerocourse.course.chapters.pipelines.sleeping:eager_1f1b"),
    trials=[Trial(CASES, clocked)],
    mistakes={
        "no transfers": {"more": lambda way, work: 0},
        "one way": {"more": lambda way, work: -(-way // work)},
        "rounded down": {"more": lambda way, work: 2 * way // work},
        "four messages": {"more": lambda way, work: -(-4 * way // work)},
        "one more": {"more": lambda way, work: 2 * way // work + 1},
        "at least one": {"more": lambda way, work: max(1, -(-2 * way // work))},
        "forward alone": {"work": lambda forward, backward: forward},
        "backward alone": {"work": lambda forward, backward: backward},
        "backward is twice": {"work": lambda forward, backward: 3 * forward},
        "always twice": {"more": lambda way, work: 1},
        "GPipe": {"most": lambda warm_up, micro_batches: micro_batches},
        "more than there are": {"most": lambda warm_up, micro_batches: warm_up},
        "the same on every rank": {"hops": lambda ranks, rank: ranks - 1},
        "once for all hops": {"widened": lambda rank, away: min(away, 1)},
        "rank 0 alone": {"widened": lambda rank, away: 0 if rank else away},
        "mirrored": {"hops": lambda ranks, rank: rank},
    })
def eager(ranks, micro_batches, rank, forward, backward, transfer, *, more=lambda way, work: -(-2 * way // work),
          work=lambda forward, backward: forward + backward, most=min, hops=hops_of,
          widened=lambda rank, away: away):
    """1F1B that begins with more forwards."""
    extra, away = more(transfer, work(forward, backward)), hops(ranks, rank)
    warm_up = most(away + extra * widened(rank, away), micro_batches)
    actions = [("F", number) for number in range(warm_up)]
    for number in range(micro_batches - warm_up):
        actions += [("F", warm_up + number), ("B", number)]
    return actions + [("B", number) for number in range(max(micro_batches - warm_up, 0), micro_batches)]
