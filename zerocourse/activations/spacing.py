"""Where to put checkpoints, when a checkpoint may span several blocks. It runs nothing, and communicates nothing.

Blocks from one checkpoint to the next are a segment. In the backward a segment is computed again, and then all its blocks
keep what they keep without checkpoints; the checkpoints behind it are gone by then. With L/k segments of k blocks each, that
keep no more than their inputs, k = √L would be best (Chen et al., arXiv 1604.06174). A block of GPT-2 keeps sixteen times its
input, so every block gets a checkpoint up to 16 layers; and segments need not be equal: the first ones may be longer.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import NamedTuple


@dataclass(frozen=True)
class Spacing:
    """starts: the blocks before which there is a checkpoint.   peak: the most bytes that a backward holds at a time."""

    starts: tuple[int, ...]
    peak: int


def place_checkpoints(inputs: Sequence[int], kept: Sequence[int], gradients: Sequence[int] = ()) -> Spacing:
    """The checkpoints with the least peak, for blocks of any sizes, exactly; of several such the ones of the fewest bytes.

    inputs: bytes of each block's input.   kept: bytes that each block keeps for its backward, its input not counted.
    gradients: bytes that the gradients of each block's parameters take from its turn on. None of them count where they
        are there already (a later micro-batch), or where a rank keeps but a slice (stages 2 and 3).
    """
    sizes = Sizes(inputs, kept, gradients or [0] * len(kept))
    every_block = tuple(range(len(kept)))
    enough = range(peak_with(every_block, *sizes))
    peak = bisect_left(enough, True, key=lambda limit: starts_within(limit, sizes) is not None)
    return Spacing(starts_within(peak, sizes) or every_block, peak)


class Sizes(NamedTuple):
    """Bytes of each block, as in `place_checkpoints`."""

    inputs: Sequence[int]
    kept: Sequence[int]
    gradients: Sequence[int]


def peak_with(starts: Sequence[int], inputs: Sequence[int], kept: Sequence[int], gradients: Sequence[int] = ()) -> int:
    """The most bytes that the backward holds at a time with these checkpoints.

    In a segment's turn: the checkpoints up to it, all that its blocks keep, and the gradients of the blocks behind it.
    """
    stops = [*starts[1:], len(kept)]
    return max(sum(inputs[each] for each in starts if each < start) + sum(inputs[start:stop]) + sum(kept[start:stop])
               + sum(gradients[stop:]) for start, stop in zip(starts, stops, strict=True))


def starts_within(limit: int, sizes: Sizes) -> tuple[int, ...] | None:
    """The checkpoints of the fewest bytes with which no segment's turn needs more than `limit` bytes; None without any.

    A shortest path over the blocks: fewer bytes in front of a block only leave more for what follows.
    """
    inputs, kept, gradients = sizes
    blocks = len(kept)
    behind = [*accumulate(reversed(gradients), initial=0)][::-1]
    in_front, cut = [0, *[inf] * blocks], [0] * (blocks + 1)
    for start in range(blocks):
        held = in_front[start]
        for stop in range(start + 1, blocks + 1):
            held += inputs[stop - 1] + kept[stop - 1]
            if held + behind[stop] <= limit and in_front[start] + inputs[start] < in_front[stop]:
                in_front[stop], cut[stop] = in_front[start] + inputs[start], start
    if in_front[blocks] == inf:
        return None
    starts, at = [], blocks
    while at:
        at = cut[at]
        starts.append(at)
    return tuple(reversed(starts))
