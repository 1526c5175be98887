"""What is asked of a plan: the model, the cluster, the batch, and how much of each memory there is."""

import re
from dataclasses import dataclass, field
from math import prod

from ..errors import BadInput
from ..formulas.units import integer
from ..formulas.what_fits import DEVICE, DISK, HOST
from ..simulation.clusters import Cluster, find_cluster
from .candidate import Evaluation
from .model_sizes import ModelSizes, find_sizes

MOST_MICRO_BATCH = 64
DTYPES = {"bf16": True, "fp32": False}  # name: is it half precision?


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

    halves: see `Candidate.half`.   price: of one card for one hour, in any unit.
    The best plan has the highest rate of all ranks if the batch is given, else the highest rate per card.
    """

    model: ModelSizes
    cluster_name: str
    cluster: Cluster
    seq: int
    batch: int | None
    ranks: tuple[int, ...]
    budgets: dict[str, int]
    halves: tuple[bool, ...] = (True,)
    price: float | None = None
    most_micro_batch: int = MOST_MICRO_BATCH
    rates: Rates = field(default_factory=Rates)

    def rate(self, evaluation: Evaluation) -> float:
        """Tokens a second, of all ranks or of one card: what is to be high."""
        return evaluation.tokens_per_card if self.batch is None else evaluation.tokens_per_second

    def cost(self, ranks: int, tokens: int, seconds: float) -> float | None:
        """Of 10⁹ tokens."""
        return None if self.price is None else self.price * ranks * seconds / 3600 * 1e9 / tokens


def ask(model: str, cluster: str, batch: int | str | None = None, ranks: tuple[int, ...] | None = None,
        dtypes: tuple[str, ...] = ("bf16",), seq: int | None = None, memory: int | None = None, host: int = 0,
        disk: int = 0,
        price: float | None = None, most_micro_batch: int = MOST_MICRO_BATCH, rates: Rates | None = None) -> Question:
    """The question in full. batch: samples, or "4M tokens".   ranks: without them powers of two up to the cluster's
    cards.

    memory: bytes of a card, if not all of what it has.   host, disk: bytes for each rank, with which offload is tried
    too. Raises BadInput.
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
        cards = cards_of(cluster, known)
        ranks = tuple(2**power for power in range(cards.bit_length()) if 2**power <= cards)
    ranks = tuple(sorted({integer(number, "ranks", 1) for number in ranks}))
    samples = samples_of(batch, seq)
    if samples is not None and not any(samples % number == 0 for number in ranks):
        raise BadInput(f"a batch of {samples} samples cannot be divided among {' or '.join(map(str, ranks))} ranks: "
                       f"it must be a multiple of {ranks[0]}")
    budgets = {DEVICE: known.machine.memory if memory is None else memory, HOST: host, DISK: disk}
    halves = tuple(DTYPES[name] for name in dict.fromkeys(dtypes))
    return Question(sizes, cluster, known, seq, samples, ranks, budgets, halves,
                    price, integer(most_micro_batch, "most_micro_batch", 1), rates)


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


def cards_of(name: str, cluster: Cluster) -> int:
    """How many cards it has: the numbers in its name, "64x8xH100", or else those of one node."""
    return prod(map(int, re.findall(r"(\d+)x", name))) if re.match(r"\d+x", name) else cluster.network.per_node
