"""Trains two steps as one rank of a mesh, and says what it held and what it sent along each axis in the second.

`simulate_mesh(job)` does it without the other ranks and without the memory: tensor parallelism, the pipeline and ZeRO run
unchanged on fake tensors, over `comm.simulated`'s collectives. `run_mesh_job(job, MeshComms(mesh))` does the same in real
ranks. Both count with the same ledger and the same counters, and so their bytes are equal (tests/simulation).

Time is not simulated here: a rank of a pipeline waits for others, and one rank alone does not know when they are ready.
"""

import gc
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..comm import Comm
from ..comm.simulated import SimulatedComm
from ..comm.torch_private import FakeTensorMode
from ..errors import BadInput
from ..formulas.units import integer
from ..layout.mesh import Mesh
from ..measure.ledger import Ledger
from ..measure.storages import held_by
from ..measure.watched_step import watched_step
from ..models.model_layers import model_layers
from ..parallel.mesh_comms import MeshComms
from ..parallel.pipeline import Pipeline, Schedule, gpipe, interleaved, one_f_one_b, plan
from ..parallel.pipeline.cutting import PipelineStage
from ..parallel.pipeline.sharded import StageOptimizers, shard_stages
from ..parallel.pipeline.stage_messages import Form
from ..parallel.tensor import tensor_parallel
from ..parallel.three_d import loss_of
from ..zero.options import ZeroOptions
from .one_rank import forget_shapes
from .shapes import find_model

SCHEDULES = {"1f1b": one_f_one_b, "gpipe": gpipe, "interleaved": interleaved}  # those whose gradients ZeRO can reduce


@dataclass(frozen=True)
class MeshJob:
    """What is trained, and on which mesh. Raises BadInput.

    model: its name (see `shapes`).   sizes: ranks along "pp", "dp" and "tp", in Megatron's order; one left out is 1.
    rank: of the whole mesh.   stage: of ZeRO, over "dp".   micro_batch: samples; micro_batches: of each replica's step.
    schedule, chunks: of the pipeline: "1f1b", "gpipe", or "interleaved" with so many chunks of layers for a rank.
    sequence: cut the tokens between tensor-parallel regions.   seq, half, recompute, aligned: as in `SimulatedJob`.
    """

    model: str
    sizes: dict[str, int]
    rank: int = 0
    stage: int = 1
    micro_batch: int = 1
    micro_batches: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    sequence: bool = True
    seq: int | None = None
    half: bool = False
    recompute: bool = False
    aligned: bool = False

    def __post_init__(self):
        integer(self.stage, "stage", 0, 3)
        for name in ("micro_batch", "micro_batches"):
            integer(getattr(self, name), name, 1)
        integer(self.rank, "rank", 0, self.mesh.world_size - 1)
        known = find_model(self.model)
        most = known.tokens
        if known.experts:
            raise BadInput(f"{self.model} has experts, for which tensor parallelism and pipelines have no plan here: simulate it without a "
                           "mesh, with experts_over")
        if self.seq is not None and not 0 < self.seq <= most:
            raise BadInput(f"seq is {self.seq}: {self.model} takes 1 to {most} tokens")
        if self.schedule not in SCHEDULES:
            raise BadInput(f"schedule is {self.schedule!r}: under ZeRO it can be {', '.join(SCHEDULES)}")

    @property
    def mesh(self) -> Mesh:
        return Mesh.ordered("megatron", self.sizes)

    @property
    def actions(self) -> Schedule:
        return plan(self.schedule, SCHEDULES[self.schedule], self.mesh.sizes["pp"], self.micro_batches, self.chunks)

    @property
    def tokens(self) -> int:
        """Of a sample."""
        return self.seq or find_model(self.model).tokens


class SimulatedMeshComms(MeshComms):
    """The Comms of one rank of a mesh that is not there. Its counters are those of `MeshComms`.

    like: whose memory collectives take, "gloo" or "nccl".
    """

    def __init__(self, mesh: Mesh, rank: int, like: str = "gloo"):
        self.like = like
        self.begin(mesh, rank)

    def comm_of(self, axes: tuple[str, ...]) -> Comm:
        ranks = self.mesh.group_of(self.rank, *axes)
        return SimulatedComm(ranks.index(self.rank), len(ranks), self.like, recorder=self.recorder)


class HeldByStages:
    """What the ledger asks a ZeRO stage, of several of them."""

    def __init__(self, modules: Iterable[nn.Module]):
        self.stages: list[Any] = [module.zero for module in modules]

    def tensors(self) -> dict[str, list[Tensor]]:
        return held_by(self.stages)


def simulate_mesh(job: MeshJob, like: str = "gloo") -> dict:
    """Two steps of `job.rank` on fake tensors. Returns what `run_mesh_job` returns."""
    with FakeTensorMode():
        return run_mesh_job(job, SimulatedMeshComms(job.mesh, job.rank, like))


def run_mesh_job(job: MeshJob, comms: MeshComms) -> dict:
    """Train two steps on this rank of the mesh, and watch the second one. Collective if `comms` is.

    Returns params, this rank's elements; bytes that it holds: parameters_bytes and optimizer_bytes after the step,
    gradients_bytes just before its update, peak_bytes with all else that was alive, and peak_kinds; and of what it sent,
    without padding, `sent`: bytes by axis, {"pp": ..., "dp": ..., "tp": ...}.
    """
    pipeline = build(job, comms)
    params = sum(map(torch.numel, pipeline.parameters()))
    optimizer: Any = shard_stages(pipeline, partial(torch.optim.AdamW, lr=1e-3, fused=True),
                                  comms.groups("dp", norm=("pp", "tp")), job.stage,
                                  param_dtype=torch.bfloat16 if job.half else None, options=ZeroOptions(aligned=job.aligned))
    modules = nn.ModuleList(pipeline.sharded_modules)
    for stage in modules:
        forget_shapes(stage)
    tokens_BT = torch.zeros(job.micro_batch * job.micro_batches, job.tokens, dtype=torch.int64)
    run = partial(one_step, pipeline, optimizer, tokens_BT)
    run()
    before = comms.sent
    with Ledger(modules, optimizer, state=HeldByStages(modules)) as ledger:
        measured = watched_step(ledger, optimizer, None, run)
        kinds = asdict(ledger.at_peak)
    held = {name: measured[name] for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "peak_bytes")}
    result = {"params": params, **held, "peak_kinds": kinds,
              "sent": {axis: nbytes - before.get(axis, 0) for axis, nbytes in comms.sent.items()}}
    del pipeline, optimizer, modules, run
    gc.collect()  # stages and their hooks refer to each other
    return result


def build(job: MeshJob, comms: MeshComms) -> Pipeline:
    """This rank's stages of the model, cut by tensor parallelism."""
    model = find_model(job.model).make()
    tensor, pipe = comms.along("tp"), comms.along("pp")
    if tensor.peers:
        tensor_parallel(model, tensor, sequence=job.sequence)
    layers, actions = model_layers(model), job.actions
    cuts = by_blocks(len(layers), actions.stages)
    form = between_blocks(job, layers) if isinstance(pipe, SimulatedComm) else None
    pipeline = Pipeline(layers, actions, loss_of(model), pipe, cuts, Tensor.numel, job.recompute)
    if form is not None:
        pipeline.messages.forms |= {(stage, 0): [form] for stage in range(actions.stages - 1)}
    return pipeline


def by_blocks(layers: int, stages: int) -> list[range]:
    """Stages with the same number of blocks, the first ones one more where they do not divide; an embedding comes with the first
    block and a head with the last."""
    even, more = divmod(layers - 2, stages)
    ends = list(accumulate((even + (stage < more) for stage in range(stages)), initial=1))
    ends[0], ends[-1] = 0, layers
    return [range(*ends_of) for ends_of in pairwise(ends)]


def between_blocks(job: MeshJob, layers: list[nn.Module]) -> Form:
    """What a block's output looks like, of which the rank before would tell in the first header."""
    out_BTC = PipelineStage(layers, range(2))(torch.zeros(job.micro_batch, job.tokens, dtype=torch.int64))
    return Form(torch.bfloat16 if job.half else out_BTC.dtype, True, tuple(out_BTC.shape))


def one_step(pipeline: Pipeline, optimizer: StageOptimizers, tokens_BT: Tensor) -> float:
    loss = pipeline.step(tokens_BT, tokens_BT)
    optimizer.step()
    optimizer.zero_grad()
    return loss
