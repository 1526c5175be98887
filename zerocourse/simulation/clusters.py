"""Clusters to simulate: what a rank computes, and what the links carry. Each figure with its source.

`efficiency` is the share of the peak that matrix products of a training step reach. It is the one number here that is
measured and not stated by anybody's data sheet, so a simulation says which it took.
"""

import difflib
from dataclasses import dataclass

from ..errors import BadInput


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

    per_node: ranks in a node.   inside, between: bytes a second that a rank sends to others in its node, and that each rank
        of a node sends to other nodes.   latency: seconds of one message.
    """

    per_node: int
    inside: float
    between: float
    latency: float = 5e-6

    def seconds(self, nbytes: int, ranks: int) -> float:
        """Of a collective in which each of `ranks` ranks sends `nbytes` around a ring: its slowest link decides."""
        rate = self.inside if ranks <= self.per_node else min(self.inside, self.between)
        return nbytes / rate + self.latency * (ranks - 1)


@dataclass(frozen=True)
class Cluster:
    machine: Machine
    network: Network
    source: str


GB = 10**9
CLUSTERS = {
    "2xT4": Cluster(Machine(65e12, 320 * GB, 16 * GB), Network(2, 6 * GB, 6 * GB),
                    "NVIDIA T4 data sheet (fp16 65 TFLOPS, 320 GB/s, 16 GB); PCIe 3.0 x8 through the host"),
    "dgx2": Cluster(Machine(125e12, 900 * GB, 32 * 2**30), Network(16, 150 * GB, 6.25 * GB),
                    "NVIDIA DGX-2 data sheet (V100 125 TFLOPS, 900 GB/s, 32 GB; NVSwitch 300 GB/s both ways; 8 × 100 Gb/s)"),
    "8xA100": Cluster(Machine(312e12, 2039 * GB, 80 * 10**9), Network(8, 300 * GB, 25 * GB),
                      "NVIDIA A100 80GB data sheet (bf16 312 TFLOPS, 2,039 GB/s; NVLink 600 GB/s both ways; HDR 200 Gb/s each)"),
    "64x8xH100": Cluster(Machine(989e12, 3350 * GB, 80 * 10**9), Network(8, 450 * GB, 50 * GB),
                         "NVIDIA H100 SXM data sheet (bf16 989 TFLOPS dense, 3.35 TB/s; NVLink 900 GB/s both ways; NDR 400 Gb/s each)"),
}


def find_cluster(name: str) -> Cluster:
    """Raises BadInput."""
    if name not in CLUSTERS:
        near = difflib.get_close_matches(name, CLUSTERS, n=1)
        raise BadInput(f"there is no cluster {name!r}: " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(CLUSTERS)}"))
    return CLUSTERS[name]
