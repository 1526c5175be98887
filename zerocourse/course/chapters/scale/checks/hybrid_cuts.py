"""The checks of 25.4 and 25.5: what hybrid sharding sends, and how many ranks should divide a buffer."""

from ....checks import Board, Trial, Wrong, exercise

# 25.4 ---------------------------------------------------------------------------------------------------------------

@exercise(
    "25.4", "Inside the node, and between nodes", minutes=20, difficulty=2,
    cases=[(4800, 16, 4, 1, True), (4800, 4, 4, 1, True), (4800, 16, 1, 1, True), (4800, 16, 4, 3, True),
           (4800, 16, 4, 3, False), (9600, 64, 8, 2, False), (9600, 6, 2, 1, False)],
    mistakes={
        "two passes": {"passes": 2},
        "all ranks": {"inside_group": lambda ranks, group: ranks},
        "whole": {"inside_part": lambda group: 1},
        "one way": {"ways": 1},
        "whole gradients": {"slice_of": lambda params, group: params},
        "wrong slice": {"slice_of": lambda params, group: params * group},
        "all of the slice": {"between_part": lambda nodes: 1 if nodes > 1 else 0},
        "every rank is a node": {"nodes_of": lambda ranks, group: ranks},
        "one micro-batch": {"micro": lambda count: 1},
        "always each": {"sums": lambda count, each: count},
        "never each": {"sums": lambda count, each: 1},
        "fp32": {"size": 4},
        "swapped": {"turned": True},
    })
def hybrid_bytes(params, ranks, group, micro_batches, each, *, passes=3, inside_group=lambda ranks, group: group,
                 inside_part=lambda group: (group - 1) / group, ways=2, slice_of=lambda params, group: params / group,
                 between_part=lambda nodes: (nodes - 1) / nodes, nodes_of=lambda ranks, group: ranks // group,
                 micro=lambda count: count, sums=lambda count, each: count if each else 1, size=2, turned=False):
    """(inside, between) of one rank in a step.

    two passes: Inside the group there are three passes for each micro-batch: two gathers and a reduce-scatter.
    all ranks: You let all ranks take part in the gathers: only those of the group do.
    whole: A rank has its own slice already: it sends (S − 1)/S of the buffer and not all of it.
    one way: To add up a slice over R ranks and to have the sum everywhere takes two passes, a reduce-scatter and a gather.
    whole gradients: Between the nodes only a slice travels, Ψ/S elements: that is why it pays.
    wrong slice: A slice is Ψ/S elements: you multiplied.
    all of the slice: Of its slice a rank sends (R − 1)/R in each of the two passes.
    every rank is a node: R is the number of groups, ranks / S.
    one micro-batch: Stage 3 gathers and reduces for each micro-batch.
    always each: Where `each` is False, replicas are added up once in a step.
    never each: Where `each` is True, replicas are added up for each micro-batch.
    fp32: bf16 has 2 bytes.
    swapped: You returned them the other way round: inside first.
    right: of all that a rank sends, only the second number has to go through the slow network.
    """
    nodes, members = nodes_of(ranks, group), inside_group(ranks, group)
    inside = size * passes * micro(micro_batches) * params * inside_part(members)
    between = size * ways * sums(micro_batches, each) * slice_of(params, group) * between_part(nodes)
    return (between, inside) if turned else (inside, between)


# 25.5 ---------------------------------------------------------------------------------------------------------------

PARAMS, UNITS, NODE, FLOOR = 8 * 10**9, 40, 8, 10 * 10**9
INSIDE, BETWEEN, LATENCY = 400e9, 50e9, 3e-5


def states_bytes(group):
    """Of a rank, where `group` ranks divide all model states."""
    return 16 * PARAMS / group + FLOOR


def seconds(ranks, group, inside=INSIDE, between=BETWEEN, latency=LATENCY, replicas=True):
    """Of all collectives of a step: three passes in the group, and two over the replicas of a slice."""
    nodes, rate = ranks // group, inside if group <= NODE else between
    spent = 3 * (2 * PARAMS * (group - 1) / group / rate + UNITS * latency * (group - 1))
    return spent + 2 * (2 * PARAMS / group * (nodes - 1) / nodes / between + UNITS * latency * (nodes - 1)) * replicas


def divisors(ranks):
    return [group for group in range(1, ranks + 1) if ranks % group == 0]


def chosen(answer, ranks, card):
    """What comes of the number that it chooses.

    case: {0} ranks of {1:.0f} bytes
    divides: {_group} ranks in a group do not divide {_ranks} ranks.
    fits: with {_group} ranks in a group a step needs {_needs:.3g} bytes, and a card has {_card:.3g}.
    seconds: with {_group} ranks in a group the collectives take {got} seconds, and {want} are possible.
    none: it returned {_group}, and {_best} is right.
    """
    group = answer(ranks, card)
    fitting = [each for each in divisors(ranks) if states_bytes(each) <= card]
    best = min(fitting, key=lambda each: seconds(ranks, each), default=None)
    told = {"_group": group, "_ranks": ranks, "_card": card, "_best": best}
    if group is None or best is None:
        return {"none": group is None, "_needs": 0} | told
    if isinstance(group, bool) or not isinstance(group, int) or group < 1:
        raise Wrong(f"it returned {group!r}: the number of ranks in a group is wanted, or None")
    needs = states_bytes(group)
    return {"none": False, "divides": ranks % group == 0, "fits": needs <= card, "_needs": needs,
            "seconds": seconds(ranks, group) if ranks % group == 0 else 0.0} | told


CLUSTERS = [(64, 80e9), (6000, 200e9), (1536, 24e9), (96, 14e9), (48, 30e9), (8, 200e9), (8, 20e9)]


@exercise(
    "25.5", "Beat this number: how large a group?", minutes=30, difficulty=3,
    trials=[Trial(CLUSTERS, chosen, close=1e-4)],
    board=(Board("simulated seconds in all cases", lambda seen: sum(case.get("seconds", 0.0) for case in seen[0][0]), 4.194343333333334,
                 4.194343333333334,
                 "all divisors were tried", ("seconds",)),),
    mistakes={
        "all ranks": {"choose": lambda ranks, groups: max(groups)},
        "smallest": ({"choose": lambda ranks, groups: min(groups)}, {"cost": {"replicas": False}}),
        "the node": {"allowed": lambda ranks, card: [NODE]},
        "does not fit": {"allowed": lambda ranks, card: divisors(ranks)},
        "no floor": {"allowed": lambda ranks, card: [group for group in divisors(ranks) if states_bytes(group) - FLOOR <= card]},
        "powers of two": {"allowed": lambda ranks, card: [group for group in divisors(ranks) if states_bytes(group) <= card
                                                          and group & (group - 1) == 0]},
        "no divisors": {"allowed": lambda ranks, card: [group for group in range(1, ranks + 1) if states_bytes(group) <= card]},
        "no latency": {"cost": {"latency": 0.0}},
        "one rate": {"cost": {"inside": BETWEEN}},
        "no answer": {"none": 1},
    })
def best_group(ranks, card, *, allowed=lambda ranks, card: [each for each in divisors(ranks) if states_bytes(each) <= card],
               choose=None, cost=None, none=None):
    """The group whose collectives take least, of those that fit.

    all ranks: You took all ranks as one group: it holds least, and its ring is the longest there is.
    smallest: You took the smallest group that fits: the more it holds, the more has to be added up between the nodes.
    the node: You took the node's eight ranks always: they need not fit, and there may be something quicker.
    does not fit: You did not compare with the card.
    no floor: You forgot what every rank needs besides its model states.
    powers of two: You tried powers of two alone: any number that divides the ranks will do.
    no divisors: Groups must be equally large, so their size divides the number of ranks.
    no latency: You left the latencies out: a ring of S ranks has S − 1 of them for each unit and pass.
    one rate: Inside a node the links are faster: groups of up to eight ranks use them alone.
    no answer: Where nothing fits, return None.
    right: no other group that fits has its collectives done sooner.
    """
    groups = allowed(ranks, card)
    if not groups:
        return none
    return choose(ranks, groups) if choose else min(groups, key=lambda group: seconds(ranks, group, **(cost or {})))
