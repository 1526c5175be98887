"""The checks of 26.3 and 26.6: from measurements to a verdict, and to the condition under which it holds."""

from math import nan

from ....checks import exercise

# 26.3 ---------------------------------------------------------------------------------------------------------------

FOUND = [
    (0.3, 0.5, {"1": 0.72, "2": 0.36, "8": 0.09}), (0.3, 0.5, {"1": 0.31, "4": 0.5}), (0.3, 0.5, {"1": 0.1, "2": 0.2}),
    (0.3, 0.5, {}), (0.3, 0.5, {"1": 0.2, "2": 0.6}), (2, 2, {"stage 1": 2, "stage 2": 5}),
    (1, 3, {"a": nan, "b": 2}), (1, 3, {"a": nan}), (0, 10, {"z": 5, "b": 11, "a": 10, "c": 0}),
    (1, 3, {"b": 2, "a": nan}), (0, 1, {"a": 1.0000001}), (0, 1, {"a": 0, "B": 1, "c": 5}), (1, 3, {"a": 2})]


def holds_in(value, low, high):
    return low <= value <= high


@exercise(
    "26.3", "Write the judge", minutes=20, difficulty=1, cases=FOUND,
    mistakes={
        "the mean": {"answers": lambda found, low, high: "true" if found
                     and low <= sum(found.values()) / len(found) <= high else None},
        "once is enough": {"answers": lambda found, low, high: "true"
                           if any(holds_in(each, low, high) for each in found.values()) else None},
        "nothing is true": {"nothing": "true"},
        "nothing is false": {"nothing": "false"},
        "NaN holds": {"holds": lambda value, low, high: not (value < low or value > high)},
        "NaN was not measured": lambda low, high, found: verdict_of(low, high, {name: value for name, value in found.items() if value == value}),
        "limits left out": {"holds": lambda value, low, high: low < value < high},
        "upper limit left out": {"holds": lambda value, low, high: low <= value < high},
        "lower limit left out": {"holds": lambda value, low, high: low < value <= high},
        "one side": {"holds": lambda value, low, high: value >= low},
        "the other side": {"holds": lambda value, low, high: value <= high},
        "where it fails": {"where": False},
        "not sorted": {"order": list},
    })
def verdict_of(low, high, found, *, answers=lambda found, low, high: None, nothing="not built yet", holds=holds_in,
               where=True, order=sorted):
    """The verdict, and the settings under which the claim holds."""
    if not found:
        return nothing, []
    settings = order(name for name, value in found.items() if holds(value, low, high) == where)
    count = sum(holds(value, low, high) for value in found.values())
    answer = answers(found, low, high) or ("true" if count == len(found) else "true only if" if count else "false")
    return answer, settings if answer == "true only if" else []


# 26.6 ---------------------------------------------------------------------------------------------------------------

def runs(*rows):
    """From (ranks, micro-batches, value)."""
    return [({"ranks": ranks, "micro": micro}, value) for ranks, micro, value in rows]


RUNS = [
    (2, 2, runs((2, 1, 2), (4, 1, 2), (2, 4, 5), (4, 8, 9))),
    (0.7, 1, runs((2, 1, 0.4), (64, 1, 0.74), (16, 4, 0.7), (8, 4, 0.66))),
    (1, 2, runs((2, 1, 1), (4, 4, 2))), (1, 2, runs((2, 1, 3), (4, 4, 0))), (1, 2, []),
    (1, 2, runs((2, 1, 1), (2, 1, 3))), (1, 2, runs((2, 1, 3), (2, 1, 1))),
    (1, 2, runs((4, 1, 1), (2, 2, 1), (3, 3, 5))),
    (1, 2, runs((2, 2, 1), (4, 1, 1), (2, 4, 7), (8, 8, 7))),
    (1, 2, runs((2, 1, nan), (4, 2, 1), (8, 1, 2))),
    (0, 1, runs((1, 8, 0.5), (2, 4, 0.5), (3, 2, 3), (4, 1, 3))),
    (0, 1, runs((1, 8, 3), (2, 4, 3), (3, 2, 1), (4, 1, 0))),
    (5, 6, runs((3, 1, 5.5), (9, 1, 5.5), (6, 1, 1))),
    (5, 6, runs((3, 4, 5.5), (9, 2, 5.5), (6, 1, 1))), (1, 1, runs((2, 1, 0), (4, 1, 1))), (0, 1, runs((2, 1, 5), (4, 1, 1), (8, 1, 5))),
    (0, 1, runs((2, 1, 5), (1, 1, 1), (4, 1, 1), (8, 1, 5))),
    (0, 1, [({"ranks": 2, "micro": 1, "nodes": nodes}, value) for nodes, value in ((1, 1), (2, 3), (4, 3))]),
    (0, 1, [({"stage": stage}, value) for stage, value in ((0, 3), (2, 1), (3, 0))])]


def separates(sign, bound, good, bad):
    """Do all of `good` keep the condition, and none of `bad`?"""
    keeps = (lambda value: value >= bound) if sign == ">=" else (lambda value: value <= bound)
    return all(map(keeps, good)) and not any(map(keeps, bad))


@exercise(
    "26.6", "Find the condition", minutes=50, difficulty=3, cases=RUNS,
    mistakes={
        "upwards alone": {"signs": (">=",)},
        "the bound where it fails": {"bound": lambda sign, good, bad: max(bad) if sign == ">=" else min(bad)},
        "exceptions allowed": {"exact": lambda sign, bound, good, bad: all(
            value >= bound if sign == ">=" else value <= bound for value in good) and not all(
            value >= bound if sign == ">=" else value <= bound for value in bad)},
        "if": {"bound": lambda sign, good, bad: min((each for each in good if each > max(bad)), default=0) if sign == ">=" else
                                                max((each for each in good if each < min(bad)), default=0),
               "exact": lambda sign, bound, good, bad: max(good) > max(bad) if sign == ">=" else min(good) < min(bad)},
        "shared values": {"exact": lambda sign, bound, good, bad: max(bad) <= bound if sign == ">=" else min(bad) >= bound},
        "the first setting alone": {"names": lambda names: names[:1]},
        "the last setting first": {"names": lambda names: names[::-1]},
        "NaN holds": {"holds": lambda value, low, high: not (value < low or value > high)},
        "limits left out": {"holds": lambda value, low, high: low < value < high},
        "nothing is true": {"nothing": "true"},
        "no condition is false": {"otherwise": "false"},
        "the middle": ({"bound": lambda sign, good, bad: (min(good) + max(bad)) / 2 if sign == ">=" else (max(good) + min(bad)) / 2},
                       {"bound": lambda sign, good, bad: max(bad) + 1 if sign == ">=" else min(bad) - 1}),
    })
def condition_of(low, high, runs, *, signs=(">=", "<="),
                 bound=lambda sign, good, bad: min(good) if sign == ">=" else max(good),
                 exact=separates, names=lambda names: names, holds=holds_in, nothing="not built yet",
                 otherwise="it depends"):
    """The verdict, and the condition on one setting that separates the runs."""
    good, bad = ([settings for settings, value in runs if bool(holds(value, low, high)) is kept]
                 for kept in (True, False))
    if not runs:
        return nothing, None
    if not bad or not good:
        return ("false" if bad else "true"), None
    for name in names(list(runs[0][0])):
        for sign in signs:
            ok, wrong = [each[name] for each in good], [each[name] for each in bad]
            limit = bound(sign, ok, wrong)
            if exact(sign, min(ok) if sign == ">=" else max(ok), ok, wrong):
                return "true only if", (name, sign, limit)
    return otherwise, None
