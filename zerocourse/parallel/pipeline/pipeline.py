"""Runs a schedule: this rank's list of actions, on its stages of the model, in real processes.

    layers = [...]                                       # the whole model, on every rank; each keeps its own stages
    pipeline = Pipeline(layers, plan("1f1b", one_f_one_b, ranks=4, micro_batches=8), loss)
    optimizer = torch.optim.AdamW(pipeline.parameters(), lr=1e-3)
    loss = pipeline.step(tokens, targets)                # gradients are in .grad, the loss is the same on every rank
    pipeline.clip_grad_norm(1.0); optimizer.step(); optimizer.zero_grad()

Between stages travel activations forward and their gradients back, 2 × (micro-batch × tokens × width) elements per
boundary and micro-batch. The gradients are those of one process that accumulates over the same micro-batches: bitwise, on the
CPU, where the schedule finishes them in order and no weight is shared by two ranks, else within rounding. BatchNorm sees one
micro-batch at a time, as it does in accumulation. Nothing is run before the first step to find shapes, so no statistics
are spoiled by it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ...comm import Comm, fail_all
from ...errors import BadInput, PipelineError, ZeroCourseError
from ..norms import grad_norm
from .cutting import PipelineStage, cut, tied_weights
from .schedules.actions import Action, Schedule, problems
from .schedules.deadlock import deadlock
from .split_backward import Owed, deferring, pay
from .stage_messages import StageMessages
from .ties import Ties
from .weighing import count_targets, shares_of, weigh
from .weight_versions import WeightVersions, run_with

MicroBatches = Tensor | Sequence[Tensor | tuple[Tensor, ...]] | None
Key = tuple[int, int]  # stage, micro-batch
CANNOT_RUN = -2 ** 32  # in place of a micro-batch's number, which is counted from 0: what ranks add up is then negative


class Pipeline:
    """A model cut into stages, of which this rank runs its own as the plan says. Collective, like all its methods.

    layers: of the whole model; each takes what the one before returned. Weights may be shared between layers.
    loss(output, target): a mean over the micro-batch.   count(target): what that mean divides by, so that micro-batches of
        different sizes weigh what they should. Both are given all tensors of a target that is a tuple.
    comm: of the ranks of this pipeline; by default of all ranks. On NCCL it is that, or one of a `MeshComms`, whose ranks all make
        their pipelines at the same place, because a plan may need further process groups (see `links`).
    cuts: the layers of each stage as ranges; by default stages of nearly equal length.   recompute, seed: see
    `PipelineStage`.   optimizer(parameters) -> Optimizer, and weights, a policy of `WeightVersions`: for plans with
    STEP.   norm: further ranks with other parameters, over which a norm is added up, too (tensor parallelism).
    Raises BadInput for a plan that is out of order or deadlocks, or does not fit the ranks and layers.
    """

    def __init__(self, layers: Sequence[nn.Module], plan: Schedule, loss: Callable[..., Tensor],
                 comm: Comm | None = None, cuts: Sequence[range] | None = None, count: Callable[..., int | Tensor] = count_targets,
                 recompute: bool = False, seed: int | None = None,
                 optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None, weights: str = "stash",
                 norm: Sequence[Comm] = ()):
        self.plan, self.loss, self.count, self.comm = plan, loss, count, Comm() if comm is None else comm
        cuts = cut([1] * len(layers), plan.stages) if cuts is None else list(cuts)
        check(plan, self.comm, cuts, len(layers))
        stages = [PipelineStage(layers, numbers, recompute, seed) for numbers in cuts]
        self.stages = {stage: stages[stage] for stage in plan.stages_of(self.comm.rank)}
        names: dict[nn.Parameter, str] = {}
        for number, layer in enumerate(layers):
            for name, param in layer.named_parameters():
                names.setdefault(param, f"{number}.{name}")
        self.names = {param: names[param] for stage in self.stages.values() for param in stage.parameters()}
        tied = tied_weights(stages, plan.owner)
        self.ties = Ties(tied, plan.owner, self.comm)
        self.actions = plan.actions[self.comm.rank]
        self.halves = {action for action in self.actions if action.kind == "I"}
        first = next((param for stage in self.stages.values() for param in stage.parameters()), torch.empty(0))
        self.device = first.device
        self.comm.recorder.time_on(self.device)
        self.messages = StageMessages(plan, self.comm, self.device)
        self.ends = [action.micro_batch for action in self.actions if action.kind == "STEP"]  # of the batches
        self.versions, self.optimizers = {}, {}
        if self.ends:
            if optimizer is None or tied:
                raise BadInput(f"{plan.name} updates the weights while micro-batches are under way: " + (
                    "it needs an optimizer" if optimizer is None else f"{tied[0].name} may not be shared between ranks then"))
            self.versions = {number: WeightVersions(stage, weights) for number, stage in self.stages.items()}
            self.optimizers = {number: optimizer(list(stage.parameters())) for number, stage in self.stages.items()}
        self.norm = [self.comm, *norm]
        self.sharded: dict[int, nn.Module] = {}  # by ZeRO: what has each of this rank's stages, see `sharded.shard_stages`
        self.last_backward: dict[nn.Module, Key] = {}  # of each of these
        self.steps = 0
        self.kind_of_shape: dict[tuple, int] = {}
        self.ties.start_equal()

    # -- what users call ---------------------------------------------------------------------------------------------

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """This rank's parameters, each once, named as in `nn.Sequential(*layers)`: a shared one as its first layer has it."""
        return {name: param for param, name in self.names.items()}

    def parameters(self) -> list[nn.Parameter]:
        """This rank's parameters, each once: what its optimizer updates."""
        return list(self.named_parameters().values())

    def step(self, inputs: MicroBatches = None, targets: MicroBatches = None, wrong: Exception | None = None) -> float:
        """Run the list. Adds to `.grad` the gradient of the batch's mean loss, which is returned on every rank.

        inputs: read by the rank of the first stage, targets: by that of the last. A tensor is cut along its rows into
        the plan's number of micro-batches, the first ones a row longer where they do not divide; or give a list of
        them. wrong: why this rank has no batch; it is raised.
        Raises BadInput, on all ranks and before anything is run, where one cannot run its part of the batch, and
        PipelineError with stage, rank, action and micro-batch where the model fails; the other ranks end, too.
        """
        self.forget()
        try:
            if wrong is None:
                self.read(inputs, targets)
        except Exception as error:
            wrong = error
        self.kinds = self.agree_on_kinds(wrong)
        self.ties.set_earlier_aside()
        run = {"F": self.forward, "B": self.backward, "I": self.backward, "W": self.weight_gradients, "STEP": self.update,
               "SEND F": self.send_forward, "RECV F": self.receive_forward, "SEND B": self.send_backward,
               "RECV B": self.receive_backward}
        for action in self.actions:
            try:
                run[action.kind](action.stage, action.micro_batch)
            except ZeroCourseError as error:
                fail_all(error)  # the others, who may have seen nothing of it, would wait for this rank
                raise
            except Exception as error:
                failed = PipelineError(f"{action} failed on rank {self.comm.rank} of {self.plan.ranks}, in layers "
                                       f"{named(self.stages[action.stage].numbers)}: {type(error).__name__}: {error}")
                fail_all(failed)
                raise failed from error
        self.messages.wait_for_sends()
        if self.sharded:
            for module in self.sharded_modules:
                module.zero.flush()
            self.ties.add_slices(self.sharded_modules)
        else:
            self.ties.add_gradients()
        self.steps += 1
        total = torch.stack(self.losses).sum() if self.losses else torch.zeros((), device=self.device)
        # The others add zeros: it is known on the last rank only. Here, and nowhere before, the host waits for a GPU.
        return self.comm.numbers(self.comm.all_reduce(total.double()))[0]

    def grad_norm(self) -> Tensor:
        """The 2-norm of the gradients of all stages, the same on every rank. Collective."""
        if not self.sharded:
            return grad_norm(self.parameters(), self.norm)
        return torch.stack([module.zero.grad_norm() for module in self.sharded_modules]).square().sum().sqrt()

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale all gradients so that their 2-norm over all stages is `max_norm` at most. Returns the norm before."""
        norm = self.grad_norm()
        if self.sharded:
            for module in self.sharded_modules:
                module.zero.clip_grad_norm_(max_norm, norm)
        else:
            params = [param for param in self.parameters() if param.grad is not None]
            torch.nn.utils.clip_grads_with_norm_(params, max_norm, norm.float())
        return norm.item()

    @property
    def sharded_modules(self) -> list[nn.Module]:
        """What ZeRO has sharded here, each once."""
        return list(dict.fromkeys(self.sharded.values()))

    def has_gradients(self) -> bool:
        return any(flat.has_grad for module in self.sharded_modules for flat in module.zero.flats)

    # -- before the list begins --------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Nothing is under way: also after a step that failed."""
        self.values: dict[Key, tuple[Tensor, ...]] = {}  # the inputs of a stage, until its backward
        self.edges: dict[Key, list[GradientEdge]] = {}  # where a backward begins: they keep the graph, and not the output
        self.gradients: dict[Key, list[Tensor]] = {}  # of a stage's outputs, until its backward
        self.outbox: dict[tuple[str, int, int], list[Tensor]] = {}  # what is to be sent
        self.owed: dict[Key, Owed] = {}
        self.losses: list[Tensor] = []
        for versions in self.versions.values():
            versions.begin()

    def read(self, inputs: MicroBatches, targets: MicroBatches) -> None:
        """Cut the batch, as far as this rank reads it. It communicates nothing. Raises BadInput, or what `count` does."""
        has_first, has_last = 0 in self.stages, self.plan.stages - 1 in self.stages
        self.inputs = micro_batches("inputs", inputs, self.plan.micro_batches) if has_first else []
        self.targets = micro_batches("targets", targets, self.plan.micro_batches) if has_last else []
        self.shares = shares_of(self.targets, self.count, self.ends) if has_last else []
        if self.sharded and self.ties.mine and self.has_gradients():
            raise BadInput("gradients of an earlier batch are there, and weights are shared between stages: under ZeRO step the "
                           "optimizer and call its zero_grad after each batch")

    def agree_on_kinds(self, wrong: Exception | None = None) -> list[int]:
        """A number for each micro-batch, the same where the inputs have the same shapes, so that all ranks know which
        shapes are new. Sends 8 bytes per micro-batch; where there is no gloo, through the store.

        wrong: why this rank cannot run the batch. It is raised here, and on the ranks that could, BadInput that says whose it is.
        """
        kinds = [0 if wrong is None else CANNOT_RUN] * self.plan.micro_batches
        if wrong is None and self.inputs:
            shapes = [tuple((tensor.dtype, tensor.shape) for tensor in values) for values in self.inputs]
            kinds = [self.kind_of_shape.setdefault(shape, len(self.kind_of_shape)) for shape in shapes]
        if "gloo" in self.comm.backends or not self.comm.peers:
            kinds = self.comm.numbers(self.comm.all_reduce(torch.tensor(kinds)))
        else:
            kinds = [sum(of_ranks) for of_ranks in zip(*self.comm.all_gather_object(kinds), strict=True)]
        if min(kinds) >= 0:
            return kinds
        everyone = self.comm.all_gather_object(None if wrong is None else ": ".join(filter(None, (type(wrong).__name__, str(wrong)))))
        rank, said = next((rank, said) for rank, said in enumerate(everyone) if said is not None)
        error = wrong or BadInput(f"rank {rank} of {self.plan.ranks} cannot run its part of the batch: {said}")
        if any(comm.peers for module in self.sharded_modules for comm in module.zero.groups.comms):
            fail_all(error)  # replicas of this pipeline, whose own batch may be good, would wait for its gradients
        raise error

    # -- the actions -------------------------------------------------------------------------------------------------

    def forward(self, stage: int, micro_batch: int) -> None:
        key = stage, micro_batch
        values = self.inputs[micro_batch] if stage == 0 else self.values[key]
        splits = Action("I", stage, micro_batch) in self.halves
        with (self.comm.recorder.span("forward", f"F{micro_batch} of stage {stage}"),
              deferring(self.owed.setdefault(key, [])) if splits else nullcontext()):
            output = self.compute(stage, micro_batch, values)
            if stage == self.plan.stages - 1:
                output, part = weigh(self.loss(output, *self.targets[micro_batch]), self.shares[micro_batch])
                self.losses.append(part)
        outputs = output if isinstance(output, tuple) else (output,)
        self.edges[key] = [get_gradient_edge(tensor) for tensor in outputs if tensor.requires_grad]
        if stage < self.plan.stages - 1:
            passed_on = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in outputs]
            if stage + 1 in self.stages:
                self.values[stage + 1, micro_batch] = tuple(passed_on)
            else:
                self.outbox["F", stage, micro_batch] = passed_on

    def compute(self, stage: int, micro_batch: int, values: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        options = {"micro_batch": micro_batch, "step": self.steps}
        if (module := self.sharded.get(stage, self.stages[stage])) is not self.stages[stage]:
            return module(*values, stage=stage, **options)
        if stage not in self.versions:
            return module(*values, **options)
        batch = sum(end < micro_batch for end in self.ends)
        return run_with(module, self.versions[stage].take(micro_batch, batch), values, options)

    def backward(self, stage: int, micro_batch: int) -> None:
        """B, or I: where the list has I and W, the linear layers of this micro-batch defer their weights' gradients."""
        key = stage, micro_batch
        edges, values = self.edges.pop(key), self.values.pop(key, ())
        gradients = self.gradients.pop(key, None)
        if gradients is None:  # of the loss itself
            gradients = [torch.ones((), dtype=self.losses[0].dtype, device=self.device) for _ in edges]
        splits = key in self.owed
        with (self.comm.recorder.span("backward", f"{'I' if splits else 'B'}{micro_batch} of stage {stage}"),
              deferring(self.owed[key]) if splits else nullcontext(), self.reducing(stage, micro_batch)):
            torch.autograd.backward(edges, gradients)  # a layer may compute again
        if stage in self.versions:
            self.versions[stage].collect(micro_batch)
        of_inputs = [torch.zeros_like(value) if value.grad is None else value.grad for value in values if value.requires_grad]
        if stage - 1 in self.stages:
            self.gradients[stage - 1, micro_batch] = of_inputs
        elif stage:
            self.outbox["B", stage, micro_batch] = of_inputs

    def reducing(self, stage: int, micro_batch: int) -> AbstractContextManager:
        """Under ZeRO the gradients of micro-batches are added up here, and reduced in the last one's backward. From stage
        2 on every backward reduces, because no full gradient is kept."""
        if not self.sharded:
            return nullcontext()
        module = self.sharded[stage]
        last = (stage, micro_batch) == self.last_backward[module]
        return module.zero.backward_options(reduces=last, is_last=last)

    def weight_gradients(self, stage: int, micro_batch: int) -> None:
        with self.comm.recorder.span("backward", f"W{micro_batch} of stage {stage}"):
            pay(self.owed.pop((stage, micro_batch)))

    def update(self, stage: int, micro_batch: int) -> None:
        with self.comm.recorder.span("step", f"stage {stage}"):
            self.versions[stage].update(self.optimizers[stage].step)
            self.optimizers[stage].zero_grad()

    # -- the transfers -----------------------------------------------------------------------------------------------

    def send_forward(self, stage: int, micro_batch: int) -> None:
        self.messages.send_outputs(f"F{micro_batch} of stage {stage}", self.plan.owner[stage + 1], stage, self.kinds[micro_batch],
                               self.outbox.pop(("F", stage, micro_batch)))

    def receive_forward(self, stage: int, micro_batch: int) -> None:
        self.values[stage, micro_batch] = tuple(self.messages.receive_outputs(
            f"F{micro_batch} of stage {stage - 1}", self.plan.owner[stage - 1], stage - 1, self.kinds[micro_batch]))

    def send_backward(self, stage: int, micro_batch: int) -> None:
        self.messages.send_gradients(f"B{micro_batch} of stage {stage}", self.plan.owner[stage - 1],
                                 self.outbox.pop(("B", stage, micro_batch)))

    def receive_backward(self, stage: int, micro_batch: int) -> None:
        self.gradients[stage, micro_batch] = self.messages.receive_gradients(
            f"B{micro_batch} of stage {stage + 1}", self.plan.owner[stage + 1], stage, self.kinds[micro_batch])


def check(plan: Schedule, comm: Comm, cuts: Sequence[range], layers: int) -> None:
    """Raises BadInput, on every rank alike, for what cannot be run."""
    if plan.ranks != comm.world_size:
        raise BadInput(f"{plan.name} is a schedule for {plan.ranks} ranks, and this Comm has {comm.world_size}")
    if len(cuts) != plan.stages or [number for numbers in cuts for number in numbers] != list(range(layers)) \
            or not all(cuts):
        raise BadInput(f"cuts are {list(cuts)}: they must be {plan.stages} ranges, none empty, that follow each other over "
                       f"the {layers} layers")
    for problem in problems(plan):
        raise BadInput(f"{plan.name} cannot be run: {problem}")
    if (ring := deadlock(plan, "nccl" if "nccl" in comm.backends else "bounded")) is not None:
        raise BadInput(f"{plan.name} would deadlock: {ring}")


def micro_batches(name: str, given: MicroBatches, number: int) -> list[tuple[Tensor, ...]]:
    """The micro-batches as tuples. Raises BadInput where there are too few rows, or not as many as the plan has."""
    if given is None:
        raise BadInput(f"step needs {name} on this rank, which has the {'first' if name == 'inputs' else 'last'} stage")
    if isinstance(given, Tensor):
        if len(given) < number:
            raise BadInput(f"{name} has {len(given)} rows, which cannot be cut into {number} micro-batches")
        given = given.tensor_split(number)
    if len(given) != number:
        raise BadInput(f"{name} is a list of {len(given)} micro-batches: the plan has {number}")
    return [each if isinstance(each, tuple) else (each,) for each in given]


def named(numbers: range) -> str:
    return f"{numbers.start}" if len(numbers) == 1 else f"{numbers.start} to {numbers.stop - 1}"
