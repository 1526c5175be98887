"""All candidates, their order, and the plan: formulas order them, simulations confirm the first few or refuse them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from ..formulas.what_fits import ARRANGEMENTS, PLACES, Arrangement
from .candidate import Candidate, Evaluation
from .computed import computed
from .question import Question
from .simulated import can_be_simulated, simulated

MARGIN = 0.05  # formulas may be so far from a peak: what they refuse by less is left to a simulation


@dataclass(frozen=True)
class Plan:
    """What was looked at.

    ranking: what fits, the best first; those that a simulation confirmed stand before all others.
    refused: what does not fit.   considered: how many candidates there were.
    """

    question: Question
    ranking: tuple[Evaluation, ...]
    refused: tuple[Evaluation, ...]
    considered: int

    @property
    def chosen(self) -> Evaluation | None:
        return self.ranking[0] if self.ranking else None

    def find(self, candidate: Candidate) -> Evaluation | None:
        return next((each for each in (*self.ranking, *self.refused) if each.candidate == candidate), None)


def candidates(question: Question) -> Iterator[Candidate]:
    """Every one, refused or not. With a batch the micro-batches are those that divide it, and accumulation follows."""
    for where, ranks, half, recompute in product(arrangements(question), question.ranks, question.halves, (False, True)):
        for micro_batch in powers_of_two(question.most_micro_batch):
            accumulation, left = divmod(question.batch or ranks * micro_batch, ranks * micro_batch)
            if accumulation and not left:
                yield Candidate(where.stage, ranks, micro_batch, accumulation, half, recompute, where.optimizer,
                                where.parameters)


def arrangements(question: Question) -> list[Arrangement]:
    """Those whose places the question has."""
    return [where for where in ARRANGEMENTS
            if all(question.budgets[place] for place in PLACES if place in (where.optimizer, where.parameters))]


def powers_of_two(most: int) -> Iterator[int]:
    yield from (2**power for power in range(most.bit_length()))


def order(question: Question) -> Callable[[Evaluation], tuple]:
    """What sorts the best first: the rate, then fewer bytes sent, then the simpler way, then the smaller peak."""
    def key(evaluation: Evaluation) -> tuple:
        way = evaluation.candidate
        return (-question.rate(evaluation), sum(evaluation.sent.values()), way.stage, way.recompute, way.ranks,
                evaluation.peak_bytes)
    return key


def evaluate(question: Question, margin: float = 0.0) -> tuple[list[Evaluation], list[Evaluation], int]:
    """(what fits, what does not, how many there were), by formula; the best first.

    Of candidates that differ in the micro-batch alone, those after the first that is too large are not computed.
    """
    fitting, refused, too_large, count = [], [], set(), 0
    for candidate in candidates(question):
        count += 1
        family = replace(candidate, micro_batch=1, accumulation=1)
        if family in too_large:
            continue
        evaluation = computed(question, candidate, margin)
        (fitting if evaluation.fits else refused).append(evaluation)
        if not evaluation.fits:
            too_large.add(family)
    return sorted(fitting, key=order(question)), refused, count


def plan(question: Question, simulate: int = 3, progress: Callable[[int, int], None] = lambda done, of: None) -> Plan:
    """simulate: how many candidates that fit are to be confirmed; 0: formulas alone.

    progress: called with how many of them are done.
    """
    fitting, refused, count = evaluate(question, MARGIN if simulate else 0.0)
    confirmed: list[Evaluation] = []
    waiting = list(fitting)
    while waiting and len(confirmed) < simulate:
        progress(len(confirmed), simulate)
        first = waiting.pop(0)
        evaluation = simulated(question, first.candidate) if can_be_simulated(first.candidate) else computed(question, first.candidate)
        (confirmed if evaluation.fits else refused).append(evaluation)
    rest = [computed(question, each.candidate) for each in waiting] if simulate else waiting
    refused += [each for each in rest if not each.fits]
    confirmed.sort(key=order(question))
    return Plan(question, (*confirmed, *(each for each in rest if each.fits)), tuple(refused), count)
