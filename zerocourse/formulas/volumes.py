"""What a rank sends in an optimizer step, in elements and bytes, and what one collective costs. Formulas: no torch.

Source: ZeRO, arXiv 1910.02054, section 7. N is the world size, G the micro-batches accumulated in an optimizer step.
"""

from dataclasses import dataclass
from fractions import Fraction

from ..errors import BadInput
from .shares import known_stage, positive, share_of
from .states import ZERO, Convention


def bus_factor(collective: str, ranks: int) -> Fraction:
    """What a rank sends in one collective, as a share of the whole buffer. Raises BadInput."""
    ring = Fraction(ranks - 1, positive("ranks", ranks))
    factors = {"all_reduce": 2 * ring, "reduce_scatter": ring, "all_gather": ring, "all_to_all": ring,
               "broadcast": Fraction(1), "reduce": Fraction(1)}
    if collective not in factors:
        raise BadInput(f"There is no bus factor of {collective!r}: there is one of {', '.join(factors)}.")
    return factors[collective]


@dataclass(frozen=True)
class Passes:
    """How often all parameters, and all gradients, are sent in one optimizer step.

    A pass is one all-gather or one reduce-scatter of everything. An all-reduce counts as two.
    """

    parameters: int
    gradients: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients


def passes(stage: int, accumulation: int = 1, scheme: str = "zero") -> Passes:
    """The passes of an optimizer step of `accumulation` micro-batches.

    scheme: "zero", "keep" (stage 3 keeps its parameters between forward and backward), or "deepspeed" (its defaults:
    stages 1 and 2 all-reduce a bucket and keep a slice of it, stage 3 is "keep" on models below 10^9 parameters).
    """
    G, stage = positive("accumulation", accumulation), known_stage(stage)
    if scheme not in ("zero", "keep", "deepspeed"):
        raise BadInput(f"There is no scheme {scheme!r}: there are zero, keep and deepspeed.")
    if stage == 0:
        return Passes(0, 2)  # added up locally, then one all-reduce
    if stage == 3:
        return Passes(2 * G if scheme == "zero" else G, G)
    reductions = G if stage == 2 else 1  # stage 2 has no room to add whole gradients up locally
    return Passes(1, 2 * reductions if scheme == "deepspeed" else reductions)


def sent_elements(params: int, stage: int, ranks: int, accumulation: int = 1, scheme: str = "zero",
                  shard: int | None = None) -> int:
    """Elements that a rank sends in one optimizer step: N - 1 shards per pass. `shard` as for `model_states`."""
    return passes(stage, accumulation, scheme).total * (ranks - 1) * share_of(params, ranks, shard)


def sent_bytes(params: int, stage: int, ranks: int, accumulation: int = 1, scheme: str = "zero",
               shard: int | None = None, convention: Convention = ZERO) -> int:
    """The same in bytes, when parameters and gradients travel as the convention stores them."""
    times = passes(stage, accumulation, scheme)
    element = times.parameters * convention.parameter + times.gradients * convention.gradient
    return element * (ranks - 1) * share_of(params, ranks, shard)
