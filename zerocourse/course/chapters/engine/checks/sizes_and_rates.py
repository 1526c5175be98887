"""The checks of 11.1 and 11.2: the three batch sizes, and the rate of a schedule."""

import math

import torch

from .....engine.config import rules
from .....engine.updates.schedules import WarmupDecayLR
from ....checks import Trial, exercise

SIZES = [(32, 4, None, 2), (32, None, 2, 2), (None, 4, 2, 3), (32, None, None, 2), (None, 4, None, 2), (32, 4, 4, 2)]
IMPOSSIBLE = [(None, None, 4, 2), (None, None, None, 2), (30, 4, None, 2), (32, None, 5, 2), (32, 4, 2, 2), (33, None, None, 2),
              (24, 4, None, 4), (24, None, 6, 8)]


def own_batch_sizes(train, micro, steps, ranks):
    """The package's rule, with the error that the exercise asks for."""
    try:
        return rules.batch_sizes(train, micro, steps, ranks)
    except ValueError as error:
        raise ValueError(str(error)) from None


def exact(train, by):
    if train % by:
        raise ValueError
    return train // by


@exercise(
    "11.1", "The batch rule", minutes=10, difficulty=1, own=own_batch_sizes,
    replaces=("zerocourse.engine.config.rules:*",), cases=SIZES, trials=[Trial(IMPOSSIBLE)],
    mistakes={
        "no ranks": {"of": lambda ranks: 1},
        "micro of one": {"alone": "micro"},
        "rounded": ({"divided": lambda train, by: train // by}, {"divided": lambda train, by: -(-train // by)},
                    {"divided": lambda train, by: round(train / by)}),
        "left empty": {"alone": None},
        "one too early": {"early": True},
        "other order": {"ordered": lambda train, micro, steps: (train, steps, micro)},
        "not compared": ({"contradiction": lambda train, micro, steps, ranks: (train, micro, steps)},
                         {"contradiction": lambda train, micro, steps, ranks: (train, micro, train // (micro * ranks))},
                         {"contradiction": lambda train, micro, steps, ranks: (micro * steps * ranks, micro, steps)}),
        "micro made up": {"needed": False},
    })
def batch_sizes(train, micro, steps, ranks, *, of=lambda ranks: ranks, divided=exact, alone="steps", needed=True,
                contradiction=None, early=False, ordered=lambda *sizes: sizes):
    """The three sizes. alone: what is 1 where the batch alone is given.   contradiction: what becomes of three that do not fit."""
    steps = 1 if early and steps is None else steps
    ranks, all_given = of(ranks), None not in (train, micro, steps)
    if train is None and micro is None:
        if needed:
            raise ValueError
        micro = 1
    if train is None:
        steps = steps or 1
        return ordered(micro * steps * ranks, micro, steps)
    if micro is None and steps is None and alone == "micro":
        micro = 1
    if micro is None:
        steps = steps or (1 if alone else None)
        micro = divided(train, (steps or 1) * ranks)
    steps = steps or (None if alone is None and train == micro * ranks else divided(train, micro * ranks))
    if all_given and train != micro * steps * ranks:
        if contradiction is None:
            raise ValueError
        return contradiction(train, micro, steps, ranks)
    return ordered(train, micro, steps)


# 11.2 ---------------------------------------------------------------------------------------------------------------

RATES = [(count, 60, 20, 0.0, 0.001, kind) for kind in ("linear", "log") for count in (0, 1, 5, 10, 19, 20, 40, 59, 60)]
EDGES = [(-1, 60, 20, 0.1, 0.5, "log"), (0, 60, 20, 0.1, 0.5, "log"), (10, 60, 20, 0.1, 0.5, "linear"),
         (30, 60, 20, 0.1, 0.5, "log"), (75, 60, 20, 0.1, 0.5, "log"), (1, 10, 1, 0.0, 1.0, "linear"), (2, 10, 0, 0.0, 1.0, "log"),
         (-1, 10, 4, 0.2, 1.0, "linear"), (10, 10, 10, 0.0, 1.0, "linear"), (12, 10, 20, 0.0, 1.0, "linear"),
         (25, 10, 20, 0.0, 1.0, "linear")]


def own_rate(count, total, warmup, low, high, kind):
    """The package's schedule, asked for one count. A config without a warm-up is refused, and a short one counts as one of 2."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = WarmupDecayLR(optimizer, total, low, high, max(1, warmup), kind)
    return schedule.rates(count)[0]


def random_rate(draw):
    total = draw.randint(1, 50)
    return (draw.randint(-1, 60), total, draw.randint(0, total), draw.random() / 10, 0.1 + draw.random(),
            draw.choice(("log", "linear")))


def risen(count, warmup, kind):
    return math.log(count + 1) / math.log(warmup) if kind == "log" else count / warmup


@exercise(
    "11.2", "A rate that rises and falls", minutes=15, difficulty=1, own=own_rate, sample=random_rate,
    replaces=("zerocourse.engine.updates.schedules:warm_up", "zerocourse.engine.updates.schedules:WarmupDecayLR.gamma"),
    cases=RATES, trials=[Trial(EDGES)],
    mistakes={
        "always linear": {"rise": lambda count, warmup, kind: count / warmup},
        "always logarithmic": {"rise": lambda count, warmup, kind: risen(count, warmup, "log")},
        "kinds exchanged": {"rise": lambda count, warmup, kind: risen(count, warmup, "linear" if kind == "log" else "log")},
        "one ahead": {"rise": lambda count, warmup, kind: risen(count + (kind == "linear"), warmup, kind)},
        "logarithm of count": {"rise": lambda count, warmup, kind: math.log(max(1, count)) / math.log(warmup)
                               if kind == "log" else count / warmup},
        "natural logarithm": {"rise": lambda count, warmup, kind: min(1.0, math.log(count + 1))
                              if kind == "log" else count / warmup},
        "no warm-up in the fall": {"length": lambda total, warmup: total},
        "does not fall": {"length": lambda total, warmup: math.inf},
        "from zero": {"between": lambda low, high, gamma: high * gamma},
        "added to low": {"between": lambda low, high, gamma: low + high * gamma},
        "below low": {"least": -math.inf},
        "before the first step": ({"at_low": lambda kind: False}, {"at_low": lambda kind: kind == "log"}),
        "short warm-up": {"shortest": 0},
        "short warm-up in the fall": {"in_fall": 0},
    })
def warmup_decay(count, total, warmup, low, high, kind, *, rise=risen, length=lambda total, warmup: total - warmup, least=0.0,
                 between=lambda low, high, gamma: low + (high - low) * gamma, at_low=lambda kind: True, shortest=2, in_fall=2):
    """The rate at a count."""
    falls_after, warmup = max(min(in_fall, shortest), warmup), max(shortest, warmup)
    if count < 0 and at_low(kind):
        return low
    if count < warmup:
        gamma = rise(count, warmup, kind)
    else:
        gamma = max(least, (total - count) / max(1.0, length(total, falls_after)))
    return between(low, high, gamma)
