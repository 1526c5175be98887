"""The peak of a step's model states, from what may be in flight. Formulas: no torch.

While unit i computes its backward, a rank holds three things that grow and shrink:

- parameters that are gathered (stage 3): the root's, unit i's, and those of the `prefetch` units that come next;
- buckets: that of what comes after the units (a last norm, a head), unit i's, which fills, and those of `in_flight`
  units before it, which are being reduced;
- slices of the gradients of all units before these.

After the units comes what was before them (the embeddings), and then all of the root's buckets are there.
Activations are not here: see `memory.layer_activation_bytes`.
"""

from collections.abc import Sequence


def states_peak(root: Sequence[int], units: Sequence[int], stage: int, ranks: int, prefetch: int = 1, in_flight: int = 1,
                element: int = 4, states: int = 8) -> int:
    """The most bytes of parameters, gradients and optimizer states that a rank holds at any moment of a step.

    root: parameters before the units, and after them.   units: those of each unit, in the order of the forward. All are
        padded to a multiple of `ranks`.
    element: bytes of a parameter and of its gradient.   states: bytes of the optimizer's for one parameter.
    Every unit is used once; it is not the first step, whose states are to come.
    """
    before, after = root
    whole = before + sum(units) + after
    share = whole // ranks
    if stage < 2:
        return (2 * element + states) * whole if stage == 0 else 2 * element * whole + states * share
    moments = []
    for now in range(-1, len(units)):  # -1: the last gradients of the root arrive
        gathered = before + after + sum(units[max(0, now - prefetch) : now + 1]) if stage == 3 else whole
        buckets = (before if now < 0 else 0) + after + sum(units[max(0, now) : now + 1 + in_flight])
        reduced = sum(units[now + 1 + in_flight :]) // ranks
        moments.append(gathered + buckets + reduced)
    return element * max(moments) + states * share + (element * share if stage == 3 else 0)
