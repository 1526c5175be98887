"""The checks of 26.1, 26.2 and 26.4: numbers of model states, as a judge needs them."""

from fractions import Fraction

from ....checks import FORMULAS, exercise

GIB, GB = 2**30, 10**9
WHOLE = {0: 16, 1: 4, 2: 2, 3: 0}  # bytes for each parameter that every rank holds; the ranks share the rest of 16


def held(params, stage, ranks, whole=WHOLE):
    """Bytes per rank, exact, not rounded."""
    return Fraction(params * (whole[stage] * ranks + 16 - whole[stage]), ranks)


# 26.1 ---------------------------------------------------------------------------------------------------------------

REPORTS = [(1_557_611_200, 0, 1, 24), (1_557_611_200, 1, 2, 24), (7 * GB, 3, 8, 80), (7 * GB, 3, 8, 13.5),
           (7 * GB, 2, 4, 24),
           (25_000_000, 2, 4, 0.128), (1_600_000_000, 0, 2, 24), (10**12, 3, 64, 32), (3 * GIB, 3, 2, 24), (1_610_750_000, 0, 1, 24)]


@exercise(
    "26.1", "Find the bug: somebody's evidence", minutes=10, difficulty=1, replaces=FORMULAS,
    cases=REPORTS,
    mistakes={
        "GiB as GB": {"unit": GIB},
        "GB against GiB": {"card": GB},
        "bytes against GiB": {"card": 1},
        "what is left": {"saved": lambda part: 100 * part},
        "a share": {"saved": lambda part: 1 - part},
        "of what is held": {"saved": lambda part: 100 * (1 - part) / part},
        "one too little": {"times": lambda part: 1 / part - 1},
        "the factor upside down": {"times": lambda part: part},
        "saving as a factor": {"times": lambda part: 100 * (1 - part)},
        "less than": {"fits": lambda nbytes, card: nbytes < card},
    })
def memory_report(params, stage, ranks, card_gib, *, unit=GB, card=GIB, saved=lambda part: 100 * (1 - part),
                  times=lambda part: 1 / part, fits=lambda nbytes, card: nbytes <= card):
    """What a rank holds, whether it fits, and what is saved."""
    nbytes = float(held(params, stage, ranks))
    part = nbytes / (16 * params)
    return {"gb": nbytes / unit, "fits": fits(nbytes, card_gib * card), "saved": saved(part), "times": times(part)}


# 26.2 ---------------------------------------------------------------------------------------------------------------

PERCENTS = [(50, 1), (74, 1), (75, 1), (87, 2), (88, 2), (99, 3), (0, 1), (100, 3), (37, 1), (56, 1), (80, 2), (1, 0),
            (0, 0), (70, 1), (70, 2), (80, 3), (90, 3), (95, 3)]


def least_ranks(percent, stage, *, shared=None, at_limit=None, rounding=lambda number: -(-number // 1), most=None,
                of=16, nothing=True):
    """The smallest N, by the closed form."""
    sharded = {0: 0, 1: 12, 2: 14, 3: 16}[stage] if shared is None else shared[stage]
    if percent <= 0 and nothing:
        return 1
    room = 100 * sharded - percent * of
    if room <= 0:
        return at_limit if room == 0 and at_limit else None
    ranks = int(rounding(Fraction(100 * sharded, room)))
    return ranks if most is None or ranks <= most else None


@exercise(
    "26.2", "From how many ranks on is it true?", minutes=15, difficulty=2,
    replaces=FORMULAS, cases=PERCENTS,
    mistakes={
        "the limit is reached": {"at_limit": 10**6},
        "one too few": {"rounding": lambda number: number // 1},
        "rounded percent": lambda percent, stage: least_ranks(percent - Fraction(1, 2), stage),
        "gave up early": {"most": 64},
        "one too many": ({"rounding": lambda number: number // 1 + 1}, {"rounding": lambda number: number // 1 + 1, "nothing": False}),
        "stage 2 without parameters": {"shared": {0: 0, 1: 12, 2: 16, 3: 16}},
        "averages alone": {"shared": {0: 0, 1: 8, 2: 10, 3: 16}},
        "0 are never saved": {"nothing": False},
        "of what is shared": lambda percent, stage: 1 if percent == 0 else None if stage == 0 or percent == 100 else -(-100 // (100 - percent)),
        "of what is left": lambda percent, stage: least_ranks(100 - percent, stage),
    })
def fewest_ranks_for(percent, stage, **knobs):
    """The smallest number of ranks at which a stage saves so much."""
    return least_ranks(percent, stage, **knobs)


# 26.4 ---------------------------------------------------------------------------------------------------------------

NEEDS = [(7 * GB, 8, 24 * GIB, 1, 3), (7 * GB, 8, 80 * GB, 1, 3), (7 * GB, 8, 80 * GB, 8, 3),
         (7 * GB, 8, 80 * GB, 8, 1),
         (1_557_611_200, 2, 24 * GIB, 1, 3), (1_557_611_200, 2, 24 * GIB, 1, 2), (1_557_611_200, 2, 24 * GIB, 4, 2),
         (10**12, 64, 32 * GB, 1, 3), (7 * GB, 8, 30 * GB, 4, 2), (10**8, 4, 80 * GB, 16, 0), (10**8, 4, 80 * GB, 1, 0),
         (10**8, 4, 80 * GB, 4, 1), (4 * GB, 8, 22 * GB, 4, 1), (4 * GB, 8, 21 * GB, 4, 1),
         (7 * GB, 8, 26_250_000_000, 4, 2), (7, 3, 40, 1, 3), (7, 3, 46, 1, 2),
         (3 * GB, 6, 13 * GB, 2, 2), (7 * GB, 8, 80 * GB, 2, 1)]


def sent_passes(stage, micro_batches):
    """Of all elements, in a step."""
    return {0: 2, 1: 2, 2: micro_batches + 1, 3: 3 * micro_batches}[stage]


def but(*stages, of):
    """The same, but for some stages."""
    return {"sent": lambda stage, count: of(count) if stage in stages else sent_passes(stage, count)}


@exercise(
    "26.4", "Defend a configuration", minutes=25, difficulty=2, replaces=FORMULAS,
    cases=NEEDS,
    mistakes={
        "fits, so needed": {"judge": lambda stage, best, fitting, equal: "true" if stage in fitting else "false"},
        "the lowest is needed": {"judge": lambda stage, best, fitting, equal: "true" if stage == min(fitting) else "false"},
        "sends as little": {"judge": lambda stage, best, fitting, equal: "true" if stage in equal else "false"},
        "other traffic": (but(2, of=lambda count: count), but(3, of=lambda count: 3), but(3, of=lambda count: 2 * count),
                          but(0, 1, of=lambda count: 2 * count), {"sent": lambda stage, count: {0: 2, 1: 2, 2: 2, 3: 3}[stage]}),
        "the lowest that fits": {"order": lambda sent, stage: stage},
        "the highest that fits": {"order": lambda sent, stage: -stage},
        "room of the claimed": {"room_of": lambda stage, best: stage},
        "rounded up": ({"whole_bytes": lambda room: -(-room // 1)},
                       {"whole_bytes": lambda room: -(-room // 1), "fits": lambda nbytes, card: nbytes // 1 <= card}),
        "held is rounded": {"fits": lambda nbytes, card: nbytes // 1 <= card},
        "stage 2 keeps gradients": {"whole": {0: 16, 1: 4, 2: 4, 3: 0}},
        "less than": {"fits": lambda nbytes, card: nbytes < card},
        "nothing fits is false": {"nothing": ("false", None, 0)},
    })
def is_needed(params, ranks, card, micro_batches, stage, *, sent=sent_passes, whole=WHOLE,
              order=lambda sent, stage: (sent, -stage),
              judge=lambda stage, best, fitting, equal: "true" if stage == best else "false",
              room_of=lambda stage, best: best, fits=lambda nbytes, card: nbytes <= card,
              nothing=("false", None, None), whole_bytes=lambda room: room // 1):
    """Is this the stage to take, which is it else, and how much room does that one leave?"""
    left = {each: card - held(params, each, ranks, whole) for each in range(4)}
    fitting = [each for each in left if fits(card - left[each], card)]
    if not fitting:
        return nothing
    best = min(fitting, key=lambda each: order(sent(each, micro_batches), each))
    room = left[room_of(stage, best)]
    equal = [each for each in fitting if sent(each, micro_batches) == sent(best, micro_batches)]
    return judge(stage, best, fitting, equal), best, int(whole_bytes(room))
