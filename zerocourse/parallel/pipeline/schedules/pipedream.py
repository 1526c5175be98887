"""Schedules without a flush: the pipeline stays full, because weights change while micro-batches are under way.

The price is staleness: a gradient is applied to weights that have changed since its forward. What the forward of a
micro-batch read is kept until its backward (`weight_versions`); without that, the two use different weights.
"""

from ....errors import BadInput
from .actions import Action, Actions
from .synchronous import one_f_one_b


def pipedream(ranks: int, micro_batches: int, rank: int) -> Actions:
    """1F1B over all micro-batches there are, with an update after each backward.

    Stage i's update k uses a gradient that is p - 1 - i updates late, and p - i versions of its weights are kept.
    Source: Narayanan et al. 2019, PipeDream, SOSP 2019.
    """
    return updating(one_f_one_b(ranks, micro_batches, rank), every=1)


def pipedream_2bw(ranks: int, micro_batches: int, rank: int, every: int | None = None) -> Actions:
    """1F1B over all micro-batches, with an update after each `every` of them (p by default), and two versions of
    weights:

        w(t+1) = w(t) - η g(w(t-1))

    A batch's forwards read the version before the newest one, the same on all stages: the delay is one update
    everywhere. Raises BadInput where `every` is below p, when two versions would not be enough, or does not divide
    micro_batches.
    Source: Narayanan et al. 2020, arXiv 2006.09503.
    """
    every = ranks if every is None else every
    if every < ranks or micro_batches % every:
        raise BadInput(f"PipeDream-2BW updates every {every} of {micro_batches} micro-batches: that must be at least the "
                       f"{ranks} ranks, and divide the micro-batches")
    return updating(one_f_one_b(ranks, micro_batches, rank), every)


def updating(actions: Actions, every: int) -> Actions:
    """The same with a STEP after each `every`-th backward."""
    with_steps, backwards = [], 0
    for action in actions:
        with_steps.append(action)
        if action.kind == "B":
            backwards += 1
            if backwards % every == 0:
                with_steps.append(Action("STEP", action.stage, action.micro_batch))
    return with_steps
