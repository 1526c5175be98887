"""The mesh: all ranks as one box of numbers, `arange(world_size)` in a shape whose axes have names. It communicates nothing.

    mesh = Mesh({"pp": 2, "dp": 2, "tp": 2}, per_node=4)     # the slowest axis first
    mesh.coordinates(5)            # {"pp": 1, "dp": 0, "tp": 1}
    mesh.groups("dp")              # [[0, 2], [1, 3], [4, 6], [5, 7]]: in each, the ranks that differ in dp alone
    mesh.groups("pp", "dp")        # [[0, 2, 4, 6], [1, 3, 5, 7]]: two axes are one longer one

The ranks of the last axis are neighbours, so they share a node, and what talks most goes there (tensor parallelism). The
order of the axes is a convention in which systems differ, so the same numbers, taken from one system to another, place
other ranks side by side. `ORDERS` has those of five systems, and `Mesh.ordered` makes a mesh by any of them.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product

from ..errors import BadInput
from ..formulas.units import integer

# The slowest axis first. Megatron-LM writes its own the other way round: "tp-cp-ep-dp-pp" has the fastest first.
ORDERS = {
    "megatron": ("pp", "dp", "cp", "tp"),  # rank = tp + TP · (cp + CP · (dp + DP · pp))
    "deepspeed": ("pp", "dp", "tp"),       # there: pipe, data, model
    "torchtitan": ("pp", "dp_replicate", "dp_shard", "cp", "tp"),
    "nanotron": ("ep", "pp", "dp", "cp", "tp"),
    "picotron": ("dp", "pp", "cp", "tp"),
}
INSIDE, BETWEEN, BOTH = "inside a node", "between nodes", "inside and between nodes"


@dataclass(frozen=True)
class Mesh:
    """Ranks by coordinates.

    sizes: ranks along each axis by its name, the slowest axis first (that of which neighbouring ranks differ last).
    per_node: ranks in a node, which are consecutive; None: one node has them all.
    Raises BadInput.
    """

    sizes: Mapping[str, int]
    per_node: int | None = None
    world_size: int = field(init=False)

    def __post_init__(self):
        if not self.sizes:
            raise BadInput("a mesh needs an axis at least, such as {'dp': 2}")
        for name, size in self.sizes.items():
            integer(size, f"axis {name!r} of the mesh", 1)
        if self.per_node is not None:
            integer(self.per_node, "per_node", 1)
        object.__setattr__(self, "sizes", dict(self.sizes))
        object.__setattr__(self, "world_size", math.prod(self.sizes.values()))

    @classmethod
    def ordered(cls, order: str | Iterable[str], sizes: Mapping[str, int], per_node: int | None = None) -> "Mesh":
        """The mesh with its axes in a system's order (see `ORDERS`) or in any given one; axes without a size have 1 rank.

        Raises BadInput for an order that is not known, or a size whose axis the order does not have.
        """
        if isinstance(order, str):
            if order not in ORDERS:
                raise BadInput(f"there is no order {order!r}: use {', '.join(ORDERS)}, or the axes themselves, slowest first")
            order = ORDERS[order]
        axes = tuple(order)
        for name in sizes:
            if name not in axes:
                raise BadInput(f"the order has no axis {name!r}: it has {', '.join(axes)}")
        return cls({name: sizes.get(name, 1) for name in axes}, per_node)

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands on each axis. Raises BadInput for a rank that is not in the mesh."""
        integer(rank, "rank", 0, self.world_size - 1)
        here = {}
        for name in reversed(self.axes):
            rank, here[name] = divmod(rank, self.sizes[name])
        return {name: here[name] for name in self.axes}

    def rank(self, **coordinates: int) -> int:
        """The rank at these coordinates; 0 on an axis that is not given. The opposite of `coordinates`. Raises BadInput."""
        self.check(*coordinates)
        rank = 0
        for name, size in self.sizes.items():
            rank = rank * size + integer(coordinates.get(name, 0), f"the coordinate {name}", 0, size - 1)
        return rank

    def groups(self, *axes: str) -> list[list[int]]:
        """The ranks that differ along these axes alone, group by group, each in the order of its ranks.

        The groups are disjoint and together they are all ranks. Raises BadInput for an axis that the mesh does not have.
        """
        self.check(*axes)
        apart = [name for name in self.axes if name not in axes]
        return [[first + offset for offset in self._offsets(axes)] for first in self._offsets(apart)]

    def group_of(self, rank: int, *axes: str) -> list[int]:
        """The group along these axes in which `rank` is."""
        self.check(*axes)
        first = rank - sum(index * self._stride(name) for name, index in self.coordinates(rank).items() if name in axes)
        return [first + offset for offset in self._offsets(axes)]

    def node(self, rank: int) -> int:
        return 0 if self.per_node is None else rank // self.per_node

    def link(self, *axes: str) -> str:
        """Which links the groups along these axes talk over: INSIDE a node, BETWEEN nodes (never two ranks in one), or BOTH."""
        nodes = [[self.node(rank) for rank in ranks] for ranks in self.groups(*axes)]
        if all(len(set(each)) == 1 for each in nodes):
            return INSIDE
        return BETWEEN if all(len(set(each)) == len(each) for each in nodes) else BOTH

    def name(self, rank: int) -> str:
        """A rank with its coordinates, as messages name it: "rank 5 (pp 1, dp 0, tp 1)"."""
        return f"rank {rank} ({', '.join(f'{axis} {index}' for axis, index in self.coordinates(rank).items())})"

    def check(self, *axes: str) -> None:
        """Raises BadInput for an axis that this mesh does not have."""
        for name in axes:
            if name not in self.sizes:
                raise BadInput(f"the mesh has no axis {name!r}: it has {', '.join(self.axes)}")

    def _stride(self, axis: str) -> int:
        """How far apart the ranks are that are neighbours along this axis."""
        return math.prod(self.sizes[name] for name in self.axes[self.axes.index(axis) + 1:])

    def _offsets(self, axes: Iterable[str]) -> list[int]:
        """The ranks that have any coordinates along these axes, and 0 along the others, in order."""
        steps = [[index * self._stride(name) for index in range(self.sizes[name])] for name in self.axes if name in axes]
        return [sum(place) for place in product(*steps)]
