"""The check of 26.7: the verdict on a claim about traffic, in worlds in which other things are true."""

from functools import partial

from ....checks import Trial, exercise

PSI = 6_400  # elements
SENDS = ("all_gather", "reduce_scatter", "all_reduce")


def events_in(world, stage, ranks, micro_batches, rank):
    """What a rank recorded in a step: verb, elements, bytes."""
    size = PSI * (ranks - 1) // ranks
    if world == "rank 0 sends less at stage 0, and the last rank more" and stage == 0:
        size += size // 2 * ((rank == ranks - 1) - (rank == 0))
    if world == "the last two of many ranks send differently at stage 3" and stage == 3 and ranks > 2:
        size += size // 2 * ((rank == ranks - 1) - (rank == ranks - 2))
    if world == "a ninth is sent at stage 3" and stage == 3:
        size //= 9
    if world == "slices of different lengths" and stage == 3:
        size += 11 * (rank - ranks // 2)
    if world == "rank 0 sends for others" and stage == 3:
        size = size * ranks if rank == 0 else 0

    def event(verb, element=4, numel=size):
        return {"verb": verb, "elements": numel, "bytes": numel * element}

    if stage == 0:
        parts = 2 if world == "stage 0 reduces in two parts" else 1
        count = micro_batches if world == "stage 0 reduces for each micro-batch" else parts
        return [event("wait", numel=2 * size // parts), event("all_reduce", numel=2 * size // parts)] * count
    gathers = 1 if world == "kept until the step" else 2 * micro_batches
    gather = event("all_gather", 2 if world == "gathers in bf16" else 4)
    reductions = [event("reduce_scatter")] * (1 if world == "reduced once" else micro_batches)
    parts = {"a little more is gathered": 38, "a trifle more is gathered": 75, "a fiftieth more is gathered": 50}
    more = [event("all_gather", numel=size // parts[world])] if world in parts else []
    return [gather, event("wait")] * gathers + reductions + more


def ruled_in(answer, world, settings):
    """The verdict of a world."""
    return {"verdict": answer(partial(events_in, world), settings)}


WORLDS = [(world, ((2, 1), (8, 1), (8, 2), (4, 4))) for world in (
    "as in ours", "kept until the step", "gathers in bf16", "slices of different lengths", "reduced once", "rank 0 sends for others",
    "a little more is gathered", "a trifle more is gathered", "a fiftieth more is gathered",
    "rank 0 sends less at stage 0, and the last rank more", "stage 0 reduces for each micro-batch",
    "stage 0 reduces in two parts", "the last two of many ranks send differently at stage 3")]
WORLDS += [("as in ours", ((4, 1),)), ("as in ours", ((8, 1), (4, 2), (2, 1))), ("kept until the step", ((2, 2), (8, 2))),
           ("kept until the step", ((2, 3), (8, 2))), ("gathers in bf16", ((4, 3),)), ("a ninth is sent at stage 3", ((2, 3), (2, 4), (2, 9)))]


def ratios(zero, three):
    """Of each rank."""
    return [more / max(1, less) for less, more in zip(zero, three, strict=True)]


@exercise(
    "26.7", "A claim that the check changes", minutes=25, difficulty=2, answer="rule",
    trials=[Trial(WORLDS, ruled_in)],
    mistakes={
        "elements": ({"count": lambda event: event["elements"]}, {"count": lambda event: 1}),
        "rank 0 alone": ({"looked_at": lambda ranks: [0]}, {"looked_at": lambda ranks: range(max(1, ranks - 1))}),
        "each rank": ({"ratio": lambda zero, three: max(ratios(zero, three), key=lambda each: abs(each - 1.5))},
                      {"ratio": lambda zero, three: sum(ratios(zero, three)) / len(zero)}),
        "a verb is missing": tuple({"verbs": tuple(verb for verb in SENDS if verb != other)} for other in SENDS),
        "waits": {"verbs": (*SENDS, "wait")},
        "one micro-batch": ({"micro": lambda stage, count: 1}, {"micro": lambda stage, count: count if stage else 1}),
        "by formula": {"formula": True},
        "at least": {"keeps": lambda ratio: ratio >= 1.49},
        "at most": {"keeps": lambda ratio: ratio <= 1.51},
        "exactly": {"keeps": lambda ratio: ratio == 1.5},
        "more by half of stage 3": {"keeps": lambda ratio: abs(1 - 1 / ratio - 0.5) < 0.01},
        "half": {"keeps": lambda ratio: abs(ratio - 0.5) < 0.01},
        "upside down": {"keeps": lambda ratio: abs(1 / ratio - 1.5) < 0.01},
        "a tenth": ({"keeps": lambda ratio: abs(ratio - 1.5) < 0.1}, {"keeps": lambda ratio: abs(ratio - 1.5) < 0.01 + 1e-9}),
        "two places": {"keeps": lambda ratio: round(ratio, 2) == 1.5},
        "the condition is missing": ({"says": lambda good, count: ("true only if", [])}, {"says": lambda good, count: ("false", [])},
                                     {"says": lambda good, count: ("true", [])},
                                     {"says": lambda good, count: ("true", []) if 2 * len(good) > count else ("true only if", good)},
                                     {"says": lambda good, count: ("true", []) if len(good) > 1 else ("true only if", good)}),
    })
def traffic_claim(events_of, settings, *, count=lambda event: event["bytes"], looked_at=range, verbs=SENDS,
                  keeps=lambda ratio: abs(ratio - 1.5) < 0.01, micro=lambda stage, count: count, formula=False,
                  ratio=lambda zero, three: sum(three) / max(1, sum(zero)), says=lambda good, count: ("true only if", good)):
    """The verdict on “ZeRO-3 sends half as much again as data parallelism”, and the settings of a condition."""
    recorded = partial(events_in, "as in ours") if formula else events_of

    def sent(stage, ranks, micro_batches, rank):
        return sum(count(event) for event in recorded(stage, ranks, micro(stage, micro_batches), rank) if event["verb"] in verbs)

    def of_ranks(stage, ranks, micro_batches):
        return [sent(stage, ranks, micro_batches, rank) for rank in looked_at(ranks)]

    good = [setting for setting in settings if keeps(ratio(of_ranks(0, *setting), of_ranks(3, *setting)) or 1e-9)]
    if good and len(good) < len(settings):
        return says(good, len(settings))
    return "true" if good else "false", []
