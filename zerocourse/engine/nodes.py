"""What the config says about nodes: ZeRO++'s three keys, with which stage 3 gathers and reduces in two hops."""

from torch import nn
from torch.optim import Optimizer

from ..comm.group import Comm
from ..layout.mesh import Mesh
from ..parallel.mesh_comms import MeshComms
from ..parallel.plusplus import zero_plus_plus
from ..zero.extras import shard
from .config import Config
from .config.rules import nodes_of


def shard_over_nodes(model: nn.Module, optimizer: Optimizer | None, config: Config, comm: Comm,
                     **options) -> tuple[nn.Module, Optimizer | None, MeshComms | None]:
    """The stage of `config`, or ZeRO++ over the nodes, with its Comms. Collective.

    options: of `shard`. Raises BadInput where the nodes do not divide the ranks (see `nodes_of`).
    """
    zero = config.zero_optimization
    if not zero.has_slow_links:
        return *shard(model, optimizer, zero.stage, comm=comm, **options), None
    nodes, size = nodes_of(zero, comm.world_size)
    comms = MeshComms(Mesh({"nodes": nodes, "node": size}, per_node=size))
    model, optimizer = zero_plus_plus(model, optimizer, comms, zero.zero_quantized_weights, zero.zero_hpz_partition_size > 1,
                                      zero.zero_quantized_gradients, **options)
    return model, optimizer, comms
