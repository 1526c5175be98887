"""A plan in sentences: what is chosen, why not its neighbours, and what would help where nothing fits."""

from collections.abc import Iterator
from dataclasses import replace

from ..formulas.units import gb
from ..formulas.volumes import passes
from ..formulas.what_fits import ARRANGEMENTS, DEVICE, PLACES
from ..layout.mesh import INSIDE
from .by_formula import computed
from .candidate import COMPUTED, ONE_F_ONE_B, Candidate, Evaluation
from .mesh_parts import refusal, schedules
from .question import Question
from .search import AS_FAST, Plan, evaluate, experts_over, sent_per_token

MOST_RANKS = 2**14  # where a search for enough ranks ends


def choice(plan: Plan) -> str:
    """What is chosen, in one sentence, with its bytes and its speed."""
    best, card = plan.chosen, plan.question.budgets[DEVICE]
    way = best.candidate
    several = f", {way.accumulation} of them accumulated" if way.accumulation > 1 else ""
    return (f"Take {way.arrangement} on {ranks_of(way)}{way.mesh and f' ({way.mesh})'} with micro-batch {way.micro_batch}{several}, in {way.dtype}, "
            f"{'with' if way.recompute else 'without'} recomputation: the peak is {gb(best.peak_bytes)} of the card's "
            f"{gb(card)}, a step of {best.tokens:,} tokens takes {best.step_seconds:.3g} s, and a card does "
            f"{best.tokens_per_card:,.0f} tokens a second ({best.source}). The reason: {because(plan)}.{in_all(plan)}")


def in_all(plan: Plan) -> str:
    """Where no batch is given, and more cards do more together: what does most."""
    best, most = plan.ranking[0], max(plan.ranking, key=lambda each: each.tokens_per_second)
    if plan.question.batch is not None or most.candidate.ranks == best.candidate.ranks:
        return ""
    return (f" That is the best for each card, as no --batch is given. Most in all is done by {most.candidate}: "
            f"{most.tokens_per_second:,.0f} tokens a second, and this choice does {best.tokens_per_second:,.0f}.")


def by_axis(evaluation: Evaluation) -> list[str]:
    """What each axis of a mesh sends, over which link, and what of it is waited for; and the bubble."""
    lines = [f"the {each.axis} axis sends {gb(each.nbytes)} per rank and step, {each.link}, and the rank waits "
             f"{each.exposed:.2g} s for it" for each in evaluation.traffic if each.nbytes]
    if evaluation.bubble:
        lines.append(f"the pipeline's bubble is {evaluation.bubble:.2g} s, {evaluation.bubble / evaluation.step_seconds:.1%} "
                     "of the step")
    if evaluation.traffic and evaluation.traffic[0].axis == "tensor" and evaluation.traffic[0].link != INSIDE:
        lines.append("the tensor axis leaves its node, where links are slower, and all of it is waited for")
    return lines


def because(plan: Plan) -> str:
    """What decides stage, recomputation and micro-batch, in clauses."""
    way, question = plan.chosen.candidate, plan.question
    ways = {stage: replace(way, stage=stage, optimizer=DEVICE, parameters=DEVICE) for stage in range(4)}
    if way.optimizer != DEVICE:
        fits = any(pair(plan, each)[1].fits for each in ways.values())
        clauses = [] if fits else ["no stage fits with all of it on the card"]
    else:
        lower = [pair(plan, ways[stage])[1].fits for stage in range(way.stage)]
        clauses = ["no lower stage fits"] if lower and not any(lower) else []
        if way.stage < 3:
            best, other = pair(plan, ways[3])
            if other.fits and sent_per_token(other) > sent_per_token(best):
                faster = question.rate(other) / question.rate(best) - 1
                speed = f"is {faster:.1%} faster, which counts as equal," if 0 < faster <= AS_FAST else "is no faster"
                clauses.append(f"{way.arrangement} sends {times(count_passes(best))} over all parameters where ZeRO-3 "
                               f"sends {times(count_passes(other))} and {speed}".rstrip(","))
    without = replace(way, recompute=False)
    clauses.append(f"micro-batch {way.micro_batch} does not fit without recomputation" if way.recompute and
                   not pair(plan, without)[1].fits else "recomputation is not needed" if not way.recompute else
                   "recomputation makes room for this micro-batch")
    larger = rebatched(question, way, micro_batch=2 * way.micro_batch)
    if larger.accumulation and larger.micro_batch <= question.most_micro_batch and not pair(plan, larger)[1].fits:
        clauses.append(f"micro-batch {way.micro_batch} is the largest power of two that fits")
    return "; ".join(clauses)


def why(plan: Plan) -> list[str]:
    """One sentence for each neighbour of the choice, which says why it is not taken."""
    return [f"{name}: {reason(plan, neighbour)}" for name, neighbour in neighbours(plan)]


def neighbours(plan: Plan) -> Iterator[tuple[str, Candidate]]:
    """Candidates that differ from the choice in one decision, with the name of what is different."""
    question, way = plan.question, plan.chosen.candidate
    if way.optimizer == DEVICE:
        for stage in range(4):
            if stage != way.stage:
                other = replace(way, stage=stage)
                yield f"{other.arrangement} instead", other
    else:
        for where in ARRANGEMENTS[:4]:
            yield f"{where} without offload", replace(way, stage=where.stage, optimizer=DEVICE, parameters=DEVICE)
    for micro_batch in (2 * way.micro_batch, way.micro_batch // 2):
        if micro_batch:
            other = rebatched(question, way, micro_batch=micro_batch)
            yield f"micro-batch {micro_batch} instead of {way.micro_batch}", other
    yield f"{'without' if way.recompute else 'with'} recomputation", replace(way, recompute=not way.recompute)
    yield from other_meshes(question, way)
    at = question.ranks.index(way.ranks)
    for number in (at - 1, at + 1):
        if 0 <= number < len(question.ranks):
            other = rebatched(question, way, ranks=question.ranks[number])
            yield f"{ranks_of(other)} instead of {way.ranks}", other
    for dtype in question.dtypes:
        if dtype != way.dtype:
            yield f"{dtype} instead of {way.dtype}", replace(way, dtype=dtype)


def other_meshes(question: Question, way: Candidate) -> Iterator[tuple[str, Candidate]]:
    """Half and twice as much along each axis of a mesh, as far as the question has them, and ZeRO alone."""
    for axis, sizes in (("tensor", question.tensors), ("pipeline", question.pipelines)):
        now = getattr(way, axis)
        for size in (now // 2, 2 * now):
            if size in sizes and way.optimizer == DEVICE:
                yield f"{axis} {size} instead of {now}", rebatched(question, way, **{axis: size})
    for size in (way.experts_over // 2, 2 * way.experts_over):
        if size in experts_over(question.model, way.arrangement, way.data):
            yield f"experts over {size} rank{'s' * (size > 1)} instead of {way.experts_over}", replace(way, experts_over=size)
    if way.replica > 1 and 1 in question.tensors and 1 in question.pipelines:
        yield "ZeRO alone", rebatched(question, way, tensor=1, pipeline=1)


def rebatched(question: Question, way: Candidate, **changes) -> Candidate:
    """The candidate with other ranks or micro-batch, accumulation following; 0 where the batch is not divided."""
    other = replace(way, **changes)
    if question.batch is None:
        return other
    other = replace(other, accumulation=1, schedule=ONE_F_ONE_B, chunks=1)
    if refusal(question.model, other) is not None:
        return replace(other, accumulation=0)
    accumulation, left = divmod(question.batch, other.data * other.micro_batch)
    other = replace(other, accumulation=0 if left else accumulation)
    kept = way.schedule, way.chunks
    if other.accumulation and kept in schedules(question.model, other.pipeline, other.accumulation):
        other = replace(other, schedule=way.schedule, chunks=way.chunks)
    return other


def reason(plan: Plan, neighbour: Candidate) -> str:
    """Why it is not taken."""
    question = plan.question
    if (why := refusal(question.model, neighbour)) is not None:
        return why
    if neighbour.accumulation == 0:
        return (f"{neighbour.data} × {neighbour.micro_batch} samples do not divide the batch of {question.batch}, so "
                "it is not possible.")
    if neighbour.micro_batch > question.most_micro_batch:
        return f"it was not tried, because the largest micro-batch to try is {question.most_micro_batch}."
    best, other = pair(plan, neighbour)
    return slower(question, best, other) if other.fits else too_large(question, other)


def pair(plan: Plan, neighbour: Candidate) -> tuple[Evaluation, Evaluation]:
    """The choice and its neighbour, both simulated or both computed, because only these can be compared."""
    other = plan.find(neighbour)
    if other is None or other.source == COMPUTED:
        return computed(plan.question, plan.chosen.candidate), computed(plan.question, neighbour)
    return plan.chosen, other


def too_large(question: Question, other: Evaluation) -> str:
    """"too large by 12 GB: ..." """
    place, over = next(iter(other.missing.items()))
    name = "the card" if place == DEVICE else f"the {place}"
    return (f"too large by {gb(over)}, because its peak is {gb(other.held[place])} and {name} has room for "
            f"{gb(question.budgets[place])} ({other.source}).")


def slower(question: Question, best: Evaluation, other: Evaluation) -> str:
    """How much slower, and in what the times and what is sent differ; or what decides where both are as fast."""
    ours, theirs = question.rate(best), question.rate(other)
    per = "per card" if question.batch is None else "in all"
    if abs(ours - theirs) <= AS_FAST * ours:
        return (f"it would fit and be as fast ({theirs:,.0f} tokens a second {per}, and the choice {ours:,.0f}), but "
                f"{decides(question, best, other)} ({other.source}).")
    if theirs > ours:  # an order that holds among the simulated need not hold by formula
        return (f"it would fit, and by formula it is {theirs / ours - 1:.1%} faster, {theirs:,.0f} tokens a second "
                f"{per}, but a simulation has confirmed the choice.")
    less = f"{1 - theirs / ours:.1%}"
    return (f"it would fit but {f'do {less} less' if question.batch is None else f'be {less} slower'}, {theirs:,.0f} tokens a second {per} "
            f"where the choice does {ours:,.0f}, because {cause(best, other)}; {sends(best, other)} ({other.source}).")


def decides(question: Question, best: Evaluation, other: Evaluation) -> str:
    """What makes the choice simpler than what is as fast, in the order of `search.simpler`; else by how little it is faster."""
    ours, theirs = best.candidate, other.candidate
    if ours.ranks != theirs.ranks:
        return f"{ranks_of(theirs)} {'does' if theirs.ranks == 1 else 'do'} " + ("less in all" if theirs.ranks < ours.ranks else "no more in all")
    if sent_per_token(other) > sent_per_token(best):
        return sends(best, other)
    sent = [sum(each.sent.values()) for each in (best, other)]
    if ours.stage < theirs.stage and sent[0] == sent[1]:
        return f"both send {gb(sent[0])} per rank and step, and the lower stage is the simpler one"
    if theirs.recompute and not ours.recompute:
        return "the choice computes no forward a second time"
    peaks = f"its peak is {gb(best.peak_bytes)} rather than {gb(other.peak_bytes)}"
    if best.peak_bytes < other.peak_bytes:
        return f"the choice needs less: {peaks}"
    ours, theirs = question.rate(best), question.rate(other)
    if ours > theirs:
        return f"the choice is {ours / theirs - 1:.1%} faster, though {peaks}: here {cause(best, other)}"
    return f"a simulation put the choice first, though {peaks}"


def cause(best: Evaluation, other: Evaluation) -> str:
    """What takes longer for each token that a card works on, computing or waiting; or that there are fewer cards."""
    def per_token(evaluation: Evaluation, seconds: float) -> float:
        return 1e6 * seconds * evaluation.candidate.ranks / evaluation.tokens

    verbs = {"computes": "compute_seconds", "waits": "exposed_seconds"}
    ours, theirs = ({verb: per_token(each, getattr(each, field)) for verb, field in verbs.items()}
                    for each in (best, other))
    verb = max(verbs, key=lambda verb: theirs[verb] - ours[verb])
    if theirs[verb] - ours[verb] <= AS_FAST * sum(ours.values()) and other.candidate.ranks < best.candidate.ranks:
        return "it has fewer cards"
    return f"a card {verb} {three(theirs[verb])} µs for each of its tokens rather than {three(ours[verb])}"


def three(value: float) -> str:
    """A number to three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def sends(best: Evaluation, other: Evaluation) -> str:
    """Passes over all parameters that each sends, and bytes."""
    ours, theirs = map(count_passes, (best, other))
    both = [sum(each.sent.values()) for each in (best, other)]
    if both[0] == both[1]:
        return f"both send {gb(both[0])} per rank and step" + (
            f", for {other.tokens:,} tokens rather than {best.tokens:,}" if other.tokens != best.tokens else "")
    if any(each.candidate.replica * each.candidate.experts_over > 1 for each in (best, other)):
        return f"per rank and step it sends {gb(both[1])} and the choice {gb(both[0])}"
    return (f"per rank and step it sends {gb(both[1])} ({times(theirs)} over all parameters) and the choice "
            f"{gb(both[0])} ({times(ours)})")


def count_passes(evaluation: Evaluation) -> int:
    return passes(evaluation.candidate.stage, evaluation.candidate.accumulation).total


def times(number: int) -> str:
    return f"{number} pass{'es' * (number > 1)}"


def nothing_fits(question: Question) -> list[str]:
    """What is nearest, and what would fit: more ranks, or memory of the host."""
    _, refused, _ = evaluate(question)
    nearest = min(refused, key=lambda each: (sum(each.missing.values()), each.candidate.ranks))
    lines = [f"Nothing fits. Nearest is {nearest.candidate}: {too_large(question, nearest)}"]
    ranks = fewest_ranks(question)
    if ranks is not None:
        lines.append(f"With {ranks} ranks something would fit, by formula: --ranks {ranks}.")
    else:
        lines.append(f"No number of ranks up to {MOST_RANKS:,} would do, because " + (
            "units are gathered whole and activations are not divided: --mesh divides both." if not question.has_meshes else
            "heads, layers and the ranks of a node limit how far a model is divided."))
    host = host_needed(question)
    if host is not None:
        lines.append(f"On {question.ranks[-1]} ranks offload would do, with {gb(host)} of host memory per rank: --host "
                     f"{-(-host // 10**9)}GB.")
    return lines


def fewest_ranks(question: Question) -> int | None:
    """The smallest power of two on which anything fits that fits in none of the question's; None up to MOST_RANKS."""
    ranks = 1
    while ranks <= MOST_RANKS:
        if ranks not in question.ranks:
            alone = replace(question, ranks=(ranks,), batch=None, most_micro_batch=1)
            if evaluate(alone)[0]:
                return ranks
        ranks *= 2
    return None


def host_needed(question: Question) -> int | None:
    """Bytes of host memory per rank with which offload fits on the most ranks; None if the card is too small."""
    endless = replace(question, ranks=question.ranks[-1:], batch=None, most_micro_batch=1,
                      budgets={place: question.budgets[place] for place in PLACES} | {"host": 2**62})
    return min((each.held["host"] for each in evaluate(endless)[0] if each.held["host"]), default=None)


def ranks_of(way: Candidate) -> str:
    return f"{way.ranks} rank{'s' * (way.ranks > 1)}"
