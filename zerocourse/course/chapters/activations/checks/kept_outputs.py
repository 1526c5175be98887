"""The check of 13.7: the fewest bytes to keep when only so many FLOPs may be computed again."""

from ....checks import Board, Trial, Wrong, exercise

BLOCK = [{"name": name, "bytes": units * 100, "flops": flops}
         for name, units, flops in (("ln_1", 1, 1), ("c_attn", 3, 60), ("attention", 1, 43), ("c_proj", 1, 20), ("ln_2", 1, 1),
                                    ("c_fc", 4, 80), ("gelu", 4, 6), ("mlp.c_proj", 1, 80))]
"""A block of GPT-2: bytes in hundredths of a unit, FLOPs in parts of a linear layer's."""
UNEVEN = [{"name": name, "bytes": nbytes, "flops": flops}
          for name, nbytes, flops in (("a", 60, 10), ("b", 100, 20), ("c", 120, 30), ("d", 5, 1), ("e", 70, 29))]

PAIRS = [{"name": name, "bytes": nbytes, "flops": flops}  # of which two are to be exchanged for three
         for name, nbytes, flops in (("a", 4, 4), ("b", 6, 4), ("c", 28, 5), ("d", 18, 8), ("e", 8, 16), ("f", 30, 20))]

MANY = [{"name": f"{number}.{each['name']}", "bytes": each["bytes"] + 7 * number * number, "flops": each["flops"] + number}
        for number in range(5) for each in BLOCK]


def by(key, largest):
    """Give up the outputs in an order, as long as the budget allows it."""
    def choose(operations, budget):
        given_up, used = [], 0
        for each in sorted(operations, key=key, reverse=largest):
            if used + each["flops"] <= budget:
                given_up.append(each["name"])
                used += each["flops"]
        return [each["name"] for each in operations if each["name"] not in given_up]
    return choose


def one_before(operations, budget):
    """By the ratio of bytes to FLOPs, but one of them, whichever is best, before all others."""
    ways = [by(lambda each, first=first: (each is first, each["bytes"] / each["flops"]), True)(operations, budget) for first in operations]
    return min(ways, key=lambda names: sum(each["bytes"] for each in operations if each["name"] in names))


def best(operations, budget, worth=lambda each: each["bytes"], allowed=lambda used, budget: used <= budget):
    """For each number of FLOPs the most that can be given up for it, operation by operation."""
    found = {0: (0, ())}
    for each in operations:
        for used, (gain, given_up) in list(found.items()):
            more = used + each["flops"], gain + worth(each)
            if more[0] <= budget and more[1] > found.get(more[0], (-1, ()))[0]:
                found[more[0]] = more[1], (*given_up, each["name"])
    _, given_up = max(entry for used, entry in found.items() if allowed(used, budget))
    return [each["name"] for each in operations if each["name"] not in given_up]


def cost(answer, operations, budget):
    """What is kept, and what is computed again."""
    chosen = answer([dict(each) for each in operations], budget)
    names = [each["name"] for each in operations]
    if not isinstance(chosen, (list, tuple, set, frozenset)) or not all(each in names for each in chosen):
        raise Wrong(f"it returned {chosen!r:.80}, which is no list of names of operations", "no names")
    again = sum(each["flops"] for each in operations if each["name"] not in chosen)
    return {"flops": again <= budget, "bytes": sum(each["bytes"] for each in operations if each["name"] in chosen)}


@exercise(
    "13.7", "Beat this number", minutes=30, difficulty=3,
    board=(Board("bytes kept in all cases", lambda seen: sum(case["bytes"] for trial in seen for case in trial[0]), 5388, 5388,
                 "for every number of FLOPs the most bytes were found", ("bytes",)),),
    trials=[Trial([(BLOCK, 0), (BLOCK, 8), (BLOCK, 291)], cost), Trial([(UNEVEN, 50), (UNEVEN, 31), (MANY, 700), (PAIRS, 26)], cost)],
    mistakes={
        "over budget": {"choose": lambda operations, budget: []},
        "all kept": {"choose": lambda operations, budget: [each["name"] for each in operations]},
        "the others": {"choose": lambda operations, budget: [each["name"] for each in operations
                                                             if each["name"] not in best(operations, budget)]},
        "largest first": {"choose": by(lambda each: each["bytes"], True)},
        "cheapest first": {"choose": by(lambda each: each["flops"], False)},
        "ratio first": ({"choose": by(lambda each: each["bytes"] / each["flops"], True)}, {"choose": one_before}),
        "most operations": {"choose": lambda operations, budget: best(operations, budget, lambda each: 1 - each["bytes"] / 1e6)},
        "below the budget": {"choose": lambda operations, budget: best(operations, budget,
                                                                       allowed=lambda used, budget: used < budget or not used)},
    })
def keep(operations, budget, *, choose=best):
    """The names of the outputs to keep."""
    return choose(operations, budget)
