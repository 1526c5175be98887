"""How long an optimizer step takes, from its parts: what a rank computes, and what it waits for. Formulas: no torch.

All units are alike, and the link carries one collective after the other. A stage's order decides what can hide:
reductions and gathers of units hide behind the units that compute meanwhile, but the first gather and the last
reduction cannot.
"""

from dataclasses import dataclass

from ..shares import known_stage, positive
from ..volumes import passes

# Bytes that copies, casts and the update move, by (bytes of an element, stage): per parameter in each micro-batch, per
# parameter in the step, per parameter that the rank owns in the step, and the same in each micro-batch. Counted in the
# operations of simulated steps, for Adam with fp32 master weights or in fp32 (tests/planning/test_planning.py).
STATE_TRAFFIC = {
    (2, 0): (6.6, 34, 30, 0), (2, 1): (6.6, 4, 60, 0), (2, 2): (10.6, 0, 24, 36), (2, 3): (10.6, 0, 24, 48),
    (4, 0): (13.1, 24, 28, 0), (4, 1): (13.1, 8, 44, 0), (4, 2): (21.1, 0, 4, 40), (4, 3): (21.1, 0, 4, 64)}
ADAM_TRAFFIC = 28  # of it Adam's own: it reads a weight, a gradient and two averages, and writes all but the gradient
PUBLISHING_TRAFFIC = {2: 28, 4: 4}  # of it after Adam, a buffer at a time, while the buffer before is gathered


@dataclass(frozen=True)
class StepTime:
    """Seconds of an optimizer step. compute: the rank computes.   exposed: it waits.   wire: its link is busy."""

    compute: float
    exposed: float
    wire: float

    @property
    def total(self) -> float:
        return self.compute + self.exposed


def state_traffic(stage: int, element: int, params: int, owned: int, accumulation: int = 1) -> float:
    """Bytes that copies, casts and the update of a step read and write."""
    each, once, of_owned, each_of_owned = STATE_TRAFFIC[element, known_stage(stage)]
    return params * (each * accumulation + once) + owned * (of_owned + each_of_owned * accumulation)


def step_time(stage: int, accumulation: int, units: int, forward: float, backward: float, rest: float,
              publishing: float, unit_pass: float, root_pass: float) -> StepTime:
    """forward, backward: seconds of one unit.   rest: all else that the rank computes in the step.

    publishing: of that, seconds after Adam's step in which updated weights are copied, behind which gathers hide at
        stages 1 and 2.
    unit_pass, root_pass: seconds of a gather, or of a reduction, of one unit and of the root.
    """
    micro_batches, times = positive("accumulation", accumulation), passes(stage, accumulation)
    whole = units * unit_pass + root_pass
    compute = micro_batches * units * (forward + backward) + rest
    if stage == 3:
        late_forward, late_backward = (max(0.0, link - busy) for link, busy in
                                       ((unit_pass, forward), (2 * unit_pass, backward)))
        exposed = micro_batches * (units * (late_forward + late_backward) + 3 * root_pass + unit_pass)
    else:
        reductions = micro_batches if stage == 2 else 1
        late = units * max(0.0, unit_pass - backward) + root_pass + unit_pass
        hidden = publishing if stage else 0.0
        exposed = reductions * late + max(unit_pass, whole - hidden)
    wire = times.total * whole
    return StepTime(compute, min(exposed, wire), wire)


def speedup_bound(compute: float, communication: float, exposed: float = 0.0) -> float:
    """What overlap can bring at most: a step's time without it over its time with perfect overlap.

    compute, communication: seconds of a step, not both 0.   exposed: seconds of the communication that nothing can hide.
    Without overlap they add up; with it, what can hide takes place while the rank computes.
    """
    return (compute + communication) / (exposed + max(compute, communication - exposed))
