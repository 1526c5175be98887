"""The check of 9.1: what bug the norm's ratios at several numbers of micro-batches speak of."""

from functools import partial

from ....checks import Trial, exercise


def near(ratio, value, share=0.01):
    return abs(ratio - value) <= share * value


def below_one(ratios):
    """Is the ratio below 1 where G is smallest?"""
    return ratios[min(ratios)] < 1


def comes_nearer(ratios):
    """Does the ratio come nearer to 1 as G grows?"""
    gaps = [abs(ratios[G] - 1) for G in sorted(ratios)]
    return gaps[-1] < gaps[0] / 2


def at(place):
    """Only one column of the table is looked at."""
    return {"columns": lambda ratios: {place(ratios): ratios[place(ratios)]}}


@exercise(
    "9.1", "The fingerprint of a bug", minutes=15, difficulty=1,
    cases=[(2, {1: 1.0, 2: 1.0, 4: 1.0}), (2, {1: 2.0, 2: 2.0, 4: 2.0}), (2, {1: 1.0, 2: 2.0, 4: 4.0}),
           (2, {1: 1.0, 2: 0.74, 4: 0.4}), (2, {1: 0.82, 2: 0.79, 4: 0.91}), (2, {1: 1.64, 2: 1.5, 4: 1.21})],  # the chapter's
    trials=[Trial([(3, {1: 3.0, 2: 3.0, 4: 3.0}), (3, {1: 2.0, 2: 2.01, 4: 1.99}), (4, {1: 1.0, 2: 2.0, 4: 4.0}),
                   (2, {1: 1.002, 2: 0.997, 4: 1.004}), (4, {1: 3.99, 3: 4.02, 8: 3.98}), (8, {1: 1.003, 3: 2.99, 8: 8.03}),
                   (2, {1: 0.998, 2: 0.52, 8: 0.13}), (3, {1: 0.61, 3: 0.85, 9: 0.96}), (3, {1: 1.7, 4: 1.68, 16: 1.72}),
                   (2, {1: 1.31, 4: 1.06, 16: 1.02}), (2, {1: 1.64, 64: 1.004}),
                   (2, {1: 2.0, 2: 1.5, 4: 1.2}), (2, {1: 0.95, 2: 1.12}), (2, {1: 1.03, 4: 1.02}), (2, {1: 1.0, 4: 0.4}),
                   (2, {1: 1.0, 3: 3.0})])],
    mistakes={
        "two ranks": {"N": lambda ranks: 2},
        "exact": {"same": lambda ratio, value: ratio == value},
        "five percent": {"same": partial(near, share=0.05)},
        "absolute": {"same": lambda ratio, value: abs(ratio - value) <= 0.01},
        "first column": at(min),
        "last column": at(max),
        "all that is larger": {"nothing_reduced": "summed"},
        "all that is smaller": {"late": "last_micro_batch"},
        "smaller is late": {"last": "late_micro_batch"},
        "nearer is late": {"is_late": comes_nearer},
        "turned round": {"is_late": lambda ratios: not below_one(ratios)},
        "mean": {"is_late": lambda ratios: sum(ratios.values()) < len(ratios)},
        "summed at one": {"of_summed": lambda ratios: {min(ratios): ratios[min(ratios)]}},
        "mean of summed": {"of_summed": lambda ratios: {0: sum(ratios.values()) / len(ratios)}},
        "G for N": {"unscaled": "summed"},
    })
def name_the_bug(ranks, ratios, *, N=lambda ranks: ranks, same=near, columns=dict, nothing_reduced="nothing_reduced",
                 late="late_micro_batch", is_late=below_one, last="last_micro_batch", unscaled="unscaled_loss",
                 of_summed=dict):
    """The bug's name."""
    seen = columns(ratios)

    def all_are(value, at=dict):
        return all(same(ratio, value(G)) for G, ratio in at(seen).items())

    if all_are(lambda G: 1):
        return "no bug"
    if all_are(lambda G: N(ranks), of_summed):
        return "summed"
    if all_are(lambda G: G):
        return unscaled
    if same(seen[min(seen)], 1):
        return last
    return late if is_late(seen) else nothing_reduced
