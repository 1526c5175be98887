"""A way to train, and what it comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..formulas.states import FP32, ZERO, Convention
from ..formulas.what_fits import DEVICE, Arrangement

COMPUTED, SIMULATED = "computed", "simulated"
ONE_F_ONE_B, INTERLEAVED, ZB_H1 = "1f1b", "interleaved", "zb-h1"


@dataclass(frozen=True)
class Candidate:
    """stage: 0 to 3.   micro_batch: samples of one replica.   accumulation: micro-batches of an optimizer step.

    dtype: "bf16" or "fp16", with fp32 master weights, or all in "fp32".   recompute: activation checkpointing of every block.
    optimizer, parameters: the place of each, "device", "host" or "disk" (see `formulas.what_fits`).
    tensor, pipeline: ranks along these axes of the mesh. All others are the data axis, over which the stage divides.
        With tensor parallelism goes sequence parallelism.
    experts_over: ranks with different experts of a layer; the ranks with the same ones divide their states.
    schedule: of the pipeline, "1f1b", "interleaved" (with so many `chunks` of layers per rank), or "zb-h1".
    """

    stage: int
    ranks: int
    micro_batch: int = 1
    accumulation: int = 1
    dtype: str = "bf16"
    recompute: bool = False
    optimizer: str = DEVICE
    parameters: str = DEVICE
    tensor: int = 1
    pipeline: int = 1
    schedule: str = ONE_F_ONE_B
    chunks: int = 1
    experts_over: int = 1

    @property
    def same_experts(self) -> int:
        """Ranks that have the same experts."""
        return self.data // self.experts_over

    @property
    def replica(self) -> int:
        """Ranks that hold one copy of the model between them."""
        return self.tensor * self.pipeline

    @property
    def data(self) -> int:
        """Ranks along the data axis."""
        return self.ranks // self.replica

    @property
    def kind(self) -> str:
        """Which axes its mesh has beside the data axis, in words."""
        axes = ["tensor parallelism"] * (self.tensor > 1) + ["a pipeline"] * (self.pipeline > 1) + ["expert parallelism"] * (self.experts_over > 1)
        return " and ".join(axes) or "ZeRO alone"

    @property
    def arrangement(self) -> Arrangement:
        return Arrangement(self.stage, self.optimizer, self.parameters)

    @property
    def half(self) -> bool:
        """Does it train in half precision?"""
        return self.dtype != "fp32"

    @property
    def convention(self) -> Convention:
        return ZERO if self.half else FP32

    @property
    def samples(self) -> int:
        """The global batch."""
        return self.data * self.micro_batch * self.accumulation

    @property
    def mesh(self) -> str:
        """"tensor 8 × pipeline 4, 1f1b × data 2"; empty where all ranks are the data axis."""
        if self.replica == 1:
            return f"experts over {self.experts_over}" * (self.experts_over > 1)
        schedule = f"{self.schedule} {self.chunks}" if self.chunks > 1 else self.schedule
        axes = [f"tensor {self.tensor}"] * (self.tensor > 1)
        axes += [f"pipeline {self.pipeline}, {schedule}"] * (self.pipeline > 1)
        return " × ".join([*axes, f"data {self.data}"])

    def __str__(self) -> str:
        ranks = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        batch = f"micro-batch {self.micro_batch}" + (f" × {self.accumulation}" if self.accumulation > 1 else "")
        return f"{self.arrangement}, {ranks}{self.mesh and f' ({self.mesh})'}, {batch}, {self.dtype}" + ", recompute" * self.recompute


class AxisTraffic(NamedTuple):
    """What one axis of a mesh sends, per rank and optimizer step.

    axis: "tensor", "pipeline", "expert" or "data".   link: as `Mesh.link` says it.   nbytes: bytes.
    exposed: seconds in which the rank waits for them.
    """

    axis: str
    link: str
    nbytes: int
    exposed: float


@dataclass(frozen=True)
class Evaluation:
    """What a candidate comes to, per rank and optimizer step. Equal in form, whoever found it out (`source`).

    kinds: the bytes of the peak by kind. Simulated they are those of that moment; computed, model states as they are
        just before the update, and the rest.   held: bytes at the peak, by place.
    sent: bytes by link: "inside" the node or "between" nodes, over the "host" link, and to and from the "disk".
    cost: of 10⁹ tokens, in the unit of the price; None without a price.
    missing: by place, the bytes by which it is too large.
    traffic, bubble: what each axis of a mesh sends, and the seconds of the pipeline's bubble, which are exposed, too.
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
    traffic: tuple[AxisTraffic, ...] = ()
    bubble: float = 0.0

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
