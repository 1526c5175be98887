"""The claims of chapter 26, by name, in the order in which the chapter examines them."""

from functools import cache

from ....errors import BadInput
from . import (  # noqa: F401
    memory_claims,
    number_claims,
    offload_claims,
    parallel_claims,
    step_claims,
    time_claims,
    traffic_claims,
)
from .claim import ANSWERS, FALSE, KINDS, MARKS, NOT_BUILT, ONLY_IF, TRUE, Claim, Examined, Judgement, read_claims

CLAIMS = read_claims()

__all__ = ["ANSWERS", "CLAIMS", "FALSE", "KINDS", "MARKS", "NOT_BUILT", "ONLY_IF", "TRUE", "Claim",
           "Examined", "Judgement", "examine"]


@cache
def examine(name: str) -> Examined:
    """Collect the evidence for a claim, once, and judge it. Raises BadInput for a claim that is not here."""
    if name not in CLAIMS:
        raise BadInput(f"there is no claim {name!r}: there are {', '.join(CLAIMS)}")
    return CLAIMS[name].examine()
