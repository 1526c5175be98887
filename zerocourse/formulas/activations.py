"""What a transformer keeps for its backward. Formulas: no torch. Source: Korthikanti et al., arXiv 2205.05198."""

from fractions import Fraction
from math import ceil

from ..errors import BadInput
from .shares import positive


def layer_activation_bytes(micro_batch: int, seq: int, width: int, heads: int, tensor_parallel: int = 1,
                           sequence_parallel: bool = False, recompute: str = "none", element: int = 2) -> int:
    """Bytes that one transformer layer keeps for its backward, dropout masks (one byte per element) included.

    recompute: "none"; "selective", which computes the attention scores again, as fused attention does; or "full", which
        keeps only the layer's input.
    sequence_parallel: shard also what tensor parallelism leaves whole. With "full" this is ZeRO-R's partitioning of
        activation checkpoints, P_a.
    element: bytes of one number.
    """
    if recompute not in ("none", "selective", "full"):
        raise BadInput(f"recompute is none, selective or full, not {recompute!r}.")
    t = positive("tensor_parallel", tensor_parallel)
    whole, sharded = 4 * element + 2, 12 * element  # 10 and 24 in fp16, per token and unit of width
    scores = (2 * element + 1) * Fraction(positive("heads", heads) * seq, width)  # 5as/h
    if recompute == "full":
        whole, sharded = element, 0
    if recompute != "none":
        scores = 0
    per_token = Fraction(whole, t if sequence_parallel else 1) + (sharded + scores) / Fraction(t)
    return ceil(positive("micro_batch", micro_batch) * positive("seq", seq) * width * per_token)


def head_activation_bytes(micro_batch: int, seq: int, width: int, vocab: int, element: int = 2) -> int:
    """The inputs of the last LayerNorm and of the head, and the logits in fp32: 4sbh(1 + v/h) in fp16."""
    return micro_batch * seq * (2 * element * width + 4 * vocab)


def tensor_parallel_elements(micro_batch: int, seq: int, width: int, partition_checkpoints: bool = False,
                             recompute: bool = True) -> int:
    """Elements that a layer's collectives carry. A rank sends (t-1)/t of them.

    There are two all-reduces in the forward and two in the backward, each a reduce-scatter and an all-gather, which makes 8.
    recompute: two more in the forward that is computed again, which makes 12. Partitioned checkpoints (P_a) add one all-gather.
    """
    return (8 + 4 * recompute + partition_checkpoints) * micro_batch * seq * width
