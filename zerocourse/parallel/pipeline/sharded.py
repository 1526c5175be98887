"""ZeRO inside a pipeline: the states of each pipeline stage are cut among the ranks that run the same one.

    comms = MeshComms(Mesh({"pp": 2, "dp": 2}))
    pipeline = Pipeline(layers, plan("1f1b", one_f_one_b, ranks=2, micro_batches=4), loss, comms.along("pp"))
    optimizer = shard_stages(pipeline, lambda params: torch.optim.AdamW(params), comms.groups("dp", norm=("pp",)), stage=1)
    pipeline.step(tokens, targets); pipeline.clip_grad_norm(1.0); optimizer.step(); optimizer.zero_grad()

What ZeRO sends over the data-parallel axis, for Ψ elements of a rank's stages, m micro-batches and N ranks, per step:

    stage 1   2Ψ(N - 1)/N          gradients are added up here, and reduced once, in the last micro-batch's backward
    stage 2   (m + 1)Ψ(N - 1)/N    they are reduced for every micro-batch, because no full gradient is kept
    stage 3   3mΨ(N - 1)/N         parameters are gathered for each forward and each backward, of every micro-batch

That is why other systems refuse stages 2 and 3 in a pipeline. Here the ledger shows what they cost.
"""

from collections.abc import Callable, Mapping

from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...errors import BadInput
from ...zero.buffers.groups import Groups
from ...zero.extras import shard
from .pipeline import Pipeline


class StageOptimizers:
    """The optimizers of this rank's pipeline stages, stepped as one. `step` is collective over the data-parallel axis."""

    def __init__(self, optimizers: list[Optimizer]):
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @property
    def state(self) -> dict:
        return {param: state for optimizer in self.optimizers for param, state in optimizer.state.items()}

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()


def shard_stages(pipeline: Pipeline, optimizer: Callable[[list[nn.Parameter]], Optimizer], data: Comm | Groups,
                 stage: int = 1, **options) -> StageOptimizers:
    """Shard every pipeline stage of this rank over the ranks of `data`, in place. Collective.

    optimizer(parameters): makes the optimizer of one pipeline stage, or of those that share weights.
    data: the ranks that run the same stages on other samples; its `norm` has the pipeline's Comm, so that a norm is that of
    the whole model.   options: of `shard`.
    Raises BadInput for a schedule that computes the weights' gradients apart (I and W), or that updates by itself (STEP):
    ZeRO's stages see gradients as autograd brings them.
    """
    kinds = {action.kind for action in pipeline.actions} & {"W", "STEP"}
    if kinds:
        raise BadInput(f"{pipeline.plan.name} has the action {', '.join(sorted(kinds))}: under ZeRO the gradients of weights come "
                       "with those of inputs, in B, and the optimizer steps after the batch; use gpipe, 1f1b or interleaved")
    optimizers = []
    for stages in sharing(pipeline.stages):
        module = next(iter(stages.values())) if len(stages) == 1 else SharingStages(stages)
        optimizers.append(shard(module, optimizer(list(module.parameters())), stage=stage, comm=data, **options)[1])
        pipeline.sharded |= dict.fromkeys(stages, module)
        pipeline.last_backward[module] = [(action.stage, action.micro_batch) for action in pipeline.actions
                                          if action.kind == "B" and action.stage in stages][-1]
    return StageOptimizers(optimizers)


class SharingStages(nn.Module):
    """Pipeline stages of one rank that share weights, such as an embedding and a head: ZeRO has them as one model, of which a
    forward, and its backward, reach one stage."""

    def __init__(self, stages: Mapping[int, nn.Module]):
        super().__init__()
        self.stages = nn.ModuleDict({str(number): stage for number, stage in stages.items()})

    def forward(self, *values: Tensor, stage: int, **options) -> Tensor | tuple[Tensor, ...]:
        return self.stages[str(stage)](*values, **options)


def sharing(stages: Mapping[int, nn.Module]) -> list[dict[int, nn.Module]]:
    """The stages in groups that have no weight in common with each other."""
    groups: list[dict[int, nn.Module]] = []
    for number, stage in stages.items():
        params, apart = set(stage.parameters()), []
        together: dict[int, nn.Module] = {}
        for group in groups:
            if any(param in params for each in group.values() for param in each.parameters()):
                together |= group
            else:
                apart.append(group)
        groups = [*apart, together | {number: stage}]
    return sorted(groups, key=min)
