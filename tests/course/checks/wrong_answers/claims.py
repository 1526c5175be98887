"""Wrong answers of chapter 26."""

from wrong_answers import wrong


@wrong("26.1", "GB against GiB")
def report_in_one_unit(params, stage, ranks, card_gib):
    shared = {0: 0, 1: 12, 2: 14, 3: 16}[stage]
    nbytes = (16 - shared) * params + shared * params / ranks
    gigabytes = nbytes / 1e9
    return {"gb": gigabytes, "fits": gigabytes <= card_gib, "saved": 100 - 100 * nbytes / params / 16,
            "times": 16 * params / nbytes}


@wrong("26.2", "the limit is reached")
def counts_up_in_floats(percent, stage):
    shared = [0, 12, 14, 16][stage]
    for ranks in (1, *range(2, 2000), 10**6):
        if round(100 * shared * (1 - 1 / ranks) / 16, 3) >= percent:
            return ranks
    return None


@wrong("26.3", "NaN holds")
def judges_by_exclusion(low, high, found):
    if len(found) == 0:
        return ("not built yet", [])
    fails = {name for name in found if found[name] < low or found[name] > high}
    if not fails:
        return ("true", [])
    rest = sorted(set(found) - fails)
    return ("true only if", rest) if rest else ("false", [])


@wrong("26.4", "fits, so needed")
def asks_whether_it_fits(params, ranks, card, micro_batches, stage):
    from fractions import Fraction
    left, sent = {}, (2, 2, 1 + micro_batches, 3 * micro_batches)
    for number, sharded in enumerate((0, 12, 14, 16)):
        room = card - (16 - sharded) * params - Fraction(sharded * params, ranks)
        if room >= 0:
            left[number] = int(room)
    if not left:
        return "false", None, None
    least = min(sent[number] for number in left)
    best = max(number for number in left if sent[number] == least)
    return ("true" if stage in left else "false"), best, left[best]


@wrong("26.4", "other traffic")
def forgets_the_gather_of_stage_2(params, ranks, card, micro_batches, stage):
    least = None
    for number, sharded in enumerate((0, 12, 14, 16)):
        room = card * ranks - params * ((16 - sharded) * ranks + sharded)
        sent = (2, 2, micro_batches, 3 * micro_batches)[number]
        if room >= 0 and (least is None or sent <= least[0]):
            least = sent, number, room // ranks
    if least is None:
        return "false", None, None
    return ("true" if stage == least[1] else "false"), *least[1:]


@wrong("26.5", "time saved")
def says_how_much_time_is_saved(off, on, claimed):
    def union(events, verbs):
        pieces, total, end = sorted((e["start"], e["end"]) for e in events if e["verb"] in verbs), 0, None
        for start, stop in pieces:
            if end is None or start > end:
                total, end = total + stop - start, stop
            elif stop > end:
                total, end = total + stop - end, stop
        return total

    compute, communicate = ["forward", "backward", "step"], ["all_gather", "reduce_scatter"]
    spans = []
    for events in (off, on):
        mine = [e for e in events if e["verb"] in compute + communicate]
        spans.append(max(e["end"] for e in mine) - min(e["start"] for e in mine))
    c, m = union(off, compute), union(off, communicate)
    most, gain = (c + m) / max(c, m) - 1, (spans[0] - spans[1]) / spans[0]
    return ("impossible" if claimed > most else "true" if gain >= claimed else "false"), gain, most


@wrong("26.6", "upwards alone")
def looks_for_a_least_value(low, high, runs):
    if not runs:
        return "not built yet", None
    verdicts = [low <= value <= high for _, value in runs]
    if all(verdicts):
        return "true", None
    if not any(verdicts):
        return "false", None
    for name in runs[0][0]:
        bound = min(settings[name] for (settings, _), good in zip(runs, verdicts, strict=True) if good)
        if all((settings[name] >= bound) == good for (settings, _), good in zip(runs, verdicts, strict=True)):
            return "true only if", (name, ">=", bound)
    return "it depends", None


@wrong("26.7", "elements")
def counts_passes(events_of, settings):
    good = []
    for ranks, micro in settings:
        sent = {stage: sum(event["elements"] for rank in range(ranks) for event in events_of(stage, ranks, micro, rank)
                           if event["verb"] != "wait") for stage in (0, 3)}
        if 1.49 < sent[3] / sent[0] < 1.51:
            good.append((ranks, micro))
    if len(good) == len(settings):
        return "true", []
    return ("true only if", good) if good else ("false", [])


@wrong("26.7", "each rank")
def averages_ratios(events_of, settings):
    def sent(stage, ranks, micro, rank):
        return sum(event["bytes"] for event in events_of(stage, ranks, micro, rank) if event["verb"] != "wait")

    good = [(ranks, micro) for ranks, micro in settings
            if abs(sum(sent(3, ranks, micro, rank) / sent(0, ranks, micro, rank) for rank in range(ranks)) / ranks - 1.5) < 0.01]
    return ("true", []) if len(good) == len(settings) else ("true only if", good) if good else ("false", [])


@wrong("26.7", "a verb is missing")
def looks_at_stage_3_verbs(events_of, settings):
    good = []
    for ranks, micro in settings:
        zero, three = (sum(event["bytes"] for rank in range(ranks) for event in events_of(stage, ranks, micro, rank)
                           if event["verb"] in ("all_gather", "reduce_scatter")) for stage in (0, 3))
        if abs(three - 1.5 * zero) < 0.01 * zero:
            good.append((ranks, micro))
    return ("true", []) if len(good) == len(settings) else ("true only if", good) if good else ("false", [])


# 26.w1 --------------------------------------------------------------------------------------------------------------

STATES = "parameters", "gradients", "optimizer"


@wrong("26.w1", "rank 0 alone")
class AsksOne:
    def evidence(held, sizes):
        return {f"{n} ranks": sum(held(2, n, 0)[k] for k in STATES) / sum(held(0, n, 0)[k] for k in STATES) for n in sizes}


@wrong("26.w1", "activations")
class AddsAllUp:
    def evidence(held, sizes):
        return {f"{n} ranks": max(sum(held(2, n, r).values()) / sum(held(0, n, r).values()) for r in range(n)) for n in sizes}


@wrong("26.w1", "by formula")
class KnowsItAlready:
    def evidence(held, sizes):
        return {f"{n} ranks": (2 + 14 / n) / 16 for n in sizes}


@wrong("26.w1", "less than")
class WithoutTheLimit:
    def holds(found):
        return {case: share < 0.25 for case, share in found.items()}


@wrong("26.w1", "the mean")
class OnAverage:
    def evidence(held, sizes):
        found = {}
        for n in sizes:
            two, none = (sum(held(stage, n, r)[k] for r in range(n) for k in STATES) for stage in (2, 0))
            found[f"{n} ranks"] = two / none
        return found


@wrong("26.7", "two places")
def rounds_the_ratio(events_of, settings):
    def sent(stage, ranks, micro):
        return sum(event["bytes"] for rank in range(ranks) for event in events_of(stage, ranks, micro, rank) if event["verb"] != "wait")

    holds = [each for each in settings if round(sent(3, *each) / sent(0, *each), 2) == 1.5]
    if len(holds) == len(settings):
        return "true", []
    return ("true only if", holds) if holds else ("false", [])
