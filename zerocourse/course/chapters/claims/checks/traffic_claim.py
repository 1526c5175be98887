"""The check of 26.7: the verdict on a claim about traffic, in worlds in which other things are true."""

from functools import partial

from ....checks import Trial, exercise

PSI = 6_400  # elements
SENDS = ("all_gather", "reduce_scatter", "all_reduce")


def events_in(world, stage, ranks, micro_batches, rank):
    """What a rank recorded in a step: verb, elements, bytes."""
    size = PSI * (ranks - 1) // ranks
    if world == "slices of different lengths" and stage == 3:
        size += 11 * (rank - ranks // 2)
    if world == "rank 0 sends for others" and stage == 3:
        size = size * ranks if rank == 0 else 0

    def event(verb, element=4, numel=size):
        return {"verb": verb, "elements": numel, "bytes": numel * element}

    if stage == 0:
        return [event("wait", numel=2 * size), event("all_reduce", numel=2 * size)]
    gathers = 1 if world == "kept until the step" else 2 * micro_batches
    gather = event("all_gather", 2 if world == "gathers in bf16" else 4)
    reductions = [event("reduce_scatter")] * (1 if world == "reduced once" else micro_batches)
    more = [event("all_gather", numel=size // 38)] * (world == "a little more is gathered")
    return [gather, event("wait")] * gathers + reductions + more


def ruled_in(answer, world, settings):
    """The verdict of a world."""
    return {"verdict": answer(partial(events_in, world), settings)}


WORLDS = [(world, ((2, 1), (8, 1), (8, 2), (4, 4))) for world in (
    "as in ours", "kept until the step", "gathers in bf16", "slices of different lengths", "reduced once", "rank 0 sends for others",
    "a little more is gathered")]
WORLDS += [("as in ours", ((4, 1),)), ("as in ours", ((8, 1), (4, 2), (2, 1))), ("kept until the step", ((2, 2), (8, 2)))]


@exercise(
    "26.7", "A claim that the check changes", minutes=25, difficulty=2, answer="rule",
    trials=[Trial(WORLDS, ruled_in)],
    mistakes={
        "elements": {"count": lambda event: event["elements"]},
        "rank 0 alone": {"looked_at": lambda ranks: [0]},
        "waits": {"verbs": (*SENDS, "wait")},
        "one micro-batch": {"micro": lambda micro_batches: 1},
        "by formula": {"formula": True},
        "at least": {"keeps": lambda ratio: ratio >= 1.49},
        "at most": {"keeps": lambda ratio: ratio <= 1.51},
        "exactly": {"keeps": lambda ratio: ratio == 1.5},
        "more by half of stage 3": {"keeps": lambda ratio: abs(1 - 1 / ratio - 0.5) < 0.01},
        "the condition is missing": {"named": lambda settings: []},
    })
def traffic_claim(events_of, settings, *, count=lambda event: event["bytes"], looked_at=range, verbs=SENDS,
                  keeps=lambda ratio: abs(ratio - 1.5) < 0.01, micro=lambda micro_batches: micro_batches, formula=False,
                  named=lambda settings: settings):
    """The verdict on “ZeRO-3 sends half as much again as data parallelism”, and the settings of a condition."""
    recorded = partial(events_in, "as in ours") if formula else events_of

    def sent(stage, ranks, micro_batches, rank):
        return sum(count(event) for event in recorded(stage, ranks, micro(micro_batches), rank) if event["verb"] in verbs)

    def together(stage, ranks, micro_batches):
        return sum(sent(stage, ranks, micro_batches, rank) for rank in looked_at(ranks))

    good = [setting for setting in settings if keeps(together(3, *setting) / together(0, *setting))]
    answer = "true" if len(good) == len(settings) else "true only if" if good else "false"
    return answer, named(good) if answer == "true only if" else []
