"""ZB-H1: the backward in two parts, of which the second, the gradients of the weights, fills what would be bubble."""

from .actions import Action, Actions


def zb_h1(ranks: int, micro_batches: int, rank: int) -> Actions:
    """1F1B's order with I in the place of B; rank r does each W when r more I's are done.

    The stage before waits for I alone, and so gets its gradient earlier by tW. Each rank has p micro-batches in flight
    if one counts until W: p - r as in 1F1B, and r whose W is still to come. At tF = tI = tW the bubble is a third of
    1F1B's. Source: Qi et al. 2024, arXiv 2401.10241, section 2.1.
    """
    warm_up = min(ranks - 1 - rank, micro_batches)
    actions = [Action("F", rank, micro_batch) for micro_batch in range(warm_up)]
    for micro_batch in range(micro_batches):
        if warm_up + micro_batch < micro_batches:
            actions.append(Action("F", rank, warm_up + micro_batch))
        actions.append(Action("I", rank, micro_batch))
        if micro_batch >= rank:
            actions.append(Action("W", rank, micro_batch - rank))
    return actions + [Action("W", rank, micro_batch) for micro_batch in range(max(micro_batches - rank, 0), micro_batches)]
