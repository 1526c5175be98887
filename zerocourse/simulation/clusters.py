"""Clusters to simulate: what a rank computes, and what the links carry. `clusters.json` has some, with a source of each
figure.

    find_cluster("8xA100")
    find_cluster("256x8xH100")      # so many nodes of a kind that is known
    find_cluster("mine.json")       # a file with one cluster, as the entries of clusters.json are

`efficiency` is the share of the peak that matrix products of a training step reach. It is the one number here that no
data sheet states. It was fixed once, such that a published run on one node of A100 takes as long as it did (see
`published`), and is the same for all clusters unless a file says otherwise. A simulation says which it took.
"""

import difflib
import json
import math
import re
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path

from ..comm.simulated import ALL_REDUCE, RING, TO_EACH
from ..errors import BadInput

FILE = Path(__file__).with_name("clusters.json")
MAY_BE_ZERO = ("latency", "latency_between", "processor")
EFFICIENCY = 0.70  # simulation/published.py, FIXED_ON


@dataclass(frozen=True)
class Machine:
    """A rank's processor. flops: its peak in operations a second.   memory_rate: bytes a second.   memory: bytes."""

    flops: float
    memory_rate: float
    memory: int
    efficiency: float = EFFICIENCY

    def seconds(self, flops: int, moved: int) -> float:
        """Of one operation that computes and moves so much: the longer of the two."""
        return max(flops / (self.flops * self.efficiency), moved / self.memory_rate)


@dataclass(frozen=True)
class Network:
    """The links between the ranks.

    per_node: ranks in a node.   inside: bytes a second that a rank sends within its node.   between: bytes a second that
        a *node* sends to others, by all its adapters.   latency, latency_between: seconds of one message, by either.
    processor: seconds of the rank's processor that each byte takes which it sends, in which it cannot compute. A CPU
        copies what it sends. (A GPU gives some of its multiprocessors to NCCL, which no data sheet states: 0.)

    All-gathers and reduce-scatters are rings, several at once that share the links, as NCCL makes them: each rank hands
    its neighbour what it sends, in one step for each other rank. Where a ring leaves a node, all of it passes through
    the node's adapters, in one step for each other node. All-reduces may be trees, whose steps grow with log₂ of the
    nodes. Latencies are counted as NCCL counts them when it chooses between the two (src/graph/tuning.cc).
    """

    per_node: int
    inside: float
    between: float
    latency: float = 5e-6
    latency_between: float = 5e-6
    processor: float = 0.0

    def seconds(self, nbytes: float, ranks: int) -> float:
        """Of an all-gather or a reduce-scatter in which each rank sends `nbytes`: its slowest link decides."""
        return nbytes / self.rate(ranks) + self.ring_latency(ranks)

    def seconds_of(self, way: str, nbytes: float, ranks: int) -> float:
        """Of a collective that goes this way (see `comm.simulated`)."""
        return {RING: self.seconds, ALL_REDUCE: self.all_reduce_seconds, TO_EACH: self.to_each_seconds}[way](nbytes, ranks)

    def to_each_seconds(self, nbytes: float, ranks: int) -> float:
        """Of an all-to-all in which each rank sends `nbytes`, to each other rank as much. What leaves a node has the rank's share of its
        adapters for itself."""
        outside = max(0, ranks - self.per_node) / max(1, ranks - 1)
        across = nbytes * outside * self.per_node / self.between
        return max(nbytes * (1 - outside) / self.inside, across) + (self.latency_between if outside else self.latency)

    def all_reduce_seconds(self, nbytes: float, ranks: int) -> float:
        """Of an all-reduce in which each rank sends `nbytes`: around the ring twice, or up a tree and down again."""
        tree = 2 * (self.latency * (min(ranks, self.per_node) - 1)
                    + self.latency_between * (self.nodes(ranks) - 1).bit_length())
        return nbytes / self.rate(ranks) + min(2 * self.ring_latency(ranks), tree)

    def rate(self, ranks: int) -> float:
        """Bytes a second that every rank of a ring of so many can send."""
        if self.nodes(ranks) == 1:
            return self.inside
        return min(self.inside, self.between) if self.per_node > 1 else self.between

    def ring_latency(self, ranks: int) -> float:
        nodes = self.nodes(ranks)
        return self.latency * (ranks - nodes) + self.latency_between * (nodes - 1)

    def nodes(self, ranks: int) -> int:
        return -(-ranks // self.per_node)

    def across(self) -> "Network":
        """What joins ranks of which each node has one, while all ranks of a node send to their like in other nodes, as
        the replicas of a hybrid sharding do: each has its share of the adapters."""
        return self.every(self.per_node)

    def every(self, stride: int) -> "Network":
        """What joins ranks that are `stride` apart, while all such groups talk at once: a node has some ranks of a group, and its other
        ranks belong to other groups, which share its adapters."""
        here = max(1, self.per_node // stride)
        return replace(self, per_node=here, between=self.between * here / self.per_node)


@dataclass(frozen=True)
class Cluster:
    """cards: how many ranks it can have.   half: the half precision to train in, "bf16" or "fp16".   sources: where each figure is from."""

    machine: Machine
    network: Network
    cards: int = 1
    half: str = "bf16"
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return "; ".join(self.sources.values())

    def check(self, ranks: int) -> None:
        """Raises BadInput where it has fewer cards than ranks."""
        if ranks > self.cards:
            raise BadInput(f"{ranks:,} ranks need as many cards, and this cluster has {self.cards:,}: give a cluster of "
                           f"{self.network.nodes(ranks):,} such nodes, as 256x8xH100 names 256 nodes of eight H100")


def read_cluster(values: object, where: str) -> Cluster:
    """A cluster from what a JSON file has. Raises BadInput, which names the first key that is missing or wrong."""
    parts = {"machine": Machine, "network": Network}
    entry = mapping(values, where, {*parts, "cards", "half", "sources"})
    made = {}
    for part, kind in parts.items():
        given = mapping(entry.get(part), f"{where}: {part}", {each.name for each in fields(kind)})
        made[part] = kind(**{each.name: number(given, each, f"{where}: {part}.{each.name}") for each in fields(kind)})
    cards = entry.get("cards", made["network"].per_node)
    if isinstance(cards, bool) or not isinstance(cards, int) or cards < 1:
        raise BadInput(f"{where}: cards is {cards!r}: it must be how many ranks it can have, an integer from 1")
    if (half := entry.get("half", "bf16")) not in ("bf16", "fp16"):
        raise BadInput(f"{where}: half is {half!r}: it must be \"bf16\" or, for cards without it, \"fp16\"")
    sources = mapping(entry.get("sources", {}), f"{where}: sources")
    return Cluster(**made, cards=cards, half=half, sources={figures: str(source) for figures, source in sources.items()})


def number(given: dict, each: Field, where: str) -> float:
    """A figure, which must be finite and above 0 (some may be 0); a count or bytes must be whole."""
    if each.name not in given and each.default is MISSING:
        raise BadInput(f"{where} is missing: it must be a number above 0")
    value = given.get(each.name, each.default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value < 0 or (value == 0 and each.name not in MAY_BE_ZERO):
        raise BadInput(f"{where} is {value!r}: it must be a number above 0")
    if each.name == "efficiency" and value > 1:
        raise BadInput(f"{where} is {value!r}: it is a share of the peak, at most 1")
    if each.type is int and value != int(value):
        raise BadInput(f"{where} is {value!r}: it must be a whole number")
    return each.type(value)


def mapping(value: object, where: str, known: set[str] | None = None) -> dict:
    """A JSON object, whose keys must be known ones. Raises BadInput."""
    keys = "" if known is None else f" with {', '.join(sorted(known))}"
    if not isinstance(value, dict):
        raise BadInput(f"{where} is {'missing' if value is None else repr(value)}: it must be a JSON object{keys}")
    for key in value if known is not None else ():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise BadInput(f"{where} has a key {key!r}, which nothing reads: "
                           + (f"did you mean {near[0]}?" if near else f"it may have {', '.join(sorted(known))}"))
    return value


CLUSTERS = {name: read_cluster(values, f"{FILE.name}: {name}") for name, values in json.loads(FILE.read_text()).items()}


def of_nodes(name: str) -> Cluster | None:
    """So many nodes of a kind that `CLUSTERS` has, as "256x8xH100", or one of them, "8xH100"; None where the name is none of these."""
    kinds = {known.partition("x")[2]: each for known, each in CLUSTERS.items() if each.cards > each.network.per_node} | {
        known: each for known, each in CLUSTERS.items() if each.cards == each.network.per_node}
    count, _, node = ("1", "x", name) if name in kinds else name.partition("x")
    if node not in kinds or not re.fullmatch(r"[1-9]\d*", count):
        return None
    kind = kinds[node]
    sources = {figures: source for figures, source in kind.sources.items() if figures != "cards"}
    words = f"{count} such node{'s' * (count != '1')}, nobody's cluster"
    return replace(kind, cards=int(count) * kind.network.per_node, sources=sources | {"cards": words})


def find_cluster(name: str) -> Cluster:
    """A cluster of `CLUSTERS`, any number of its nodes, or the cluster in a JSON file. Raises BadInput."""
    if (known := CLUSTERS.get(name) or of_nodes(name)) is not None:
        return known
    if name.endswith(".json"):
        try:
            return read_cluster(json.loads(Path(name).read_text()), name)
        except OSError as error:
            raise BadInput(f"the cluster's file {name} cannot be read: {error.strerror}") from None
        except json.JSONDecodeError as error:
            raise BadInput(f"{name} is no JSON: {error.msg} in line {error.lineno}") from None
        except UnicodeDecodeError:
            raise BadInput(f"{name} is no JSON: it is no text") from None
    near = difflib.get_close_matches(name, CLUSTERS, n=1)
    raise BadInput(f"there is no cluster {name!r}: "
                   + (f"did you mean {near[0]}?" if near else f"there are {', '.join(CLUSTERS)}, or give a JSON file"))
