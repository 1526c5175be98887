"""The check of exercise 1.5: the memory of a training step, event by event."""

import itertools
from itertools import pairwise
from typing import NamedTuple

from ....checks import FORMULAS, Trial, When, exercise
from ....checks.plain import Raised
from ....checks.trace import call
from ....checks.words import value_text

FORWARD, BACKWARD = ("unshard", "forward", "reshard"), ("gather", "backward", "reduce", "release", "free")
WRITTEN = {"gather": "unshard", "release": "reshard"}  # those of the backward are written like those of the forward
SINCE = {"unshard": 3, "reshard": 3, "gather": 3, "release": 3, "reduce": 2}  # the first stage that has the event
LAST = "the last event, 'zero_grad'"


class UnitBytes(NamedTuple):
    """Parameters, those of a rank's share, those of the whole model; bytes of activations."""

    number: int
    params: int
    activations: int
    share: int
    total: int


CHANGES = {"unshard": lambda unit: 2 * unit.params, "forward": lambda unit: unit.activations,
           "reshard": lambda unit: -2 * unit.params, "gather": lambda unit: 2 * unit.params,
           "backward": lambda unit: 2 * unit.params, "reduce": lambda unit: 2 * unit.share - 2 * unit.params,
           "release": lambda unit: -2 * unit.params, "free": lambda unit: -unit.activations}  # bytes


def followed(answer, units, stage, ranks):
    """The order of the events, and what is held after each."""
    seen = call(answer, units, stage, ranks)
    events = seen["returned"]
    if not isinstance(events, (list, tuple)) or not all(isinstance(e, (list, tuple)) and len(e) == 2 for e in events):
        return {"list": events}
    return {"list": True, "order": [event for event, _ in events],
            **{LAST if event == "zero_grad" else f"{number}, {event!r}": held
               for number, (event, held) in enumerate(events)}, "exactly": events, "changed": seen["changed"]}


def no_list(case, got, want):
    return None if isinstance(got, Raised) else ("no pairs", {"got": value_text(got)})


def first_wrong(got, want):
    """Number, what came and what is due of the first event that is wrong."""
    return next((number, *pair) for number, pair in enumerate(itertools.zip_longest(got, want, fillvalue=""))
                if pair[0] != pair[1])


def first_event(case, got, want):
    number, came, due = first_wrong(got, want)
    return "other" if came and due else "too few or many", {"number": number, "came": came, "due": due,
                                                            "events": len(got), "right": len(want)}


def comes(judges):
    """A mistake that is seen by the first event that is wrong: judges(kind that came, kind that is due, right order)"""
    def judge(got, want):
        _, came, due = first_wrong(got, want)
        return judges(str(came).partition(" ")[0], due.partition(" ")[0], " ".join(want))
    return When("order", judge)


def changes_alone(*case):
    events = timeline(*case)
    return [events[0], *((event, held - before) for (_, before), (event, held) in pairwise(events))]


def without(kind, **more):
    return {"since": {**SINCE, kind: 4, **more}}


EVEN, ONE, RAGGED = [(800, 5000), (1600, 7000), (400, 300)], [(64, 100)], [(801, 5001), (4, 7), (1, 3)]


@exercise(
    "1.5", "A step, moment by moment", minutes=60, difficulty=3, replaces=FORMULAS,
    sample=lambda random: ([(random.randint(1, 10**6), random.randint(0, 10**7)) for _ in range(random.randint(1, 8))],
                           random.randint(0, 3), random.randint(1, 9)),
    trials=[Trial([(units, stage, ranks) for units in each for ranks in worlds], followed,  # a stage has its own events
                  words={"list": no_list, "order": first_event})
            for each, worlds in (([EVEN, ONE], (2, 4, 1)), ([RAGGED], (2, 3))) for stage in range(4)],
    mistakes={
        "reduced below stage 2": (*({"since": {**SINCE, "reduce": stage}} for stage in (1, 0)),
                                  comes(lambda came, due, right: came == "reduce" and "reduce" not in right)),
        "not reduced": (without("reduce"), without("reduce", reduce=3), comes(lambda came, due, _: due == "reduce")),
        "unsharded below stage 3": (*({"since": {"reduce": 2, "unshard": stage}} for stage in (2, 1, 0)),
                                    comes(lambda came, due, right: came in ("unshard", "reshard")
                                          and "unshard" not in right)),
        "not unsharded": (without("unshard"), without("unshard", gather=4, reshard=4, release=4),
                          comes(lambda came, due, _: (came, due) == ("forward", "unshard"))),
        "not unsharded again": (without("gather"), without("gather", release=4),
                                comes(lambda came, due, _: (came, due) == ("backward", "unshard"))),
        "not resharded": (without("reshard"), without("release"), without("reshard", release=4),
                          comes(lambda came, due, _: due == "reshard")),
        "first to last": ({"turn": lambda units: units}, comes(lambda came, due, _: came == due)),
        "no master copy": {"optimizer": 8},
        "gradients at the start": {"gradients": 2},
        "optimizer at stage 0": {"from_stage": (3, 0)},
        "parameters at stage 1": {"from_stage": (1, 1)},
        "parameters at stage 2": {"from_stage": (2, 1)},
        "parameters whole": {"from_stage": (4, 1)},
        "optimizer at stage 2": {"from_stage": (3, 2)},
        "all whole": {"from_stage": (4, 4)},
        "sum cut": {"shares": lambda params, ranks: -(-sum(params) // ranks)},
        "fraction": {"shares": lambda params, ranks: sum(params) / ranks},
        "sum rounded down": {"shares": lambda params, ranks: sum(params) // ranks},
        "rounded down": {"shares": lambda params, ranks: sum(each // ranks for each in params)},
        "again nothing": {"gather": lambda unit: 0},
        "missing part": ({"unshard": lambda unit: 2 * unit.params - 2 * unit.share},
                         {"gather": lambda unit: 2 * unit.params - 2 * unit.share}),
        "whole model": ({"unshard": lambda unit: 2 * unit.total}, {"gather": lambda unit: 2 * unit.total}),
        "no activations": {"forward": lambda unit: 0},
        "never freed": ({"reshard": lambda unit: 0}, {"release": lambda unit: 0}),
        "activations freed": {"reshard": lambda unit: -2 * unit.params - unit.activations},
        "share freed": tuple({kind: lambda unit: 2 * unit.share - 2 * unit.params} for kind in ("reshard", "release")),
        "activations gone": {"backward": lambda unit: 2 * unit.params - unit.activations},
        "gradient's share": {"backward": lambda unit: 2 * unit.share},
        "fp32 gradient": {"backward": lambda unit: 4 * unit.params},
        "no gradient": {"backward": lambda unit: 0},
        "nothing left": {"reduce": lambda unit: -2 * unit.params},
        "all left": {"reduce": lambda unit: 0},
        "beside": {"reduce": lambda unit: 2 * unit.share},
        "activations kept": {"free": lambda unit: 0},
        "changes": changes_alone,
        "not cleared": ({"cleared": lambda held, start: held}, When(LAST)),
    })
def timeline(units, stage, ranks, *, optimizer=12, gradients=0, from_stage=(3, 1), since=SINCE,
             shares=lambda params, ranks: sum(-(-each // ranks) for each in params), turn=lambda units: units[::-1],
             cleared=lambda held, start: start, **changes):
    """The events of a step, and what a rank holds after each."""
    params = [each for each, _ in units]
    total, share, changes = sum(params), shares(params, ranks), CHANGES | changes
    of_stage = [share if stage >= first else total for first in (*from_stage, 2)]
    start = held = sum(size * numel for size, numel in zip((2, optimizer, gradients), of_stage, strict=True))
    each = [UnitBytes(number, *unit, -(-unit[0] // ranks), total) for number, unit in enumerate(units)]
    events = [("start", start)]
    for units_in_order, kinds in ((each, FORWARD), (turn(each), BACKWARD)):
        for unit, kind in itertools.product(units_in_order, kinds):
            if stage >= since.get(kind, 0):
                held += changes[kind](unit)
                events.append((f"{WRITTEN.get(kind, kind)} {unit.number}", held))
    return [*events, ("zero_grad", cleared(held, start))]
