"""All of them together: tensor parallelism inside of a node, a pipeline between nodes, and ZeRO over the samples.

    comms = MeshComms(Mesh.ordered("megatron", {"pp": 2, "dp": 2, "tp": 2}, per_node=4))
    trainer = Parallel3D(GPT(config), comms, lambda params: torch.optim.AdamW(params, lr=1e-3), micro_batches=4, stage=1)
    loss = trainer.step(tokens, targets)            # the rows of this data-parallel rank, on all ranks of its replica

Each axis does to the model what it does alone, and none knows of the others: the order is tensor, pipeline, ZeRO. First
the weights are cut while the model is whole, then its layers become stages, and what is left on a rank is sharded.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import BadInput
from ..models.model_layers import model_layers
from .mesh_comms import MeshComms
from .pipeline import Pipeline, one_f_one_b, plan
from .pipeline.sharded import shard_stages
from .same_samples import check_same_masks, check_same_samples
from .tensor import tensor_parallel

AXES = ("pp", "dp", "tp")


def loss_of(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """The model's loss(logits (B, T, V), targets (B, T)), a mean over the targets. Raises BadInput where it has none."""
    if hasattr(model, "loss"):
        return model.loss
    if hasattr(model, "loss_function"):  # of Hugging Face, where labels are the tokens themselves unless they were shifted
        return lambda logits, targets: model.loss_function(logits, None, vocab_size=logits.shape[-1], shift_labels=targets)
    raise BadInput(f"{type(model).__name__} has no `loss(logits, targets)`, by which the last stage of a pipeline begins its "
                   "backward: give it such a method")


class Parallel3D:
    """A model trained by the ranks of a mesh with the axes "pp", "dp" and "tp", in any order. Collective.

    model: whole, on every rank; its `loss(logits, targets)` is a mean. Of Hugging Face's causal models the loss is known:
    targets are the tokens after each. The replicas' losses count alike, as in data parallel training, also where they have
    different numbers of targets that count.   optimizer(parameters): makes this rank's.
    micro_batches: m, into which each data-parallel rank's rows are cut.   stage: of ZeRO, 0 to 3, over "dp".
    schedule, chunks: of the pipeline (see `pipeline.plan`).   sequence: cut the tokens between tensor-parallel regions.
    recompute: each layer keeps only its input for the backward.
    clip: the most that the gradient's norm may be, None: any.   options: of `shard`.
    Raises BadInput for a mesh with other axes, and in the first step where ranks of one replica have different samples,
    or tensor-parallel ranks would draw different dropout masks.
    """

    def __init__(self, model: nn.Module, comms: MeshComms, optimizer: Callable[[list[nn.Parameter]], Optimizer],
                 micro_batches: int, stage: int = 1, schedule: Callable = one_f_one_b, chunks: int = 1,
                 sequence: bool = False, recompute: bool = False, clip: float | None = None, **options):
        others = [axis for axis, size in comms.mesh.sizes.items() if size > 1 and axis not in AXES]
        if others or not set(AXES) <= set(comms.mesh.axes):
            raise BadInput(f"the mesh has the axes {', '.join(comms.mesh.axes)}: it must have pp, dp and tp, of size 1 where "
                           f"one is not used, and no other of more than one rank{': ' * bool(others)}{', '.join(others)}")
        self.comms, self.clip, self.steps = comms, clip, 0
        self.replica = comms.make("pp", "tp")  # the ranks that together have one copy of the model, and read the same samples
        tensor, pipe = comms.along("tp"), comms.along("pp")
        if tensor.peers:
            tensor_parallel(model, tensor, sequence=sequence)
        schedule = plan(getattr(schedule, "__name__", "schedule"), schedule, pipe.world_size, micro_batches, chunks)
        self.pipeline = Pipeline(model_layers(model), schedule, loss_of(model), pipe, recompute=recompute)
        self.optimizer = shard_stages(self.pipeline, optimizer, comms.groups("dp", norm=("pp", "tp")), stage, **options)
        self.norm: float | None = None  # of the last step's gradient, before it was clipped

    def step(self, inputs: Tensor, targets: Tensor) -> float:
        """One optimizer step on this replica's rows. Returns the mean loss of all replicas, the same on every rank."""
        if not self.steps:
            mesh, rank = self.comms.mesh, self.comms.rank
            replica, group = mesh.group_of(rank, "pp", "tp"), mesh.group_of(rank, "tp")
            check_same_samples((inputs, targets), self.replica, lambda member: mesh.name(replica[member]))
            check_same_masks(self.pipeline.stages.values(), self.comms.along("tp"),
                             lambda member: mesh.name(group[member]))
        loss = self.pipeline.step(inputs, targets)
        if self.clip is not None:
            self.norm = self.pipeline.clip_grad_norm(self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        data = self.comms.along("dp")
        return float(data.all_reduce(torch.tensor(loss, dtype=torch.float64, device=self.pipeline.device))) / data.world_size
