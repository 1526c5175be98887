"""All candidates, their order, and the plan: formulas order them, simulations confirm the first few or refuse them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from ..formulas.what_fits import ARRANGEMENTS, DEVICE, PLACES, Arrangement
from .by_formula import computed
from .by_simulation import can_be_simulated, simulated
from .candidate import ONE_F_ONE_B, Candidate, Evaluation
from .mesh_parts import schedules
from .model_sizes import ModelSizes
from .question import Question

MARGIN = 0.05  # formulas may be so far from a peak: what they refuse by less is left to a simulation
AS_FAST = 0.02  # rates that differ by less are taken for equal: no prediction of a step is as good as that


@dataclass(frozen=True)
class Plan:
    """What was looked at.

    ranking: what fits, the choice first; those that a simulation confirmed stand before all others.
    refused: what does not fit.   considered: how many candidates there were.
    """

    question: Question
    ranking: tuple[Evaluation, ...]
    refused: tuple[Evaluation, ...]
    considered: int

    @property
    def chosen(self) -> Evaluation | None:
        return self.ranking[0] if self.ranking else None

    def best_by_kind(self) -> dict[str, Evaluation | None]:
        """Of ZeRO alone, with tensor parallelism, with a pipeline and with both: the first of the ranking, None where none of
        that kind fits; kinds that were not asked for are left out."""
        found: dict[str, Evaluation | None] = dict.fromkeys(
            Candidate(0, t * p, tensor=t, pipeline=p).kind for p in self.question.pipelines for t in self.question.tensors)
        for each in reversed(self.ranking):
            found[each.candidate.kind] = each
        return found

    def find(self, candidate: Candidate) -> Evaluation | None:
        return next((each for each in (*self.ranking, *self.refused) if each.candidate == candidate), None)


def candidates(question: Question) -> Iterator[Candidate]:
    """Every one, refused or not. With a batch the micro-batches are those that divide it, and accumulation follows.

    On a mesh nothing is offloaded. Of one mesh, a schedule that holds less in flight comes before those with more.
    """
    ways = product(arrangements(question), question.ranks, question.dtypes, (False, True))
    for where, ranks, dtype, recompute in ways:
        for tensor, pipeline in product(question.tensors, question.pipelines):
            data, left_over = divmod(ranks, tensor * pipeline)
            if left_over or not data or (tensor * pipeline > 1 and where.optimizer != DEVICE):
                continue
            for micro_batch in powers_of_two(question.most_micro_batch):
                accumulation, left = divmod(question.batch or data * micro_batch, data * micro_batch)
                if not accumulation or left:
                    continue
                schedules_of = schedules(question.model, pipeline, accumulation)
                for (schedule, chunks), over in product(schedules_of, experts_over(question.model, where, data)):
                    yield Candidate(where.stage, ranks, micro_batch, accumulation, dtype, recompute, where.optimizer,
                                    where.parameters, tensor, pipeline, schedule, chunks, over)


def experts_over(model: ModelSizes, where: Arrangement, data: int) -> list[int]:
    """How many ranks can have different experts. Where something is offloaded, every rank has all."""
    most = 1 if where.optimizer != DEVICE else model.experts
    return [1, *(over for over in range(2, most + 1) if most % over == 0 and data % over == 0)]


def arrangements(question: Question) -> list[Arrangement]:
    """Those whose places the question has."""
    return [where for where in ARRANGEMENTS
            if all(question.budgets[place] for place in PLACES if place in (where.optimizer, where.parameters))]


def powers_of_two(most: int) -> Iterator[int]:
    yield from (2**power for power in range(most.bit_length()))


def ranked(question: Question, evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """The choice first, then all others by their rate, the highest first.

    The choice is not always the fastest: among those within AS_FAST of it stands first what `simpler` puts first.
    """
    by_rate = sorted(evaluations, key=lambda each: (-question.rate(each), simpler(question, each)))
    as_fast = [each for each in by_rate if question.rate(each) >= (1 - AS_FAST) * question.rate(by_rate[0])]
    choice = min(as_fast, key=lambda each: simpler(question, each), default=None)
    return [each for each in by_rate if each is choice] + [each for each in by_rate if each is not choice]


def simpler(question: Question, evaluation: Evaluation) -> tuple:
    """What decides between equally fast ones: ranks, bytes sent for a token, stage, no recomputation, the peak.

    Where the rate is that of a card, more ranks get more done; where it is that of all, fewer ranks do as well.
    """
    way = evaluation.candidate
    return (-way.ranks if question.batch is None else way.ranks, sent_per_token(evaluation), way.stage, way.recompute,
            evaluation.peak_bytes)


def sent_per_token(evaluation: Evaluation) -> float:
    """Bytes that a rank sends, over all links, for each of its tokens."""
    return sum(evaluation.sent.values()) * evaluation.candidate.ranks / evaluation.tokens


def evaluate(question: Question, margin: float = 0.0) -> tuple[list[Evaluation], list[Evaluation], int]:
    """(what fits, ranked; what does not; how many candidates there were), by formula.

    Of candidates that differ in the micro-batch alone, those after the first that is too large are not computed. One
    that accumulates is not like one that does not, which keeps no gradients of earlier micro-batches. On a mesh neither
    is computed what is slower than what fits already: recomputation, or stages 2 and 3, where the same does without.
    """
    fitting, refused, too_large, fits, count = [], [], set(), set(), 0
    for candidate in candidates(question):
        count += 1
        family = family_of(candidate)
        if family in too_large or replace(family, schedule=ONE_F_ONE_B, chunks=1) in too_large or (
                candidate.replica > 1 and any(each in fits for each in cheaper(candidate))):
            continue
        evaluation = computed(question, candidate, margin)
        (fitting if evaluation.fits else refused).append(evaluation)
        if evaluation.fits:
            fits.add(candidate)
        else:
            too_large.add(family)
    return ranked(question, fitting), refused, count


def family_of(candidate: Candidate) -> Candidate:
    """What it has in common with those that differ in the micro-batch alone. In a pipeline fewer micro-batches may be
    in flight when they are larger, until there are so many that the pipeline is full."""
    full = 2 if candidate.pipeline == 1 else 2 * candidate.pipeline * candidate.chunks
    return replace(candidate, micro_batch=1, accumulation=min(candidate.accumulation, full))


def cheaper(candidate: Candidate) -> Iterator[Candidate]:
    """The same without recomputation, and on lower stages from the first on."""
    if candidate.recompute:
        yield replace(candidate, recompute=False)
    yield from (replace(candidate, stage=stage) for stage in range(1, candidate.stage))


def plan(question: Question, simulate: int = 3, progress: Callable[[int, Candidate], None] = lambda done, candidate: None) -> Plan:
    """simulate: how many candidates that fit are to be confirmed; 0: formulas alone.

    progress: called with how many of them are done, and the one that is looked at next.
    """
    fitting, refused, count = evaluate(question, MARGIN if simulate else 0.0)
    confirmed: list[Evaluation] = []
    waiting = list(fitting)
    while waiting and len(confirmed) < simulate:
        first = waiting.pop(0)
        progress(len(confirmed), first.candidate)
        look = simulated if can_be_simulated(first.candidate) else computed
        evaluation = look(question, first.candidate)
        (confirmed if evaluation.fits else refused).append(evaluation)
    rest = [computed(question, each.candidate) for each in waiting] if simulate else waiting
    refused += [each for each in rest if not each.fits]
    return Plan(question, (*ranked(question, confirmed), *(each for each in rest if each.fits)), tuple(refused), count)
