"""Who owns what: rank maps and layouts. It communicates nothing and allocates nothing.

Two ways to divide a model among N ranks:

- **flat**: lay the parameters of a unit one after the other into a flat buffer, pad it to a multiple of N, and cut it
  into N equal slices. A cut may go through the middle of a tensor, and the balance is perfect.
- an **owner map**: every tensor belongs, whole, to one rank. A map is a function
  `rank_map(shapes: dict[str, torch.Size], world_size: int) -> dict[str, int]`, and the balance depends on it.

Both become a `Layout`: the order of the parameters in one flat buffer, and N + 1 bounds that cut the buffer into one
slice per rank. With an owner map the parameters are sorted by owner first, so higher-level code only ever sees slices.

Where parameters and slices begin at multiples of a few elements, as GPUs read them fastest, there is padding after them, too.
"""

# pyright: strict, reportUnnecessaryIsInstance=false
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

from ..errors import BadInput
from ..formulas.shares import aligned, shard_elements

Shape = Sequence[int]
Slice = slice  # in a `Layout`, `slice` is a method
RankMap = Callable[[Mapping[str, Shape], int], Mapping[str, int]]


def round_robin(shapes: Mapping[str, Shape], world_size: int) -> dict[str, int]:
    """Parameter number i goes to rank i % world_size. Ranks need not talk to agree on it. Balance plays no part."""
    return {name: index % world_size for index, name in enumerate(shapes)}


def contiguous(shapes: Mapping[str, Shape], world_size: int) -> dict[str, int]:
    """Neighbours stay together: cut all elements into N equal parts, and a tensor goes to
    the rank whose part has its middle.
    """
    total, start = sum(map(math.prod, shapes.values())), 0
    owner: dict[str, int] = {}
    for name, shape in shapes.items():
        twice_the_middle = 2 * start + math.prod(shape)
        owner[name] = min(twice_the_middle * world_size // (2 * total), world_size - 1) if total else 0
        start += math.prod(shape)
    return owner


def greedy(shapes: Mapping[str, Shape], world_size: int) -> dict[str, int]:
    """The largest tensor first, each to the rank that has least so far (on a tie, the lowest rank)."""
    load = [0] * world_size
    owner: dict[str, int] = {}
    for name in sorted(shapes, key=lambda name: -math.prod(shapes[name])):
        rank = load.index(min(load))
        owner[name] = rank
        load[rank] += math.prod(shapes[name])
    return owner


MAPS: dict[str, RankMap] = {"round_robin": round_robin, "contiguous": contiguous, "greedy": greedy}


def owners(rank_map: str | RankMap | None, shapes: Mapping[str, Shape], world_size: int) -> dict[str, int] | None:
    """Apply a map and check that its answer has every parameter and only ranks in range. Returns None for the flat map.

    Raises BadInput, with the parameter's name, for an unknown map, a dropped or invented parameter, or a bad rank.
    """
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise BadInput(f"world_size is {world_size!r}: it must be an integer of at least 1")
    if rank_map is None or rank_map == "flat":
        return None
    known = f"use one of flat, {', '.join(MAPS)}, or a function of (shapes, world_size)"
    if isinstance(rank_map, str):
        if rank_map not in MAPS:
            raise BadInput(f"rank_map {rank_map!r} is unknown: {known}")
        rank_map = MAPS[rank_map]
    if not callable(rank_map):
        raise BadInput(f"rank_map is a {type(rank_map).__name__}: {known}")
    answer = rank_map(dict(shapes), world_size)
    if not isinstance(answer, Mapping):
        raise BadInput(f"the rank map returned a {type(answer).__name__}: "
                       "it must return a dictionary with a rank for every parameter")
    if invented := [name for name in answer if name not in shapes]:
        raise BadInput(f"the rank map names {invented[0]!r}, which is not a parameter of the model")
    if dropped := [name for name in shapes if name not in answer]:
        raise BadInput(f"the rank map dropped parameter {dropped[0]!r}: it must give a rank to every parameter")
    return {name: checked_rank(answer[name], name, world_size) for name in shapes}


def checked_rank(rank: Any, name: str, world_size: int) -> int:
    """The rank as an int; NumPy's and PyTorch's integers, such as `argmin` returns, will do. Raises BadInput."""
    try:
        number = -1 if isinstance(rank, bool) else operator.index(rank)
    except TypeError:
        number = -1
    if not 0 <= number < world_size:
        raise BadInput(f"the rank map sent parameter {name!r} to rank {rank!r}: "
                       f"with {world_size} ranks it must be an integer from 0 to {world_size - 1}")
    return number


@dataclass(frozen=True)
class ShardRange:
    """A part of one parameter: its elements [start, stop), which lie at [at, at + stop - start) in a rank's slice."""

    name: str
    start: int
    stop: int
    at: int


@dataclass(frozen=True)
class Layout:
    """The order of parameters in one flat buffer, and where the buffer is cut. All numbers count elements.

    offset: name → where the parameter begins in the buffer.   numel: elements of parameters, without the padding.
    bounds: N + 1 positions; rank r owns [bounds[r], bounds[r + 1]). With equal slices it is a range,
    because a list would be long for many ranks.   padded: the length of the buffer, bounds[-1].
    """

    shapes: dict[str, Shape]
    offset: dict[str, int]
    bounds: Sequence[int]
    numel: int

    @classmethod
    def build(cls, shapes: Mapping[str, Shape], world_size: int, owner: Mapping[str, int] | None = None,
              multiple: int = 1) -> "Layout":
        """Equal slices, with padding at the end, when `owner` is None; otherwise whole tensors, sorted by owner.

        multiple: of so many elements, at which every parameter and every slice begins."""
        names = sorted(shapes, key=owner.__getitem__) if owner else list(shapes)
        offset: dict[str, int] = {}
        ends: dict[int, int] = {}  # by rank, where its last parameter ends
        end = 0
        for name in names:
            offset[name] = end
            end += aligned(math.prod(shapes[name]), multiple)
            if owner:
                ends[owner[name]] = end
        size = shard_elements(end, world_size, multiple)
        if owner or not size:  # a rank that owns nothing has an empty slice where the previous one ends
            bounds = (0, *accumulate((ends.get(rank, 0) for rank in range(world_size)), max))
        else:
            bounds = range(0, size * world_size + 1, size)
        return cls({name: shapes[name] for name in names}, offset, bounds, sum(map(math.prod, shapes.values())))

    @classmethod
    def split(cls, numel: int, world_size: int) -> "Layout":
        """One tensor of `numel` elements, cut without padding into slices that differ by one element at most."""
        return cls({"": (numel,)}, {"": 0}, tuple(rank * numel // world_size for rank in range(world_size + 1)), numel)

    @property
    def padded(self) -> int:
        return self.bounds[-1]

    def slice(self, rank: int) -> Slice:
        """Rank r's slice of the buffer."""
        return slice(self.bounds[rank], self.bounds[rank + 1])

    @cached_property
    def padding(self) -> list[Slice]:
        """The parts of the buffer that are no parameters."""
        taken = [slice(0, 0), *map(self.param_slice, self.shapes), slice(self.padded, self.padded)]
        return [slice(one.stop, other.start) for one, other in pairwise(taken) if one.stop < other.start]

    def real(self, rank: int) -> int:
        """The number of elements in rank r's slice that are parameters and not padding."""
        begin, end = self.bounds[rank : rank + 2]
        return end - begin - sum(max(0, min(end, gap.stop) - max(begin, gap.start)) for gap in self.padding)

    def param_slice(self, name: str) -> Slice:
        """Where a parameter lies in the buffer."""
        return slice(self.offset[name], self.offset[name] + math.prod(self.shapes[name]))

    def shard_ranges(self, own: Slice) -> list[ShardRange]:
        """The parts of parameters inside `own`, a slice of the buffer, in order. Empty parameters have none."""
        ranges: list[ShardRange] = []
        for name in self.shapes:
            param = self.param_slice(name)
            start, stop = max(param.start, own.start), min(param.stop, own.stop)
            if start < stop:
                ranges.append(ShardRange(name, start - param.start, stop - param.start, start - own.start))
        return ranges
