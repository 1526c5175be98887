"""What is asked of a plan: the model, the cluster, the batch, and how much of each memory there is."""

import re
from dataclasses import dataclass, field

from ..errors import BadInput
from ..formulas.units import integer
from ..formulas.what_fits import DEVICE, DISK, HOST
from ..simulation.clusters import Cluster, find_cluster
from .candidate import Candidate, Evaluation
from .mesh_parts import heads_refused, refusal
from .model_sizes import ModelSizes, find_sizes

MOST_MICRO_BATCH = 64
RESERVE = 0.1  # of a card's memory, left for what a process takes beyond its tensors: its context, and what an allocator keeps
DTYPES = ("bf16", "fp16", "fp32")


@dataclass(frozen=True)
class Rates:
    """Bytes a second for one card. The disk has no rate until one is given, because disks differ too much.

    link: between device and host, each way: PCIe 4.0 x16, 16 lanes of 16 Gbit/s with 128 of 130 bits of use.
    host: of the memory in which the host's processor updates: two sockets of 8 channels of DDR4-3200 for 8 cards.
    """

    link: float = 16 * 16e9 * 128 / 130 / 8
    host: float = 2 * 8 * 3200e6 * 8 / 8
    disk: float | None = None


@dataclass(frozen=True)
class Question:
    """batch: samples of an optimizer step, or None for any.   ranks: the world sizes to try.   budgets: bytes, by
    place.

    tensors, pipelines: ranks to try along these axes of a mesh; 1 alone for ZeRO alone.
    dtypes: see `Candidate.dtype`.   price: of one card for one hour, in any unit.
    The best plan has the highest rate of all ranks if the batch is given, else the highest rate per card.
    """

    model: ModelSizes
    cluster_name: str
    cluster: Cluster
    seq: int
    batch: int | None
    ranks: tuple[int, ...]
    budgets: dict[str, int]
    dtypes: tuple[str, ...] = ("bf16",)
    price: float | None = None
    most_micro_batch: int = MOST_MICRO_BATCH
    rates: Rates = field(default_factory=Rates)
    tensors: tuple[int, ...] = (1,)
    pipelines: tuple[int, ...] = (1,)

    @property
    def has_meshes(self) -> bool:
        """Is more than ZeRO alone tried?"""
        return self.tensors != (1,) or self.pipelines != (1,)

    def rate(self, evaluation: Evaluation) -> float:
        """Tokens a second, of all ranks or of one card: what is to be high."""
        return evaluation.tokens_per_card if self.batch is None else evaluation.tokens_per_second

    def cost(self, ranks: int, tokens: int, seconds: float) -> float | None:
        """Of 10⁹ tokens."""
        return None if self.price is None else self.price * ranks * seconds / 3600 * 1e9 / tokens


def ask(model: str, cluster: str, batch: int | str | None = None, ranks: tuple[int, ...] | None = None,
        dtypes: tuple[str, ...] | None = None, seq: int | None = None, memory: int | None = None, host: int = 0,
        disk: int = 0,
        price: float | None = None, most_micro_batch: int = MOST_MICRO_BATCH, rates: Rates | None = None,
        mesh: bool = False, tensor: int | None = None, pipeline: int | None = None) -> Question:
    """The question in full. batch: samples, or "4M tokens".   ranks: without them powers of two up to the cluster's
    cards.

    memory: bytes of a card that tensors may take; without it all but the `RESERVE`.   host, disk: bytes for each rank, with which
    offload is tried too.
    dtypes: without them the half precision that the cards have.
    mesh: try tensor and pipeline parallelism too: all sizes of a tensor group that a node holds, and all pipelines.
    tensor, pipeline: pin that axis, with or without `mesh`. Raises BadInput.
    """
    sizes, known = find_sizes(model), find_cluster(cluster)
    seq = sizes.tokens if seq is None else integer(seq, "seq", 1, sizes.tokens)
    rates = rates or Rates()
    if disk and rates.disk is None:
        raise BadInput("a disk is given without its rate: say with --disk-rate how many bytes a second each card reads")
    if disk and not host:
        raise BadInput("a disk is given without host memory: what is read from a disk passes through the host, so give "
                       "--host too")
    if ranks is None:
        ranks = tuple(2**power for power in range(known.cards.bit_length()))
    ranks = tuple(sorted({integer(number, "ranks", 1) for number in ranks}))
    known.check(ranks[-1])
    samples = samples_of(batch, seq)
    tensors, pipelines = axes_to_try(sizes, known.network.per_node, mesh, tensor, pipeline)
    if samples is None and pipelines != (1,):
        raise BadInput("a pipeline's bubble depends on how many micro-batches a step has: say with --batch how many "
                       "samples that is, or leave pipelines out with --pipeline 1")
    replicas = {t * p for t in tensors for p in pipelines}
    if not any(number % replica == 0 for number in ranks for replica in replicas):
        raise BadInput(f"{' or '.join(map(str, ranks))} ranks cannot hold replicas of {min(replicas)}: give a multiple "
                       "of it with --ranks")
    if samples is not None and replicas == {1} and not any(samples % number == 0 for number in ranks):
        raise BadInput(f"a batch of {samples} samples cannot be divided among {' or '.join(map(str, ranks))} ranks: "
                       f"it must be a multiple of {ranks[0]}")
    budgets = {DEVICE: round((1 - RESERVE) * known.machine.memory) if memory is None else memory, HOST: host, DISK: disk}
    dtypes = tuple(dict.fromkeys(dtypes or (known.half,)))
    if "bf16" in dtypes and known.half != "bf16":
        raise BadInput(f"the cards of {cluster} have no bf16: plan for {known.half} or fp32")
    return Question(sizes, cluster, known, seq, samples, ranks, budgets, dtypes,
                    price, integer(most_micro_batch, "most_micro_batch", 1), rates, tensors, pipelines)


def axes_to_try(model: ModelSizes, per_node: int, mesh: bool, tensor: int | None,
                pipeline: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(sizes of the tensor axis, sizes of the pipeline axis). Raises BadInput where a pinned one cannot be."""
    pinned = Candidate(0, (tensor or 1) * (pipeline or 1), tensor=integer(tensor or 1, "tensor", 1),
                       pipeline=integer(pipeline or 1, "pipeline", 1))
    if (why := refusal(model, pinned)) is not None:
        raise BadInput(why.rstrip("."))
    if mesh and model.experts:
        raise BadInput(f"--mesh tries tensor parallelism and pipelines, which have no plan for the experts of {model.name}: leave it out, and "
                       "ranks with different experts are tried")
    tensors = tuple(t for t in range(1, per_node + 1) if per_node % t == 0 and heads_refused(model, t) is None)
    return ((tensor,) if tensor else tensors if mesh else (1,),
            (pipeline,) if pipeline else tuple(range(1, model.layers + 1)) if mesh else (1,))


def samples_of(batch: int | str | None, seq: int) -> int | None:
    """Samples of a batch, which is a number of samples, or of tokens if it says so. Raises BadInput."""
    if batch is None:
        return None
    match = re.fullmatch(r"\s*([\d_,.]+)\s*([kM]?)\s*(tokens)?\s*", str(batch))
    try:
        number = float(re.sub("[_,]", "", match[1])) * {"": 1, "k": 10**3, "M": 10**6}[match[2]]
    except (TypeError, ValueError):
        number = 0.0
    if not number.is_integer() or number < 1:
        raise BadInput(f"the batch is {batch!r}: it must be a positive number of samples, such as 512, or of tokens, "
                       f"such as \"{512 * seq} tokens\"")
    if match[3] is None:
        return int(number)
    if number % seq:
        fewer = max(1, int(number // seq))
        raise BadInput(f"a batch of {int(number):,} tokens is no whole number of samples of {seq:,} tokens: "
                       f"{fewer * seq:,} would be {fewer} samples")
    return int(number // seq)
