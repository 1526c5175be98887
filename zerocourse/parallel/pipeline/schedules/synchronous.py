"""Schedules with a flush: all micro-batches of a batch come back before the weights change, so the gradients are exact.

Each function gives the computing actions of one rank: (ranks p, micro_batches m, rank) -> list. `actions.plan` adds the
transfers, and the caller updates the weights when the lists have ended.
"""

from ....errors import BadInput
from .actions import Action, Actions


def gpipe(ranks: int, micro_batches: int, rank: int) -> Actions:
    """All forwards, then all backwards. In flight: m micro-batches. Source: Huang et al. 2018, arXiv 1811.06965.

    The backwards go in the order of the forwards, so that gradients are added up in the order of a single process.
    """
    return [Action(kind, rank, micro_batch) for kind in "FB" for micro_batch in range(micro_batches)]


def one_f_one_b(ranks: int, micro_batches: int, rank: int) -> Actions:
    """Forwards until the first gradient can be there, then a forward and a backward in turn, then the backwards left
    over.

    In flight: min(p - rank, m) micro-batches. The bubble is GPipe's: what 1F1B saves is memory.
    Source: PipeDream-Flush in Narayanan et al. 2020, arXiv 2006.09503.
    """
    warm_up = min(ranks - 1 - rank, micro_batches)
    actions = [Action("F", rank, micro_batch) for micro_batch in range(warm_up)]
    for micro_batch in range(micro_batches - warm_up):
        actions += [Action("F", rank, warm_up + micro_batch), Action("B", rank, micro_batch)]
    return actions + [Action("B", rank, micro_batch) for micro_batch in range(micro_batches - warm_up, micro_batches)]


def interleaved(ranks: int, micro_batches: int, rank: int, chunks: int = 1) -> Actions:
    """1F1B over v = `chunks` stages per rank, of which each is 1/v as deep: rank r has the stages r, r + p, r + 2p, ...

    Micro-batches go in groups of p: a rank does one group in its first stage, then the same group in its second, so the
    bubble is v times smaller and the traffic v times larger. Raises BadInput where p does not divide m.
    Source: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.
    """
    if chunks == 1:
        return one_f_one_b(ranks, micro_batches, rank)
    if micro_batches % ranks:
        raise BadInput(f"interleaved 1F1B takes micro-batches in groups of {ranks}, one for each rank, so their number must "
                       f"be a multiple of {ranks}, and not {micro_batches}")
    total = chunks * micro_batches

    def visit(kind: str, number: int) -> Action:
        """The rank's forward, or backward, with this number."""
        group, within = divmod(number, ranks * chunks)
        chunk = within // ranks if kind == "F" else chunks - 1 - within // ranks
        return Action(kind, chunk * ranks + rank, group * ranks + within % ranks)

    warm_up = min((chunks - 1) * ranks + 2 * (ranks - 1 - rank), total)
    actions = [visit("F", number) for number in range(warm_up)]
    for number in range(total - warm_up):
        actions += [visit("F", warm_up + number), visit("B", number)]
    return actions + [visit("B", number) for number in range(total - warm_up, total)]
