"""The check of 24.4: how many samples each prompt should get, so that as many groups as possible have something to compare."""

from ....checks import MISUSED, Board, Trial, Wrong, exercise
from ....checks.words import a

CASES = [((0.5, 0.5), 8), ((0.9, 0.5, 0.1), 12), ((0.01, 0.5), 8), ((0.99, 0.98, 0.5, 0.4), 10),
         ((0.02, 0.05, 0.1, 0.2), 24), ((0.3, 0.3, 0.3), 5), ((1.0, 0.0, 0.6), 9), ((0.61, 0.76, 0.69, 0.27), 7),
         ((0.01,), 100), ((0.38, 0.29, 0.51, 0.64, 0.26), 12)]


def comparable(chance, samples):
    """The chance that a group has right answers and wrong ones.   chance: of one answer to be right."""
    return 1 - chance**samples - (1 - chance) ** samples if samples else 0.0


def told(answer, chances, budget):
    counts = answer(list(chances), budget)
    if not isinstance(counts, (list, tuple)) or len(counts) != len(chances) or not all(type(each) is int and each >= 0 for each in counts):
        raise Wrong(f"it returned {a(counts)}: return a list with the samples of each prompt", MISUSED)
    if sum(counts) > budget:
        raise Wrong(f"it returned {list(counts)}, {sum(counts)} samples: at most {budget} are allowed")
    return {"groups": sum(map(comparable, chances, counts)), "_counts": list(counts)}


def best_of(chances, budget):
    """(groups, counts), over all ways: for each prompt in turn, the best for every part of the budget."""
    best = {0: (0.0, [])}
    for chance in chances:
        ways = {}
        for spent, (groups, counts) in best.items():
            for more in range(budget - spent + 1):
                way = (groups + comparable(chance, more), [*counts, more])
                ways[spent + more] = max(ways.get(spent + more, (-1.0, [])), way)
        best = ways
    return max(best.values())


def one_by_one(chances, budget, least=0):
    """Each further sample goes where it helps most."""
    counts = [least] * len(chances)
    while sum(counts) < budget:
        gain = [comparable(chance, count + 1) - comparable(chance, count) for chance, count in zip(chances, counts, strict=True)]
        counts[gain.index(max(gain))] += 1
    return counts


def idle(seen):
    """Over the cases, prompts whose group has nothing to compare, in the mean."""
    return sum(len(chances) - case.get("groups", 0.0) for case, (chances, _) in zip(seen, CASES, strict=True))


BEST = sum(len(chances) - best_of(chances, budget)[0] for chances, budget in CASES)


@exercise(
    "24.4", "Beat this number: how many samples?", minutes=30, difficulty=3, answer="sample_counts", trials=[Trial(CASES, told, close=1e-9)],
    board=(Board("idle groups in all cases", lambda seen: idle(seen[0][0]), BEST, BEST,
                 "all ways were tried", ("groups",)),),
    mistakes={
        "equally many": {"divide": lambda chances, budget: [budget // len(chances)] * len(chances)},
        "one by one": {"divide": one_by_one},
        "all to one": {"divide": lambda chances, budget: [budget * (abs(chance - 0.5) == min(abs(each - 0.5) for each in chances))
                                                          // sum(abs(chance - 0.5) == abs(each - 0.5) for each in chances) for chance in chances]},
        "pairs": {"divide": lambda chances, budget: [2] * min(len(chances), budget // 2) + [0] * (len(chances) - budget // 2)},
    })
def counts_of_samples(chances, budget, *, divide=lambda chances, budget: best_of(tuple(chances), budget)[1]):
    """A list of counts."""
    return divide(chances, budget)
