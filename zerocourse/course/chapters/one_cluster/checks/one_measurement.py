"""The check of 18.4: which mistakes scale a gradient, found by one measurement on a mesh of one's own choice."""

import itertools
from fractions import Fraction

from ....checks import MISUSED, Trial, When, Wrong, exercise

RANKS = 16
DP, TP, MISSING, TWICE, BOUNDARY = "sum over dp", "sum over tp", "sum over micro-batches", "divided twice", "each boundary"


def norms_of(mistakes, pp, dp, tp, micro_batches):
    """By stage of the pipeline: the norm of the gradient over the right one."""
    factor = Fraction((dp if DP in mistakes else 1) * (tp if TP in mistakes else 1) * (micro_batches if MISSING in mistakes else 1),
                      micro_batches if TWICE in mistakes else 1)
    return [factor / micro_batches ** (pp - 1 - stage) if BOUNDARY in mistakes else factor for stage in range(pp)]


def diagnosed(answer, mistakes):
    """What it says of mistakes, by a measurement that it makes itself."""
    runs = []

    def measure(pp, dp, tp, micro_batches):
        if not all(isinstance(size, int) and size > 0 for size in (pp, dp, tp, micro_batches)):
            raise Wrong(f"it measured with pp={pp}, dp={dp}, tp={tp}, micro_batches={micro_batches}: each must be a whole number "
                        "from 1 on", MISUSED)
        runs.append((pp, dp, tp, micro_batches))
        return norms_of(mistakes, pp, dp, tp, micro_batches)

    named = answer(measure)
    if not isinstance(named, set | frozenset | list | tuple):
        raise Wrong(f"it returned {named!r}: return a set of names", MISUSED)
    ranks = max((pp * dp * tp for pp, dp, tp, _ in runs), default=0)
    seen = {"measurements": "more" if len(runs) > 1 else "at most 1", "ranks": ranks if ranks > RANKS else "at most 16"}
    if set(named) == set(mistakes) or not runs:
        return seen | {"named": sorted(named)}
    like = next((other for other in EVERY if set(other) != set(mistakes) and norms_of(other, *runs[-1]) == norms_of(mistakes, *runs[-1])),
                None)
    return seen | {"named": {"named": sorted(named), "like": like, "mesh": runs[-1]}}


MISTAKES = (DP, TP, MISSING, TWICE, BOUNDARY)
EVERY = [some for number in range(len(MISTAKES) + 1) for some in itertools.combinations(MISTAKES, number)
         if not {MISSING, TWICE} <= set(some)]


def in_words(case, got, want):
    """What it named, and, where its mesh cannot tell better, what looks the same there."""
    got = got if isinstance(got, dict) else {"named": got, "like": None}
    words = {"planted": listed(case[0]), "named": listed(got["named"]), "like": listed(got["like"] or ())}
    return "named" if got["like"] is None else "like", got | words


def listed(names):
    return " and ".join(f'"{name}"' for name in names) or "no mistakes"


def alike(number):
    """Does the mesh take other mistakes for those that were planted, so many at most on either side?"""
    return When("named", lambda got, want: isinstance(got, dict) and got["like"] is not None
                and got["mesh"][0] > 1 and max(len(got["like"]), len(want)) <= number)


def simplest(ratio, dp, tp, micro_batches):
    """The first single mistake that makes such a ratio."""
    return {DP} if ratio == dp else {TP} if ratio == tp else {MISSING} if ratio == micro_batches else (
        {TWICE} if ratio == Fraction(1, micro_batches) else set())


def factors(ratio, dp, tp, micro_batches):
    for found in ({DP, TP}, {DP}, {TP}, set()):
        rest = ratio / ((dp if DP in found else 1) * (tp if TP in found else 1))
        if rest in (1, micro_batches, Fraction(1, micro_batches)):
            return found | ({MISSING} if rest == micro_batches != 1 else {TWICE} if rest != 1 else set())
    return set()


@exercise(
    "18.4", "The detective's one measurement", minutes=35, difficulty=3,
    trials=[Trial([(each,) for each in EVERY], diagnosed, words={"named": in_words})],
    mistakes={
        "a factor of 1": ({"sizes": (2, 1, 3, 5)}, When("named", lambda got, want: isinstance(got, dict) and 1 in got["mesh"][1:])),
        "equal sizes": ({"sizes": (2, 2, 2, 2)}, alike(1)),
        "as many micro-batches as replicas": {"sizes": (2, 2, 3, 2)},
        "a product": ({"sizes": (2, 2, 3, 6)}, alike(4)),
        "one stage": ({"sizes": (1, 2, 3, 5)},
                      When("named", lambda got, want: isinstance(got, dict) and got["mesh"][0] == 1 and BOUNDARY in want)),
        "no boundary": {"bounds": lambda ratios: False},
        "first stage": ({"stage": 0}, {"stage": 0, "compares": True}),
        "one mistake": {"split": simplest},
        "too many ranks": {"sizes": (2, 3, 5, 7)},
        "two measurements": {"again": True},
    })
def diagnose(measure, *, sizes=(2, 2, 3, 5), stage=-1, split=factors, again=False, compares=False,
             bounds=lambda ratios: ratios[0] != ratios[-1]):
    """Sizes that are different primes: then the ratio of the last stage has one factorisation."""
    pp, dp, tp, micro_batches = sizes
    ratios = measure(pp, dp, tp, micro_batches)
    if again:
        measure(pp, dp, tp, micro_batches)
    found = split(ratios[stage], dp, tp, micro_batches)
    return found | ({BOUNDARY} if (stage == -1 or compares) and bounds(ratios) else set())
