"""What a rank of a mesh has of the model, over which links its axes talk, and how long its pipeline stands still.

The mesh has Megatron's order: the pipeline is the slowest axis, data is between, and the tensor axis is the fastest.
Tensor parallelism divides matrices, embeddings, logits and, because sequence parallelism goes with it, activations.
Norms, which all its ranks hold, are left out: they are small.
Sources: Narayanan et al. 2021, arXiv 2104.04473; Korthikanti et al. 2022, arXiv 2205.05198; Qi et al. 2024, 2401.10241.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from ..formulas.shares import shard_elements
from ..layout.mesh import BOTH, INSIDE, Mesh
from .candidate import INTERLEAVED, ONE_F_ONE_B, ZB_H1, Candidate
from .model_sizes import ModelSizes

AXES = {"tensor": "tp", "data": "dp", "pipeline": "pp"}


@dataclass(frozen=True)
class RankPart:
    """One rank's part of a model. before, block, after: its parameters before the blocks, of each, and after them.

    first, last: does its pipeline stage have the embedding, or the head?   in_flight: micro-batches, at most, whose
    activations it holds at once; a fraction where it holds some of them in some of its chunks only.
    experts: parameters of the experts of each block that it has, which are not in `block`.
    """

    layers: int
    before: int
    block: int
    after: int
    first: bool
    last: bool
    in_flight: Fraction
    experts: int = 0

    @property
    def dense(self) -> int:
        """All but experts."""
        return self.before + self.layers * self.block + self.after

    @property
    def params(self) -> int:
        return self.dense + self.layers * self.experts


def end_parts(model: ModelSizes, candidate: Candidate) -> list[RankPart]:
    """Of the pipeline's first and last rank, which hold most: the middle has neither embedding nor head, nor more in
    flight than the first, nor more layers. Where there is no pipeline, the one part."""
    t, p = candidate.tensor, candidate.pipeline
    even, more = divmod(model.layers, p)
    # Where ranks outnumber the heads of keys and values, each has one: so many copies of both matrices are there.
    copies = 2 * model.width * model.kv_width * max(t // model.kv_heads - 1, 0)
    block = shard_elements(model.block + copies, t)
    parts = []
    for rank in sorted({0, p - 1}):
        first, last = rank == 0, rank == p - 1
        copied = model.vocabulary * model.width if last and not first and model.tied else 0  # a tied head needs its own
        parts.append(RankPart(even + (rank < more), shard_elements(model.before, t) if first else 0, block,
                              shard_elements(model.after + copied, t) if last else 0, first, last,
                              in_flight(candidate, rank), model.experts * model.expert // candidate.experts_over))
    return parts


def in_flight(candidate: Candidate, rank: int) -> Fraction:
    """Micro-batches whose activations this rank of the pipeline holds at once (see `parallel.pipeline`)."""
    p, m, v = candidate.pipeline, candidate.accumulation, candidate.chunks
    if candidate.schedule == ZB_H1:
        return Fraction(min(p, m))
    if candidate.schedule == INTERLEAVED:
        return Fraction(min(m * v, (v - 1) * p + 2 * (p - 1 - rank) + 1), v)
    return Fraction(min(p - rank, m))


def bubble_share(candidate: Candidate) -> float:
    """What is left of 1F1B's bubble under the candidate's schedule. With ZB-H1 a pipeline's fill and drain take
    tF + tI - tW per rank rather than tF + tB; tI and tW are halves of the backward, and a recomputation is in tI."""
    if candidate.schedule == ZB_H1:
        return 2 / 4 if candidate.recompute else 1 / 3
    return 1 / candidate.chunks


def bubble_seconds(candidate: Candidate, slots: Sequence[float]) -> float:
    """In which the slowest rank stands still. slots: seconds that each rank takes for one micro-batch, both ways.

    The first micro-batch passes through all other ranks once, whatever the number of micro-batches. This is exact where
    all ranks take as long or, under 1F1B, the last takes longest, as one with a head does; else it is an upper bound.
    """
    return (sum(slots) - max(slots)) * bubble_share(candidate)


def schedules(model: ModelSizes, pipeline: int, micro_batches: int) -> list[tuple[str, int]]:
    """(schedule, chunks) that can run. Interleaving takes micro-batches in groups of p, and equal chunks of layers.

    Zero-bubble schedules are not among them: ZeRO cannot reduce weights' gradients that are computed apart.
    """
    if pipeline == 1:
        return [(ONE_F_ONE_B, 1)]
    found = [(ONE_F_ONE_B, 1)]
    if micro_batches % pipeline == 0:
        found += [(INTERLEAVED, v) for v in (2, 4) if model.layers % (pipeline * v) == 0]
    return found


def links(candidate: Candidate, per_node: int) -> dict[str, str]:
    """By axis, over which links it talks: INSIDE a node, BETWEEN nodes, or BOTH."""
    return _links(candidate.tensor, candidate.data, candidate.pipeline, per_node) | {
        "expert": INSIDE if candidate.experts_over <= per_node else BOTH}


@cache
def _links(tensor: int, data: int, pipeline: int, per_node: int) -> dict[str, str]:
    mesh = Mesh.ordered("megatron", {"tp": tensor, "dp": data, "pp": pipeline}, per_node)
    return {axis: mesh.link(name) for axis, name in AXES.items()}


def experts_refused(model: ModelSizes, candidate: Candidate) -> str | None:
    """Why so many ranks cannot have different experts."""
    over = candidate.experts_over
    if over > 1 and not model.experts:
        return f"{model.name} has no experts, which {over} ranks could have."
    if model.experts and candidate.replica > 1:
        return f"{model.name} has experts, for which tensor parallelism and pipelines have no plan."
    if model.experts % over or candidate.data % over:
        return f"{over} ranks cannot have different ones of {model.experts} experts among {candidate.data}: their number must divide both."
    return None


def heads_refused(model: ModelSizes, tensor: int) -> str | None:
    """Why so many ranks cannot divide the heads. Where there are fewer heads of keys and values, several ranks have the same."""
    if model.qk_norm and tensor > 1:
        return "tensor parallelism has no plan for the norms of queries and keys (Qwen 3), which see a rank's own heads alone."
    if model.heads % tensor:
        return f"{model.heads} heads cannot be divided among {tensor} ranks, because a head stays on one rank."
    if model.kv_heads % tensor and tensor % model.kv_heads:
        return (f"{model.kv_heads} heads of keys and values cannot be divided among {tensor} ranks, because a head stays on "
                "one rank, and as many ranks must have each.")
    return None


def refusal(model: ModelSizes, candidate: Candidate) -> str | None:
    """Why the mesh cannot be, in one sentence; None if it can."""
    t, p, m = candidate.tensor, candidate.pipeline, candidate.accumulation
    if (why := heads_refused(model, t) or experts_refused(model, candidate)) is not None:
        return why
    if p > model.layers:
        return f"{model.layers} layers are too few for {p} pipeline stages, of which each needs one."
    if candidate.ranks % (t * p):
        return f"{candidate.ranks} ranks are no multiple of {t} × {p}, which hold the model once."
    if p > 1 and (candidate.schedule, candidate.chunks) not in schedules(model, p, m):
        return (f"the schedule {candidate.schedule} with {candidate.chunks} chunks takes micro-batches in groups of {p} "
                f"and layers in {p * candidate.chunks} equal chunks, and there are {m} and {model.layers}.")
    return None
