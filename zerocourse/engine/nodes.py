"""What the config says about who talks to whom: ZeRO++'s nodes, in which stage 3 gathers and reduces in two hops, and groups of
ranks that have different experts."""

from torch import nn
from torch.optim import Optimizer

from ..comm.group import Comm
from ..layout.mesh import Mesh
from ..parallel.experts import expert_groups, expert_parallel
from ..parallel.mesh_comms import MeshComms
from ..parallel.plusplus import zero_plus_plus
from ..zero.extras import shard
from .config import Config
from .config.rules import groups_of_experts, nodes_of


def shard_over_ranks(model: nn.Module, optimizer: Optimizer | None, config: Config, comm: Comm,
                     **options) -> tuple[nn.Module, Optimizer | None, MeshComms | None]:
    """The stage of `config`: over all ranks, beside experts that are cut, or as ZeRO++ over the nodes; the latter two with their
    Comms. Collective.

    options: of `shard`. Raises BadInput where the nodes, or the groups of experts, do not divide the ranks (see `config.rules`), and
    for a model whose experts cannot be cut (see `parallel.experts`).
    """
    zero = config.zero_optimization
    if config.has_groups_of_experts:
        comms = MeshComms(Mesh(groups_of_experts(config, comm.world_size)))
        expert_parallel(model, comms.along("ep"))
        return *shard(model, optimizer, zero.stage, comm=expert_groups(comms), **options), comms
    if not zero.has_slow_links:
        return *shard(model, optimizer, zero.stage, comm=comm, **options), None
    nodes, size = nodes_of(zero, comm.world_size)
    comms = MeshComms(Mesh({"nodes": nodes, "node": size}, per_node=size))
    model, optimizer = zero_plus_plus(model, optimizer, comms, zero.zero_quantized_weights, zero.zero_hpz_partition_size > 1,
                                      zero.zero_quantized_gradients, **options)
    return model, optimizer, comms
