"""The check of 21.4: on which rank each expert should live, so that the busiest rank has little."""

from functools import cache
from itertools import combinations

from ....checks import MISUSED, Board, Trial, Wrong, exercise
from ....checks.words import a

CASES = [((9, 1, 8, 2, 7, 3, 6, 4), 4), ((9, 9, 1, 1, 1, 1, 1, 1), 2), ((5, 4, 3, 3, 3, 2), 2), ((10, 7, 6, 5, 4, 3, 2, 1), 2),
         ((8, 7, 6, 5, 4, 3, 3, 2, 2), 3),
         ((20, 1, 1, 1), 2), ((7, 7, 6, 6, 5, 5, 4, 4), 4), ((10, 6, 5, 5, 5, 4, 3, 2, 2), 3),
         ((9, 12, 8, 7, 1, 10, 7, 4, 7), 3), ((9, 3, 5, 3, 2, 10), 3), ((7, 1, 5, 9, 8, 7, 5, 8), 4), ((7, 5, 2, 5, 1, 2, 11, 2), 2)]


def busiest(loads, homes, ranks):
    return max(sum(load for load, home in zip(loads, homes, strict=True) if home == rank) for rank in range(ranks))


def living(answer, loads, ranks):
    homes = answer(list(loads), ranks)
    if not isinstance(homes, (list, tuple)) or len(homes) != len(loads) or not all(isinstance(each, int) and 0 <= each < ranks for each in homes):
        raise Wrong(f"it returned {a(homes)}: return a list with the rank of each expert, 0 to {ranks - 1}", MISUSED)
    counts = [list(homes).count(rank) for rank in range(ranks)]
    if len(set(counts)) > 1:
        raise Wrong(f"the ranks have {counts} experts: every rank has equally many")
    return {"busiest": busiest(loads, homes, ranks), "_homes": list(homes)}


@cache
def best_groups(loads, left, ranks):
    """(load of the busiest rank, the experts of each rank), at best: over all choices of the first rank's experts, and of what is left.

    left: the experts that have no rank yet.
    """
    if ranks == 1:
        return sum(loads[each] for each in left), (left,)
    ways = []
    for others in combinations(left[1:], len(left) // ranks - 1):
        first = (left[0], *others)
        most, groups = best_groups(loads, tuple(each for each in left if each not in first), ranks - 1)
        ways.append((max(most, sum(loads[each] for each in first)), (first, *groups)))
    return min(ways)


def score(seen):
    """Over the cases, the work of the busiest rank as a multiple of the mean."""
    return sum(case["busiest"] * ranks / sum(loads) for case, (loads, ranks) in zip(seen, CASES, strict=True) if case.get("busiest"))


BEST = sum(best_groups(loads, tuple(range(len(loads))), ranks)[0] * ranks / sum(loads) for loads, ranks in CASES)


def all_ways(loads, ranks):
    """The best of all ways to divide the experts."""
    _, groups = best_groups(tuple(loads), tuple(range(len(loads))), ranks)
    return [next(rank for rank, group in enumerate(groups) if expert in group) for expert in range(len(loads))]


def to_the_emptiest(loads, ranks):
    """The heaviest expert first, each to the rank with the least load that has room."""
    homes, has, per = [0] * len(loads), [[] for _ in range(ranks)], len(loads) // ranks
    for expert in sorted(range(len(loads)), key=lambda each: -loads[each]):
        rank = min((rank for rank in range(ranks) if len(has[rank]) < per), key=lambda rank: sum(has[rank]))
        has[rank].append(loads[expert])
        homes[expert] = rank
    return homes


def by_rank_order(loads, ranks, snake):
    """The heaviest first, to one rank after the other; with `snake` every second round goes back."""
    homes = [0] * len(loads)
    for place, expert in enumerate(sorted(range(len(loads)), key=lambda each: -loads[each])):
        turn, rank = divmod(place, ranks)
        homes[expert] = ranks - 1 - rank if snake and turn % 2 else rank
    return homes


@exercise(
    "21.4", "Beat this number: where do experts live?", minutes=30, difficulty=2, answer="expert_homes", trials=[Trial(CASES, living)],
    board=(Board("busiest rank's load in all cases", lambda seen: score(seen[0][0]), BEST, BEST,
                 "all ways were tried", ("busiest",)),),
    mistakes={
        "in order": {"place": lambda loads, ranks: [number * ranks // len(loads) for number in range(len(loads))]},
        "in turn": {"place": lambda loads, ranks: [number % ranks for number in range(len(loads))]},
        "to the emptiest": {"place": to_the_emptiest},
        "heaviest in turn": {"place": lambda loads, ranks: by_rank_order(loads, ranks, False)},
        "there and back": {"place": lambda loads, ranks: by_rank_order(loads, ranks, True)},
    })
def best_homes(loads, ranks, *, place=all_ways):
    """A list with a rank for each expert."""
    return place(loads, ranks)
