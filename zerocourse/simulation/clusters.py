"""Clusters to simulate: what a rank computes, and what the links carry. `clusters.json` has some, each figure with its source.

    find_cluster("8xA100")
    find_cluster("mine.json")       # a file with one cluster, as the entries of clusters.json are

`efficiency` is the share of the peak that matrix products of a training step reach. It is the one number here that no data
sheet states, so it is the same for all clusters unless a file says otherwise, and a simulation says which it took.
"""

import difflib
import json
from dataclasses import dataclass, field, fields
from pathlib import Path

from ..errors import BadInput

FILE = Path(__file__).with_name("clusters.json")


@dataclass(frozen=True)
class Machine:
    """A rank's processor. flops: its peak in operations a second.   memory_rate: bytes a second.   memory: bytes."""

    flops: float
    memory_rate: float
    memory: int
    efficiency: float = 0.5

    def seconds(self, flops: int, moved: int) -> float:
        """Of one operation that computes and moves so much: the longer of the two."""
        return max(flops / (self.flops * self.efficiency), moved / self.memory_rate)


@dataclass(frozen=True)
class Network:
    """The links between the ranks.

    per_node: ranks in a node.   inside: bytes a second that a rank sends within its node.   between: bytes a second that
        a *node* sends to others, by all its adapters.   latency, latency_between: seconds of one message, by either.

    A collective is a ring, or several at once that share the links (as NCCL makes them). Each rank hands its neighbour
    what it sends, and where the ring leaves a node, all of that passes through the node's adapters together. It takes a
    step for each other rank, and a step between nodes for each other node. NCCL has trees too, but for all-reduces alone.
    """

    per_node: int
    inside: float
    between: float
    latency: float = 5e-6
    latency_between: float = 5e-6

    def seconds(self, nbytes: float, ranks: int) -> float:
        """Of a collective in which each of `ranks` ranks sends `nbytes` around the ring: its slowest link decides."""
        nodes = -(-ranks // self.per_node)
        rate = self.inside if nodes == 1 else min(self.inside, self.between) if self.per_node > 1 else self.between
        return nbytes / rate + self.latency * (ranks - nodes) + self.latency_between * (nodes - 1)


@dataclass(frozen=True)
class Cluster:
    """cards: how many ranks it can have.   sources: where each figure is from."""

    machine: Machine
    network: Network
    cards: int = 1
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return "; ".join(self.sources.values())


def read_cluster(values: object, where: str) -> Cluster:
    """A cluster from what a JSON file has. Raises BadInput, which names the first key that is missing, unknown or no number."""
    parts = {"machine": Machine, "network": Network}
    entry = mapping(values, where, {*parts, "cards", "sources"})
    made = {}
    for part, kind in parts.items():
        names = [each.name for each in fields(kind)]
        numbers = mapping(entry.get(part), f"{where}: {part}", set(names))
        for each in fields(kind):
            value = numbers.get(each.name, each.default)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise BadInput(f"{where}: {part}.{each.name} must be a number above 0"
                               + (f", not {numbers[each.name]!r}" if each.name in numbers else ", and is missing"))
            numbers[each.name] = int(value) if each.type is int else value
        made[part] = kind(**numbers)
    sources = mapping(entry.get("sources", {}), f"{where}: sources", None)
    return Cluster(**made, cards=int(entry.get("cards", made["network"].per_node)), sources=sources)


def mapping(value: object, where: str, known: set[str] | None) -> dict:
    """A copy of a JSON object. Raises BadInput if it is none, or has a key that is not known."""
    if not isinstance(value, dict):
        raise BadInput(f"{where} must be a JSON object" + (f" with {', '.join(sorted(known))}" if known else ""))
    for key in value:
        if known is not None and key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise BadInput(f"{where} has a key {key!r}, which nothing reads"
                           + (f": did you mean {near[0]}?" if near else f": it may have {', '.join(sorted(known))}"))
    return dict(value)


CLUSTERS = {name: read_cluster(values, f"{FILE.name}: {name}") for name, values in json.loads(FILE.read_text()).items()}


def find_cluster(name: str) -> Cluster:
    """A cluster of `CLUSTERS`, or the one in a JSON file. Raises BadInput."""
    if name in CLUSTERS:
        return CLUSTERS[name]
    if name.endswith(".json"):
        try:
            return read_cluster(json.loads(Path(name).read_text()), name)
        except OSError as error:
            raise BadInput(f"the cluster's file {name} cannot be read: {error.strerror}") from None
        except json.JSONDecodeError as error:
            raise BadInput(f"{name} is no JSON: {error.msg} in line {error.lineno}") from None
    near = difflib.get_close_matches(name, CLUSTERS, n=1)
    raise BadInput(f"there is no cluster {name!r}: "
                   + (f"did you mean {near[0]}?" if near else f"there are {', '.join(CLUSTERS)}, or give a JSON file"))
