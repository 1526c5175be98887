"""The checks of what chapter 08 asks for itself: 08.w1, what is gathered next, and 08.w2, the shortest step."""

from ....checks import Trial, exercise

# 08.w1 ----------------------------------------------------------------------------------------------------------------

BLOCKS = ["h.3", "h.2", "h.1", "h.0"]
BRANCHES = ["head", "left", "right", "body"]


def gather_next(order, unit, ahead, gathered):
    """The backward comes to `unit`: the units that must be gathered now, in the order in
    which they are needed.

    order: the units in the order in which the backward comes to them, each once.
    ahead: so many units after this one are gathered while it computes.
    gathered: the set of those that are there, or on their way. A unit is gathered once.
    """
    here = order.index(unit)
    return [each for each in order[here:here + 1 + ahead] if each not in gathered]


def gathers_of(answer, order, ahead, there):
    """What is gathered when the backward comes to each unit."""
    gathered, seen = set(there), {}
    for unit in order:
        before = set(gathered)
        came = answer(list(order), unit, ahead, gathered)
        seen[f"at {unit}"], seen[f"changed {unit}"] = came, gathered != before
        gathered = before | set(came if isinstance(came, (list, tuple)) else ())
    return seen


@exercise(
    "08.w1", "What is gathered next", minutes=10, difficulty=2, answer="gather_next", own=gather_next,
    replaces=("zerocourse.zero.passes.program:*",),
    trials=[Trial([(BLOCKS, 1, ()), (BLOCKS, 0, ())], gathers_of), Trial([(BLOCKS, 2, ()), (BRANCHES, 1, ("right",)), (BLOCKS, 9, ())], gathers_of)],
    mistakes={
        "not the unit itself": {"begin": 1},
        "one more": {"more": 1},
        "one fewer": {"more": -1},
        "forward's order": {"turned": True},
        "gathered again": {"again": True},
        "one ahead alone": {"among": lambda units, ahead: units[:1] + units[ahead:]},
        "the rest": {"more": 99},
        "nearest last": {"returns": lambda units: units[::-1]},
        "a set": {"returns": set},
        "names of the alphabet": {"returns": sorted},
        "written into": lambda order, unit, ahead, gathered: gathered.update(new := gather_next(order, unit, ahead, gathered)) or new,
    })
def gathers(order, unit, ahead, gathered, *, begin=0, more=0, turned=False, again=False, among=lambda units, ahead: units, returns=list):
    """The right units."""
    order = order[::-1] if turned else order
    here = order.index(unit)
    units = among(order[here + begin:max(here + 1, here + 1 + ahead + more)], ahead)
    return returns([each for each in units if again or each not in gathered])


# 08.w2 ----------------------------------------------------------------------------------------------------------------

def shortest_step(compute, communication, exposed):
    """The seconds of a step with perfect overlap.

    compute: seconds in which the rank computes.
    communication: seconds of all collectives, one after the other on the link.
    exposed: those of them behind which nothing can be computed, at both ends of the
    step; the others hide as far as they can.
    """
    return exposed + max(compute, communication - exposed)


@exercise(
    "08.w2", "The shortest step", minutes=6, difficulty=1, answer="shortest_step", own=shortest_step,
    replaces=("zerocourse.formulas.time.step_time:*",),
    cases=[(4.0, 1.0, 0.0), (1.0, 4.0, 0.0)],
    trials=[Trial([(4.0, 1.0, 0.5), (1.0, 4.0, 0.5), (2.0, 2.0, 0.5), (3.0, 2.0, 2.0), (2.0, 2.25, 0.5)])],
    mistakes={
        "one after the other": {"joined": lambda c, m: c + m},
        "hidden completely": {"exposes": lambda exposed: 0.0},
        "counted twice": {"hides": lambda m, exposed: m},
        "never added": {"adds": lambda exposed: 0.0},
        "shorter one": {"joined": min},
        "computing alone": {"joined": lambda c, m: c},
        "the link alone": {"joined": lambda c, m: m},
        "speed-up": lambda c, m, exposed: (c + m) / (exposed + max(c, m - exposed)),
        "saved": lambda c, m, exposed: c + m - (exposed + max(c, m - exposed)),
    })
def shortest(c, m, exposed, *, joined=max, exposes=lambda exposed: exposed, hides=lambda m, exposed: m - exposed, adds=lambda exposed: exposed):
    """The right time."""
    exposed = exposes(exposed)
    return float(adds(exposed) + joined(c, hides(m, exposed)))
