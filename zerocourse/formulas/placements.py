"""Which parts of a training step may lie on the host? All placements of its data-flow graph, and what each moves.

The nodes of mixed-precision training with Adam, and the bytes a parameter that flow between them in a step: fp16 values 2,
fp32 values 4. Forward and backward are one node, whose work grows with the batch, so it stays on the device; every other
node may be placed on the host. An edge whose ends are placed apart crosses the link.
Source: Ren et al. 2021, arXiv 2101.06840, section 3.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import NamedTuple

COMPUTE = "forward and backward"
HALF, FULL = 2, 4  # bytes a parameter
HELD = {"parameters fp16": HALF, "gradients fp16": HALF, "parameters fp32": FULL, "momentum fp32": FULL, "variance fp32": FULL,
        "update": 0, "cast": 0}  # by node that may be placed: the bytes a parameter that lie there
EDGES = (  # (from, to, bytes a parameter)
    ("parameters fp16", COMPUTE, HALF), ("parameters fp16", COMPUTE, HALF),  # the forward reads them, and so does the backward
    (COMPUTE, "gradients fp16", HALF),
    ("gradients fp16", "update", HALF),
    ("parameters fp32", "update", FULL), ("update", "parameters fp32", FULL),
    ("momentum fp32", "update", FULL), ("update", "momentum fp32", FULL),
    ("variance fp32", "update", FULL), ("update", "variance fp32", FULL),
    ("parameters fp32", "cast", FULL),
    ("cast", "parameters fp16", HALF),
)


class Placement(NamedTuple):
    """on_host: the nodes there.   moved: bytes a parameter over the link in a step.   device: bytes a parameter that stay."""

    on_host: frozenset[str]
    moved: int
    device: int


def placements(edges: Iterable[tuple[str, str, int]] = EDGES, held: Mapping[str, int] = HELD) -> Iterator[Placement]:
    """All 2^k of them, for k nodes that may be placed."""
    for choice in product((False, True), repeat=len(held)):
        host = frozenset(node for node, is_there in zip(held, choice, strict=True) if is_there)
        yield Placement(host, sum(nbytes for start, end, nbytes in edges if (start in host) != (end in host)),
                        sum(nbytes for node, nbytes in held.items() if node not in host))


def best_placements(edges: Iterable[tuple[str, str, int]] = EDGES, held: Mapping[str, int] = HELD) -> list[Placement]:
    """Those that no other one beats in both: fewer bytes moved, and fewer on the device. From all on the device on."""
    every = list(placements(edges, held))
    best = [each for each in every if not any(other != each and other.moved <= each.moved and other.device <= each.device
                                              and other[1:] != each[1:] for other in every)]
    return sorted(best, key=lambda each: each.moved)
