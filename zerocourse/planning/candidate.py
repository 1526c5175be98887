"""A way to train, and what it comes to. Other kinds of parallelism become fields of `Candidate`; all else stays."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..formulas.states import FP32, ZERO, Convention
from ..formulas.what_fits import DEVICE, Arrangement

COMPUTED, SIMULATED = "computed", "simulated"


@dataclass(frozen=True)
class Candidate:
    """stage: 0 to 3.   micro_batch: samples of one rank.   accumulation: micro-batches of an optimizer step.

    half: bf16 with fp32 master weights; False: all in fp32.   recompute: activation checkpointing of every block.
    optimizer, parameters: the place of each, "device", "host" or "disk" (see `formulas.what_fits`).
    """

    stage: int
    ranks: int
    micro_batch: int = 1
    accumulation: int = 1
    half: bool = True
    recompute: bool = False
    optimizer: str = DEVICE
    parameters: str = DEVICE

    @property
    def arrangement(self) -> Arrangement:
        return Arrangement(self.stage, self.optimizer, self.parameters)

    @property
    def convention(self) -> Convention:
        return ZERO if self.half else FP32

    @property
    def samples(self) -> int:
        """The global batch."""
        return self.ranks * self.micro_batch * self.accumulation

    def __str__(self) -> str:
        ranks = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        batch = f"micro-batch {self.micro_batch}" + (f" × {self.accumulation}" if self.accumulation > 1 else "")
        dtype = "bf16" if self.half else "fp32"
        return f"{self.arrangement}, {ranks}, {batch}, {dtype}" + ", recompute" * self.recompute


@dataclass(frozen=True)
class Evaluation:
    """What a candidate comes to, per rank and optimizer step. Equal in form, whoever found it out (`source`).

    kinds: the bytes of the peak by kind. Simulated they are those of that moment; computed, model states as they are
        just before the update, and the rest.   held: bytes at the peak, by place.
    sent: bytes by link: "inside" the node or "between" nodes, over the "host" link, and to and from the "disk".
    cost: of 10⁹ tokens, in the unit of the price; None without a price.
    missing: by place, the bytes by which it is too large.
    """

    candidate: Candidate
    source: str
    kinds: Mapping[str, int]
    held: Mapping[str, int]
    sent: Mapping[str, int]
    compute_seconds: float
    exposed_seconds: float
    tokens: int
    cost: float | None = None
    missing: Mapping[str, int] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        return not self.missing

    @property
    def peak_bytes(self) -> int:
        return self.held[DEVICE]

    @property
    def step_seconds(self) -> float:
        return self.compute_seconds + self.exposed_seconds

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.step_seconds

    @property
    def tokens_per_card(self) -> float:
        """Tokens a second of one card."""
        return self.tokens_per_second / self.candidate.ranks
