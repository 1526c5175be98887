"""The check of 18.4: which mistakes scale a gradient, found by one measurement on a mesh of one's own choice."""

from fractions import Fraction

from ...exercise import exercise
from ...trace import Trial
from ...verdict import MISUSED, Wrong

RANKS = 16
DP, TP, MISSING, TWICE, BOUNDARY = "sum over dp", "sum over tp", "sum over micro-batches", "divided twice", "each boundary"


def norms_of(mistakes, pp, dp, tp, micro_batches):
    """By stage of the pipeline: the norm of the gradient over the right one."""
    factor = Fraction((dp if DP in mistakes else 1) * (tp if TP in mistakes else 1) * (micro_batches if MISSING in mistakes else 1),
                      micro_batches if TWICE in mistakes else 1)
    return [factor / micro_batches ** (pp - 1 - stage) if BOUNDARY in mistakes else factor for stage in range(pp)]


def diagnosed(answer, mistakes):
    """What it says of mistakes, by a measurement that it makes itself.

    case: of the planted mistakes {0}
    measurements: `diagnose` called `measure` {got} times: a run costs hours, so one must be enough.
    ranks: the mesh has {got} ranks, and there are no more than 16.
    named: `diagnose` named {got}, and planted were {want}.
    """
    runs = []

    def measure(pp, dp, tp, micro_batches):
        if not all(isinstance(size, int) and size > 0 for size in (pp, dp, tp, micro_batches)):
            raise Wrong(f"it measured with pp={pp}, dp={dp}, tp={tp}, micro_batches={micro_batches}: each must be a whole number "
                        "from 1 on", MISUSED)
        runs.append(pp * dp * tp)
        return norms_of(mistakes, pp, dp, tp, micro_batches)

    named = answer(measure)
    if not isinstance(named, set | frozenset | list | tuple):
        raise Wrong(f"it returned {named!r}: return a set of names", MISUSED)
    return {"measurements": "more" if len(runs) > 1 else "at most 1", "ranks": max(runs) if max(runs, default=0) > RANKS else "at most 16",
            "named": sorted(named)}


CASES = [(), (DP,), (TP,), (MISSING,), (TWICE,), (BOUNDARY,), (DP, TP), (DP, BOUNDARY), (TP, MISSING), (DP, TWICE), (TWICE, BOUNDARY),
         (DP, TP, MISSING, BOUNDARY), (MISSING, BOUNDARY), (TP, TWICE, BOUNDARY), (DP, TP, TWICE)]


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
    "18.4", "The detective's one measurement", minutes=35, difficulty=3, answer="diagnose",
    trials=[Trial([(each,) for each in CASES], diagnosed)],
    mistakes={
        "equal sizes": {"sizes": (2, 2, 2, 2)},
        "as many micro-batches as replicas": {"sizes": (2, 2, 3, 2)},
        "a product": {"sizes": (2, 2, 3, 6)},
        "one stage": {"sizes": (1, 2, 3, 5)},
        "first stage": {"stage": 0},
        "one mistake": {"split": simplest},
        "too many ranks": {"sizes": (2, 3, 5, 7)},
        "two measurements": {"again": True},
    })
def diagnose(measure, *, sizes=(2, 2, 3, 5), stage=-1, split=factors, again=False):
    """Sizes that are different primes: then the ratio of the last stage has one factorisation.

    equal sizes: On your mesh several mistakes have the same factor, so the ratio does not tell them apart. Which sizes give
        every product of factors only once?
    as many micro-batches as replicas: You measured with as many micro-batches as replicas (or tensor-parallel ranks): then a sum
        over the one looks like a sum over the other.
    a product: Two of your factors multiply to a third one, so two mistakes at once look like another one.
    one stage: You measured without a boundary, so a factor at each boundary cannot be seen: you need two stages.
    first stage: You took the ratio of the first stage for that of all: boundaries do not touch the last stage, so look there
        for the rest.
    one mistake: You look for one mistake: there may be several at once, and then their factors multiply.
    too many ranks: Your mesh has more ranks than the 16 that you have.
    two measurements: You measured twice: a run costs hours, and with the right sizes one is enough.
    right: with sizes that are different primes one table of norms names every mistake, and all that come together.
    """
    pp, dp, tp, micro_batches = sizes
    ratios = measure(pp, dp, tp, micro_batches)
    if again:
        measure(pp, dp, tp, micro_batches)
    found = split(ratios[stage], dp, tp, micro_batches)
    return found | ({BOUNDARY} if stage == -1 and ratios[0] != ratios[-1] else set())
