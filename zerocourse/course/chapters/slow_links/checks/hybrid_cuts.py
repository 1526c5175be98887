"""The checks of 20.1 and 20.2: what hybrid sharding sends, and how many ranks should divide a buffer."""

import numbers

from ....checks import Board, Trial, Wrong, exercise

# 20.1 ---------------------------------------------------------------------------------------------------------------

@exercise(
    "20.1", "Inside the node, and between nodes", minutes=15, difficulty=2,
    cases=[(4800, 16, 4, 1, True), (4800, 4, 4, 1, True), (4800, 16, 1, 1, True), (4800, 16, 4, 3, True),
           (4800, 16, 4, 3, False), (9600, 64, 8, 2, False), (9600, 6, 2, 1, False), (1000, 12, 3, 1, True), (7, 8, 4, 1, True)],
    mistakes={
        "two passes": {"passes": lambda count: 2 * count},
        "all ranks": {"inside_group": lambda ranks, group: ranks},
        "whole": {"inside_part": lambda group: 1},
        "one way": {"ways": 1},
        "whole gradients": {"slice_of": lambda params, group: params},
        "wrong slice": {"slice_of": lambda params, group: params * group},
        "all of the slice": ({"between_part": lambda nodes: nodes > 1}, {"between_part": lambda nodes: 1}),
        "to each node": {"between_part": lambda nodes: nodes - 1},
        "every rank is a node": {"nodes_of": lambda ranks, group: ranks},
        "one micro-batch": ({"passes": lambda count: 3}, {"passes": lambda count: 2 * count + 1}, {"passes": lambda count: count + 2}),
        "always each": {"sums": lambda count, each: count},
        "gathered once": {"sums": lambda count, each: (count + 1) / 2 if each else 1},
        "never each": {"sums": lambda count, each: 1},
        "fp32": {"size": 4},
        "swapped": {"turned": True},
        "whole bytes": ({"number": int}, {"number": round}),
        "part of the group": lambda params, ranks, group, micro_batches, each: (
            6.0 * micro_batches * params * (group - 1) / group,
            4.0 * params / group * (group - 1) / group * (micro_batches if each else 1)),
        "whole elements": tuple(
            lambda params, ranks, group, micro_batches, each, between=between: (
                6.0 * micro_batches * (params // group) * (group - 1),
                4.0 * between(params // group, ranks // group) * (micro_batches if each else 1))
            for between in (lambda piece, nodes: piece // nodes * (nodes - 1), lambda piece, nodes: 4 * piece * (nodes - 1) // nodes / 4)),
    })
def hybrid_bytes(params, ranks, group, micro_batches, each, *, passes=lambda count: 3 * count, inside_group=lambda ranks, group: group,
                 inside_part=lambda group: (group - 1) / group, ways=2, slice_of=lambda params, group: params / group,
                 between_part=lambda nodes: (nodes - 1) / nodes, nodes_of=lambda ranks, group: ranks // group,
                 sums=lambda count, each: count if each else 1, size=2, turned=False, number=float):
    """(inside, between) of one rank in a step."""
    nodes, members = nodes_of(ranks, group), inside_group(ranks, group)
    inside = size * passes(micro_batches) * params * inside_part(members)
    between = size * ways * sums(micro_batches, each) * slice_of(params, group) * between_part(nodes)
    both = number(inside), number(between)
    return both[::-1] if turned else both


# 20.2 ---------------------------------------------------------------------------------------------------------------

PARAMS, UNITS, NODE, FLOOR = 8 * 10**9, 40, 8, 10 * 10**9
RING, ADAPTER, LATENCY = 400e9, 50e9, 3e-5


def states_bytes(group):
    """Of a rank, where `group` ranks divide all model states."""
    return 16 * PARAMS / group + FLOOR


def seconds(ranks, group, ring=RING, adapter=ADAPTER, latency=LATENCY, replicas=True):
    """Of all collectives of a step: three passes in the group, and two over the replicas of a slice.

    A ring that leaves a node has all its adapters; for the replicas each rank of a node has one.
    """
    groups = ranks // group
    spent = 3 * (2 * PARAMS * (group - 1) / group / ring + UNITS * latency * (group - 1))
    return spent + 2 * (2 * PARAMS / group * (groups - 1) / groups / adapter + UNITS * latency * (groups - 1)) * replicas


def divisors(ranks):
    return [group for group in range(1, ranks + 1) if ranks % group == 0]


def chosen(answer, ranks, card):
    """What comes of the number that it chooses."""
    group = answer(ranks, card)
    fitting = [each for each in divisors(ranks) if states_bytes(each) <= card]
    best = min(fitting, key=lambda each: seconds(ranks, each), default=None)
    told = {"_group": group, "_ranks": ranks, "_card": card, "_best": best}
    if group is None or best is None:
        return {"none": group is None, "_needs": 0} | told
    if isinstance(group, bool) or not isinstance(group, numbers.Integral) or group < 1:
        raise Wrong(f"it returned {group!r}: the number of ranks in a group is wanted, or None")
    needs = states_bytes(group)
    return {"none": False, "divides": ranks % group == 0, "fits": needs <= card, "_needs": needs,
            "seconds": seconds(ranks, group) if ranks % group == 0 else 0.0} | told


CLUSTERS = [(64, 80e9), (6000, 200e9), (1536, 24e9), (96, 14e9), (48, 30e9), (8, 200e9), (16, 80e9), (96, 13.5e9), (8, 20e9), (8, 17e9),
            (8, 15e9)]


@exercise(
    "20.2", "Beat this number: how large a group?", minutes=30, difficulty=3,
    trials=[Trial(CLUSTERS, chosen, close=1e-4)],
    board=(Board("simulated seconds in all cases", lambda seen: sum(case.get("seconds", 0.0) for case in seen[0][0]), 2.1777433333333334,
                 2.1777433333333334,
                 "all divisors were tried", ("seconds",)),),
    mistakes={
        "all ranks": ({"choose": lambda ranks, groups: max(groups)}, {"cost": {"latency": 0.0}}),
        "smallest": ({"choose": lambda ranks, groups: min(groups)}, {"cost": {"replicas": False}}),
        "the node": {"allowed": lambda ranks, card: [NODE]},
        "does not fit": ({"allowed": lambda ranks, card: divisors(ranks)},
                         {"allowed": lambda ranks, card: [group for group in divisors(ranks) if (16 * PARAMS + FLOOR) / group <= card]}),
        "no floor": {"allowed": lambda ranks, card: [group for group in divisors(ranks) if states_bytes(group) - FLOOR <= card]},
        "powers of two": {"allowed": lambda ranks, card: [group for group in divisors(ranks) if states_bytes(group) <= card
                                                          and group & (group - 1) == 0]},
        "exactly full": {"allowed": lambda ranks, card: [group for group in divisors(ranks) if states_bytes(group) < card]},
        "whole nodes": {"allowed": lambda ranks, card: [group for group in divisors(ranks) if states_bytes(group) <= card
                                                        and 0 in (group % NODE, NODE % group)]},
        "no divisors": {"allowed": lambda ranks, card: [group for group in range(1, ranks + 1) if states_bytes(group) <= card]},
        "one adapter": {"cost": {"ring": ADAPTER}},
        "all adapters": {"cost": {"adapter": RING}},
        "one unit": {"cost": {"latency": LATENCY / UNITS}},
        "no answer": {"none": 1},
    })
def best_group(ranks, card, *, allowed=lambda ranks, card: [each for each in divisors(ranks) if states_bytes(each) <= card],
               choose=None, cost=None, none=None):
    """The group whose collectives take least, of those that fit."""
    groups = allowed(ranks, card)
    if not groups:
        return none
    return choose(ranks, groups) if choose else min(groups, key=lambda group: seconds(ranks, group, **(cost or {})))
