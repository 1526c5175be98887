"""ZeRO beside experts: which ranks cut which buffers.

    comms = MeshComms(Mesh({"dp": 2, "ep": 4}))
    expert_parallel(model, comms.along("ep"))
    shard(model, optimizer, stage=2, comm=expert_groups(comms))

Router, attention and all else are the same on all ranks, and all of them cut their states. An expert is on the ranks of "dp" alone,
and these cut its states. So no rank has more than 1/N of either, and a gradient's norm is one sum over all ranks.
"""

from ...errors import BadInput
from ...zero.buffers.groups import Groups
from ..mesh_comms import MeshComms


def expert_groups(comms: MeshComms, experts: str = "ep") -> Groups:
    """For `shard(comm=...)`. experts: the axis along which ranks have different experts. Collective; raises BadInput where it is the
    only axis."""
    axes = comms.mesh.axes
    comms.mesh.check(experts)
    same = [axis for axis in axes if axis != experts]
    if not same:
        raise BadInput(f"the mesh {comms.mesh.sizes} has no axis of ranks with the same experts: add one, of size 1 if need be")
    return Groups(comms.make(*axes), experts=Groups(comms.make(*same)))
