"""The process groups of a mesh, one for each axis, with a ledger by axis and by link.

    comms = MeshComms(Mesh({"pp": 2, "dp": 2, "tp": 2}, per_node=4))     # on every rank
    tensor_parallel(model, comms.along("tp"))
    shard(model, optimizer, comm=comms.groups("dp", norm=("tp", "pp")))
    comms.sent                      # {"pp": 4096, "dp": 90112, "tp": 65536}: bytes that this rank sent
    comms.sent_over                 # {"inside a node": 155648, "between nodes": 4096}

A rank that fails, and a rank that is waited for, is named with its coordinates: "rank 5 (pp 1, dp 0, tp 1)".
"""

from collections import Counter
from collections.abc import Callable

import torch.distributed as dist

from ..comm import Comm
from ..comm.duplicates import new_group
from ..comm.events import Recorder
from ..errors import BadInput
from ..layout.mesh import Mesh
from ..zero.buffers.groups import Groups


class MeshComms:
    """This rank's Comms. Making one is collective: all ranks make the groups of all axes, in the same order.

    timeout: seconds that a wait may last; None: that of the default process group.   recorder: that of all its Comms.
    Raises BadInput where the mesh is not one of all ranks.
    """

    def __init__(self, mesh: Mesh, timeout: float | None = None):
        world = dist.get_world_size() if dist.is_initialized() else 1
        if mesh.world_size != world:
            raise BadInput(f"the mesh {mesh.sizes} has {mesh.world_size} ranks, and there are {world}: the product of its "
                           "sizes must be the number of ranks")
        self.timeout = timeout
        self.begin(mesh, dist.get_rank() if dist.is_initialized() else 0)

    def begin(self, mesh: Mesh, rank: int) -> None:
        """Make the Comms of all axes of this rank."""
        self.mesh, self.rank, self.recorder = mesh, rank, Recorder(rank)
        self._comms: dict[tuple[str, ...], Comm] = {}
        for axis in mesh.axes:
            self.make(axis)

    def make(self, *axes: str) -> Comm:
        """The Comm of the ranks that differ along these axes alone. Collective where it is new; two axes are one longer one."""
        axes = tuple(axis for axis in self.mesh.axes if axis in axes)
        if axes not in self._comms:
            self._comms[axes] = self.comm_of(axes)
        return self._comms[axes]

    def comm_of(self, axes: tuple[str, ...]) -> Comm:
        """A new Comm of the ranks that differ from this one along these axes alone. Collective."""
        ranks = self.mesh.group_of(self.rank, *axes)
        group = new_group(self.mesh.groups(*axes)) if self.mesh.world_size > 1 else None
        return Comm(group, self.timeout, self.recorder, [self.mesh.name(rank) for rank in ranks])

    def along(self, *axes: str) -> Comm:
        """The Comm of these axes. Raises BadInput for one that the mesh does not have, or axes that `make` did not join."""
        self.mesh.check(*axes)
        key = tuple(axis for axis in self.mesh.axes if axis in axes)
        if key not in self._comms:
            raise BadInput(f"there is no Comm along {' and '.join(key)} yet: `make` joins axes, on all ranks")
        return self._comms[key]

    def groups(self, shard: str, replicate: str | None = None, norm: tuple[str, ...] = ()) -> Groups:
        """For `shard(comm=...)`: the axis that cuts the states, that along which they are replicated, and those over which
        a norm must be added up besides, because their ranks have other parameters."""
        return Groups(self.along(shard), None if replicate is None else self.along(replicate),
                      tuple(self.along(axis) for axis in norm))

    @property
    def coordinates(self) -> dict[str, int]:
        return self.mesh.coordinates(self.rank)

    @property
    def sent(self) -> dict[str, int]:
        """Bytes of data that this rank sent along each axis, without padding and metadata; along joined ones, where it did."""
        return self._by_axis(lambda comm: comm.sent)

    @property
    def elements(self) -> dict[str, int]:
        """The same in elements."""
        return self._by_axis(lambda comm: comm.elements)

    def _by_axis(self, counts: Callable[[Comm], Counter]) -> dict[str, int]:
        sums = {axes: sum(counts(comm).values()) for axes, comm in self._comms.items()}
        return {"+".join(axes): total for axes, total in sums.items() if total or len(axes) == 1}

    @property
    def sent_over(self) -> dict[str, int]:
        """Bytes by the kind of link that an axis' groups talk over (see `Mesh.link`)."""
        total: Counter[str] = Counter()
        for axes, comm in self._comms.items():
            total[self.mesh.link(*axes)] += sum(comm.sent.values())
        return dict(total)
