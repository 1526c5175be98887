"""The functions of ZeRO++, which stage 3 is given in place of its own; all else is stage 3's."""

import weakref

from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm, Handle
from ...errors import BadInput
from ...layout.rankmap import Layout
from ...zero.buffers.buffer import FlatBuffer
from ...zero.ddp import local_step
from ...zero.extras import shard
from ..mesh_comms import MeshComms
from .two_level import gather, reduce


def zero_plus_plus(model: nn.Module, optimizer: Optimizer | None, comms: MeshComms, quantized_weights: bool = True,
                   node_copy: bool = True, quantized_gradients: bool = True, **options) -> tuple[nn.Module, Optimizer | None]:
    """`zerocourse.shard` at stage 3 over all ranks of a mesh {"nodes": n, "node": S}, the slowest axis first. Collective.

    quantized_weights: gather them in 8 bits (qwZ). Master weights and states are exact, and so is `zerocourse.state_dict`.
    node_copy: each node keeps what was gathered, cut among its ranks, until the next update, and gathers from there (hpZ):
        2Ψ/S bytes more per rank in half precision.   quantized_gradients: reduce them in 4 bits (qgZ).
    options: of `shard`. Raises BadInput for other axes, and with a rank_map: slices must be equal.
    """
    if [axis for axis, size in comms.mesh.sizes.items() if size > 1 or axis in ("nodes", "node")] != ["nodes", "node"]:
        raise BadInput(f"the mesh has the axes {', '.join(comms.mesh.axes)}: ZeRO++ needs nodes and node, in this order, so that "
                       "the ranks of a node are neighbours")
    for name, why in (("rank_map", "cuts every buffer into equal slices"), ("ops", "brings its own functions"),
                      ("stage", "is stage 3")):
        if options.get(name) not in (None, "flat", 3):
            raise BadInput(f"{name} is {options[name]!r}: ZeRO++ {why}")
    plus = ZeroPlusPlus(comms.along("node"), comms.along("nodes"), quantized_weights, node_copy, quantized_gradients)
    model, optimizer = shard(model, optimizer, comm=comms.make("nodes", "node"), ops=plus.ops(), **options | {"stage": 3})
    plus.stage = weakref.ref(model.zero)
    model.zero.plus_plus = plus
    return model, optimizer


class ZeroPlusPlus:
    """What differs from stage 3: how parameters are gathered, gradients reduced, and what a node keeps between the two."""

    def __init__(self, node: Comm, nodes: Comm, quantized_weights: bool, node_copy: bool, quantized_gradients: bool):
        self.node, self.nodes = node, nodes
        self.quantized_weights, self.node_copy, self.quantized_gradients = quantized_weights, node_copy, quantized_gradients
        # By buffer: this rank's part (padded / S,) of the node's copy, and the version of the slice that it was made of.
        self.kept: dict[FlatBuffer, tuple[Tensor, int]] = {}
        self.stage = lambda: None

    def ops(self) -> dict:
        return {"unshard": self.unshard, "step": self.step} | ({"reduce": self.reduce} if self.quantized_gradients else {})

    @property
    def kept_bytes(self) -> int:
        """Of the node's copy, on this rank."""
        return sum(part.nbytes for part, _ in self.kept.values())

    @property
    def computes(self) -> bool:
        """Is a forward or backward running? Else somebody reads the weights, and gets them exactly."""
        stage = self.stage()
        return stage is not None and bool(stage.root.forward_depth or stage.backward is not None)

    def unshard(self, flat: FlatBuffer, comm: Comm) -> Handle:
        """Give `full` memory and gather into it: from the node's copy, if there is one, else from all nodes."""
        flat.storage.allocate()
        if not self.computes:
            return gather(flat.shard, flat.full, self.node, self.nodes, flat.name)
        layout = Layout.split(flat.layout.padded, self.node.world_size)
        part, version = self.kept.get(flat, (None, None))
        if version == flat.shard._version:  # else somebody has written weights: loaded a state, say, which all ranks do
            flat.full[layout.slice(self.node.rank)] = part
            return self.node.all_gather(flat.full, layout, flat.name)
        under_way = gather(flat.shard, flat.full, self.node, self.nodes, flat.name, 8 if self.quantized_weights else None)

        def keep() -> None:
            self.kept[flat] = flat.full[layout.slice(self.node.rank)].clone(), flat.shard._version

        return under_way.then(keep) if self.node_copy else under_way

    def reduce(self, flat: FlatBuffer, comm: Comm) -> Handle:
        """Sum this rank's slice of the bucket over all ranks, in 4 bits."""
        bucket = flat.take_bucket()
        return reduce(bucket, self.node, self.nodes, flat.name, 4, lambda total: flat.accumulate(total.to(bucket.dtype)))

    def step(self, flats: list[FlatBuffer], comm: Comm, optimizer_step) -> object:
        """After the update the nodes' copies are old."""
        self.kept.clear()
        return local_step(flats, comm, optimizer_step)
