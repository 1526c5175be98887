"""The checks of what chapter 01 asks for itself: 01.w1, what a rank keeps for a parameter, and 01.w2, the lowest stage that fits."""

from ....checks import FORMULAS, Trial, exercise

# 01.w1 ----------------------------------------------------------------------------------------------------------------

def kept_per_parameter(stage, ranks):
    """The bytes of model states that a rank keeps, on average, for each parameter of the
    model: (parameter, gradient, optimizer).

    Mixed precision with Adam. What a stage cuts is divided by the ranks, so the numbers
    need not be whole.
    stage: 0 (data parallel), 1, 2 or 3.
    """
    parameter, gradient, optimizer = 2, 2, 4 + 4 + 4
    if stage >= 1:
        optimizer /= ranks
    if stage >= 2:
        gradient /= ranks
    if stage >= 3:
        parameter /= ranks
    return parameter, gradient, optimizer


def three_of(answer, stage, ranks):
    """What the answer returns; numbers may be whole or not."""
    came = answer(stage, ranks)
    return {"kept": list(map(float, came)) if isinstance(came, (tuple, list)) else came}


def cut_from(parameter, gradient, optimizer):
    """From which stage on each of the three is cut."""
    return {"cut": lambda stage: (stage >= parameter, stage >= gradient, stage >= optimizer)}


@exercise(
    "01.w1", "What a rank keeps for a parameter", minutes=8, difficulty=1, answer="kept_per_parameter", own=kept_per_parameter,
    replaces=FORMULAS,
    trials=[Trial([(0, 8), (1, 4), (2, 4), (3, 4), (1, 64), (2, 64), (3, 64), (3, 1)], three_of)],
    mistakes={
        "no master weights": {"sizes": (2, 2, 8)},
        "master weights alone": {"sizes": (2, 2, 4)},
        "32-bit": ({"sizes": (4, 4, 8)}, {"sizes": (4, 4, 12)}),
        "all cut": cut_from(1, 1, 1),
        "one stage late": cut_from(4, 3, 2),
        "other way round": cut_from(1, 2, 3),
        "only its own": {"cut": lambda stage: (stage == 3, stage == 2, stage == 1)},
        "never cut": cut_from(9, 9, 9),
        "whole numbers": {"divide": lambda size, ranks: size // ranks},
        "multiplied": {"divide": lambda size, ranks: size * ranks},
        "sum": {"returns": sum},
        "optimizer first": {"returns": lambda kept: tuple(kept[::-1])},
    })
def kept(stage, ranks, *, sizes=(2, 2, 12), cut=lambda stage: (stage >= 3, stage >= 2, stage >= 1),
         divide=lambda size, ranks: size / ranks, returns=tuple):
    """The right three."""
    return returns([divide(size, ranks) if is_cut else size for size, is_cut in zip(sizes, cut(stage), strict=True)])


# 01.w2 ----------------------------------------------------------------------------------------------------------------

def lowest_stage(states, activations, card):
    """The lowest stage with which a rank's bytes fit on its card; None if they fit with
    none.

    states: the bytes of a rank's model states in the stages 0, 1, 2 and 3.
    activations: those of its activations, in every stage.
    card: the bytes that the card has.
    """
    for stage, held in enumerate(states):
        if held + activations <= card:
            return stage
    return None


STATES = [160, 85, 72, 60]


@exercise(
    "01.w2", "The lowest stage that fits", minutes=6, difficulty=1, answer="lowest_stage", own=lowest_stage, replaces=FORMULAS,
    cases=[(STATES, 10, 100), (STATES, 0, 160), (STATES, 20, 92), (STATES, 40, 101), (STATES, 30, 80), ([90, 60, 50, 45], 20, 70)],
    mistakes={
        "without activations": {"needs": lambda held, activations: held},
        "activations cut": {"needs": lambda held, activations: held + activations / 2},
        "not quite full": {"fits": lambda needs, card: needs < card},
        "highest": {"choose": lambda stages: stages[-1] if stages else None},
        "3 where none fits": {"choose": lambda stages: stages[0] if stages else 3},
        "from 1": {"choose": lambda stages: stages[0] + 1 if stages else None},
        "without stage 0": {"first": 1},
        "bytes": lambda states, activations, card: next((held for held in states if held + activations <= card), None),
        "room left": lambda states, activations, card: next((card - held - activations for held in states if held + activations <= card),
                                                            None),
        "all that fit": {"choose": lambda stages: stages},
    })
def lowest(states, activations, card, *, needs=lambda held, activations: held + activations, fits=lambda needs, card: needs <= card,
           choose=lambda stages: stages[0] if stages else None, first=0):
    """The right stage."""
    return choose([stage for stage, held in enumerate(states) if stage >= first and fits(needs(held, activations), card)])
