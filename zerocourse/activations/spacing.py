"""Where to put checkpoints, when a checkpoint may span several blocks. It runs nothing, and communicates nothing.

With a checkpoint before every k-th of L blocks a step holds the L/k checkpoints, and in the backward all that k blocks
keep, which are computed again. If a block kept no more than its input, k = √L would be best (Chen et al., arXiv 1604.06174).
A block of GPT-2 keeps sixteen times its input, so every block gets a checkpoint up to 16 layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Spacing:
    """starts: the blocks before which there is a checkpoint.   checkpoints: the bytes of all of them.

    recomputed: the most bytes that one segment keeps while its backward runs.
    """

    starts: tuple[int, ...]
    checkpoints: int
    recomputed: int

    @property
    def peak(self) -> int:
        return self.checkpoints + self.recomputed


def place_checkpoints(inputs: Sequence[int], kept: Sequence[int]) -> Spacing:
    """The placement with the least sum of all checkpoints and the largest segment, for blocks of any sizes, exactly.

    That is an upper limit of the peak: the first segments run their backward when the later checkpoints are gone.

    inputs: bytes of each block's input.   kept: bytes that each block keeps for its backward, its input not counted.
    """
    ends = [0, *accumulate(kept)]
    blocks = range(len(kept))
    limits = sorted({ends[stop] - ends[start] for start in blocks for stop in range(start + 1, len(ends))})
    found = (within(inputs, ends, limit) for limit in limits if limit >= max(kept))
    return min(found, key=lambda spacing: (spacing.peak, len(spacing.starts)))


def within(inputs: Sequence[int], ends: Sequence[int], limit: int) -> Spacing:
    """The cheapest checkpoints with which no segment keeps more than `limit` bytes (shortest path over the blocks)."""
    blocks = len(ends) - 1
    cost, cut = [0] * (blocks + 1), [0] * blocks
    for start in reversed(range(blocks)):
        reachable = [stop for stop in range(start + 1, blocks + 1) if ends[stop] - ends[start] <= limit]
        cut[start] = min(reachable, key=lambda stop: (cost[stop], -stop))
        cost[start] = inputs[start] + cost[cut[start]]
    starts, at = [], 0
    while at < blocks:
        starts.append(at)
        at = cut[at]
    segments = zip(starts, [*starts[1:], blocks], strict=True)
    return Spacing(tuple(starts), cost[0], max(ends[stop] - ends[start] for start, stop in segments))
