"""What a rank sends in an optimizer step of ZeRO++ (arXiv 2306.10209, section 4), inside its node and to others: no torch.

n nodes of S ranks; a rank's slice has b elements, of n·S·b. A gather in two hops sends (n - 1)·b between nodes, then
(S - 1)·n·b inside of one; a reduction goes the other way. N = n·S.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .shares import positive
from .states import ZERO, Convention

BLOCK = 256  # numbers that share a scale, 4 bytes of fp32


@dataclass(frozen=True)
class SentOver:
    """Bytes that a rank sends to ranks of its own node, and to those of other nodes."""

    inside: int
    between: int

    @property
    def total(self) -> int:
        return self.inside + self.between


def quantized_bytes(numel: int, bits: int) -> int:
    """Of so many numbers in whole blocks, with their scales."""
    blocks = -(-numel // BLOCK)
    return blocks * (BLOCK * bits // 8 + 4)


def plus_plus_bytes(slices: Sequence[int], nodes: int, node_size: int, accumulation: int = 1, quantized_weights: bool = True,
                    node_copy: bool = True, quantized_gradients: bool = True, convention: Convention = ZERO) -> SentOver:
    """In one step of `accumulation` micro-batches. slices: the elements of a rank's slice in each buffer.

    Weights are gathered twice for each micro-batch, and with a copy in the node once a step from other nodes.
    """
    n, S, G = positive("nodes", nodes), positive("node_size", node_size), positive("accumulation", accumulation)
    weights = sum(quantized_bytes(b, 8) if quantized_weights else b * convention.parameter for b in slices)
    copied = sum(slices) * convention.parameter
    far = 1 if node_copy else 2 * G
    inside = far * (S - 1) * n * weights + (2 * G - far) * (S - 1) * n * copied
    between = far * (n - 1) * weights
    if quantized_gradients:
        return SentOver(inside + G * (S - 1) * sum(quantized_bytes(n * b, 4) for b in slices),
                        between + G * (n - 1) * sum(quantized_bytes(b, 4) for b in slices))
    gradients = G * sum(slices) * convention.gradient  # stage 3's reduce-scatter, in which each rank meets all others
    return SentOver(inside + (S - 1) * gradients, between + (n - 1) * S * gradients)
