"""The engine: DeepSpeed's training loop over the stages. It accumulates, clips and steps, and sends nothing itself.

    engine, optimizer, loader, scheduler = zerocourse.initialize(model=model, optimizer=optimizer,
                                                                 config="ds_config.json")
    for batch in batches:
        loss = engine(batch)
        engine.backward(loss)
        engine.step()
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from ..activations import checkpoint_blocks
from ..comm import bootstrap as distributed
from ..comm.group import Comm
from ..data.sampler import ShardSampler
from ..errors import BadInput
from ..measure.storages import allocator_peak
from .checkpoint.engine_checkpoint import EngineCheckpoints
from .checkpoint.saving import Saving
from .config import Config
from .config.auto import known_values
from .familiar import FamiliarNames, require_group
from .leaf_modules import set_leaves_of, units_with_leaves
from .misplaced import check_device
from .monitors import MeasuredSteps, Monitors
from .nodes import shard_over_ranks
from .offloading import host_activations_of, offload_of
from .pipeline_engine import PipelineEngine
from .pipeline_module import PipelineModule
from .updates.half_precision import LossScaling, in_half, precision_of
from .updates.optimizers import choose_optimizer, choose_scheduler, hyper_parameters, rank_map_for
from .user_backward import UserLoss


def initialize(model: nn.Module, optimizer: Optimizer | Callable[[list], Optimizer] | None = None,
               model_parameters=None, training_data: Dataset | None = None, lr_scheduler=None,
               config: dict | str | Path | None = None, args=None, collate_fn: Callable | None = None, mpu=None,
               dist_init_required: bool | None = None, config_params: dict | str | Path | None = None,
               seed: int = 0, weights: str | Path | dict[str, Callable] | None = None, delay_after: int | None = None,
               distributed_port: int = distributed.PORT, mesh_param=None):
    """Returns (engine, optimizer, loader, scheduler), as DeepSpeed's `initialize` does. Collective.

    An existing process group is used. Under a launcher one is started. Otherwise there is one rank.
    optimizer: an optimizer over the model's parameters, or a function that makes one from `model_parameters`
        (parameters or parameter groups; by default all of the model's). Without it the config's section makes one.
    training_data: a map-style dataset; the loader gives each rank its own micro-batches.
    lr_scheduler: anything with a `step()`, or a function that makes one from the optimizer. Without it the config's
        section makes one.
    args: the arguments that DeepSpeed's launcher gives scripts; their `deepspeed_config` counts without a `config`.
        Hugging Face's TrainingArguments say what "auto" means in the config.
    collate_fn: makes a batch of samples, for the loader.   config_params: DeepSpeed's older name of `config`.
    dist_init_required: False says that there is a process group already.   distributed_port: see `init_distributed`.
    seed: of the values that parameters on the meta device get.
    weights: a local folder of safetensors, from which each rank reads the slices it owns. See `zerocourse.shard`.
    delay_after: from this number of steps on each update is made one step late (see `offload.delayed`), where the config
        offloads the optimizer's states to the host. DeepSpeed has no key for it.
    Raises BadInput for an impossible config (see `config`), or one that differs from rank to rank.
    """
    if not isinstance(model, nn.Module):
        raise BadInput(f"initialize needs model=, a torch.nn.Module, not a {type(model).__name__}")
    if mpu is not None or mesh_param is not None:
        raise BadInput(f"initialize got {'mpu' if mpu is not None else 'mesh_param'}=, and the engine has data parallelism "
                       "alone: shard the model with zerocourse.shard(..., shard_group=...) on the ranks that hold the same part of it")
    config = config_params if config is None else config
    config = getattr(args, "deepspeed_config", None) if config is None else config
    if config is None:
        raise BadInput("initialize needs config=, a dictionary or the path of a ds_config.json")
    require_group(dist_init_required)
    distributed.init(timeout_seconds=1800, port=distributed_port)  # torch's default, because one rank may write a checkpoint meanwhile
    if isinstance(model, PipelineModule):
        engine = PipelineEngine(model, config, optimizer, lr_scheduler, training_data, collate_fn)
        return engine, engine.optimizer, engine.loader, engine.lr_scheduler
    comm = Comm()
    resolved = Config.load(config, comm.world_size, known_values(args, hyper_parameters(optimizer)))
    of_ranks = comm.all_gather_object(resolved.as_dict())
    for key, value in of_ranks[0].items():
        other = next((rank for rank in range(comm.world_size) if of_ranks[rank][key] != value), None)
        if other is not None:
            raise BadInput(f"the ranks disagree on the config: {key} is {value} on rank 0 and "
                           f"{of_ranks[other][key]} on rank {other}; give every rank the same")
    set_leaves_of(resolved, model)
    optimizer = choose_optimizer(resolved, optimizer, model, model_parameters)
    lr_scheduler = choose_scheduler(resolved, lr_scheduler, optimizer)
    checkpointing, packing = resolved.activation_checkpointing, None
    if checkpointing is not None and checkpointing.enabled:
        packing = host_activations_of(resolved)
        checkpoint_blocks(model, checkpointing.number_checkpoints, packing=packing)  # before shard: its hooks stand around the blocks
    engine = Engine(model, optimizer, resolved, comm, lr_scheduler, seed, weights, delay_after)
    if packing is not None:
        packing.attach(engine.zero)
        engine.host_link = packing.link
    loader = engine.loader(training_data, collate_fn) if training_data is not None else None
    return engine, optimizer, loader, lr_scheduler


class Engine(FamiliarNames, EngineCheckpoints, LossScaling, UserLoss):
    """A model under a stage of ZeRO, its optimizer, and where the training stands."""

    def __init__(self, model: nn.Module, optimizer: Optimizer | None, config: Config, comm: Comm, lr_scheduler=None,
                 seed: int = 0, weights: str | Path | dict[str, Callable] | None = None, delay_after: int | None = None):
        self.config, self.lr_scheduler = config, lr_scheduler
        zero = config.zero_optimization
        overlap = zero.overlap_comm is not False  # on unless it is switched off, at every stage
        self.module, self.optimizer, self.mesh_comms = shard_over_ranks(
            model, optimizer, config, comm, device=distributed.device(), bucket_size=zero.reduce_bucket_size,
            precision=precision_of(config), prefetch=int(overlap), in_flight=int(overlap), seed=seed,
            weights=weights, offload=offload_of(config, delay_after), units=units_with_leaves(model), rank_map=rank_map_for(optimizer, zero.stage))
        self.zero = self.module.zero
        self.host_link = None if self.zero.offload is None else self.zero.offload.link
        self.disk = None if self.zero.offload is None else self.zero.offload.disk
        self.global_rank, self.world_size, self.local_rank = comm.rank, comm.world_size, distributed.local_rank()
        self.device, self.zero_stage = self.zero.device, zero.stage
        self.global_steps = self.micro_steps = self.skipped_steps = 0
        self.begin_scaling()
        self.monitors = Monitors(config, self.global_rank)
        self._measured: MeasuredSteps | None = None  # inside of `measured`
        self._window = 0  # the number of micro-batches since the last update
        self.n_backwards = 0  # since the last step: several add up, as the two losses of a discriminator do
        self._adds_up = False  # did the last micro-batch that updated have several?
        self._spoiled = False  # a backward failed, so the gradients of this window must not be used
        self._scales = True  # are the losses of this window divided by the number of its micro-batches?
        self._boundary: bool | None = None  # set by the user
        self._norm: float | torch.Tensor | None = None
        self._updated = False  # did the last step update the parameters?
        self._sampler: ShardSampler | None = None  # of the loader
        self._saving: Saving | None = None  # a checkpoint that is being written in the background
        self._to_note: Path | None = None  # where it is to be noted as the latest
        self.begin_watching()

    def __call__(self, *args, **kwargs):
        if self._spoiled or self.zero.backward_failed:
            self.zero.zero_grad()
            self._forget_window()
        if self.config.fp16.auto_cast:
            args, kwargs = in_half(args), in_half(kwargs)
        try:
            return self.module(*args, **kwargs)
        except RuntimeError as error:
            check_device(error, (args, kwargs), self.device)
            raise

    # -- one micro-batch ----------------------------------------------------------------------------------------------

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Add this micro-batch's gradients, so that those of a window are averaged. Returns the loss over the number of
        micro-batches; in fp16 what is differentiated is that times the loss scale, in fp32.

        Called several times before a `step`, the gradients of all these losses add up: they are of one micro-batch.
        scale_wrt_gas: False adds them as they are, because the loss is a share of the window's already.
        retain_graph: keep what the forward has saved, for another backward through it.
        After an exception the window begins again with the next forward. Raises BadInput for what is not a loss.
        """
        self.check_loss(loss, "backward")
        loss = self.in_fp32(loss)
        scaled = loss / self.gradient_accumulation_steps() if scale_wrt_gas else loss
        self.begin_micro_batch(scale_wrt_gas)
        self.monitors.note(scaled)
        try:
            self.in_engine_backward = True
            self.scale_loss(scaled).backward(retain_graph=retain_graph)
        except BaseException:
            self._spoiled = True
            raise
        finally:
            self.in_engine_backward = False
        self.n_backwards += 1
        return scaled

    def begin_micro_batch(self, scales: bool = True) -> None:
        """Gradients come. A script that says itself which backward is the last calls `step` only after that one: each of the
        others is a micro-batch of its own."""
        self._end_micro_batch()
        self._scales = scales and (self._scales or not (self._window or self.n_backwards))

    def _end_micro_batch(self) -> None:
        if self.n_backwards and self._boundary is False:
            self.step()

    def reduces_next(self) -> bool:
        """Are the gradients of the next backward to be reduced at once, because `step` will use them?

        Not where the last update had several backwards before it: then the step reduces their sum.
        """
        return self.is_gradient_accumulation_boundary() and not self._adds_up and not self._keeps_local

    def step(self) -> None:
        """At the end of a window clip, update, free the gradients and step the scheduler; else only count.

        A window whose gradients have inf or NaN, on any rank, is counted and otherwise skipped in half precision (see
        `skipped_steps`): parameters, optimizer and scheduler stay as they are. In fp16 the loss scale may fall; LossScaleError
        is raised when it cannot. Where the config says managed_gradient_accumulation: false, every call updates.
        Raises BadInput without an optimizer, or without a backward before it.
        """
        if self.optimizer is None:
            raise BadInput("engine.step has no optimizer: give initialize one")
        self.check_gradients()
        managed, several = self.config.managed_gradient_accumulation, self.n_backwards > 1
        update, self.n_backwards = not managed or self.is_gradient_accumulation_boundary(), 0
        self._window += 1
        self.micro_steps += 1
        self._updated = update
        if not update:
            return
        self._adds_up = several
        if self._scales and managed and self._window != self.gradient_accumulation_steps():  # a short last window: average over what there is
            self.zero.scale_gradients(self.gradient_accumulation_steps() / self._window)
        if self.config.gradient_allreduce_op == "sum":
            self.zero.scale_gradients(self.world_size)
        norm = self.zero.grad_norm()
        self._updated = not self.overflows(norm)
        if self._updated:
            norm, clip = self.unscale_gradients(norm), self.gradient_clipping()
            if clip:
                self.zero.clip_grad_norm_(clip, norm)
            self._norm = norm.item() if norm.device.type == "cpu" else norm  # a GPU is waited for only where it is asked for
            if self._measured is not None:
                self._measured.before_update()
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.global_steps += 1
        self._window, self._boundary, self._n_scaled = 0, None, 0
        if self._updated and self.lr_scheduler is not None:
            self.lr_scheduler.step()
        self.update_scale(overflow=not self._updated)
        self.monitors.write(self)
        if self._measured is not None:
            self._measured.after_update()

    def is_gradient_accumulation_boundary(self) -> bool:
        """Is the present micro-batch the last of its window? Never, before `step` says so, where the script counts them itself."""
        if not self.config.managed_gradient_accumulation:
            return False
        if self._boundary is not None:
            return self._boundary
        return self._window + 1 >= self.gradient_accumulation_steps()

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Set the boundary yourself, until the next update. For a last window that is shorter than the others.

        With False each backward is a micro-batch, whether or not `step` is called after it. Raises BadInput.
        """
        if not self.config.managed_gradient_accumulation:
            raise BadInput("engine.set_gradient_accumulation_boundary was called, and the config's managed_gradient_accumulation is "
                           "false: every engine.step() updates, so leave out the call, or the key")
        self._end_micro_batch()
        self._boundary = is_boundary

    def _forget_window(self) -> None:
        """The next micro-batch is the first of a window."""
        self._window, self.n_backwards, self._spoiled, self._boundary = 0, 0, False, None
        self._n_scaled, self._lacks_scale = 0, False

    def loader(self, dataset: Dataset, collate_fn: Callable | None = None) -> DataLoader:
        """This rank's micro-batches of a map-style dataset, reshuffled every epoch. A checkpoint has the position in it."""
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise BadInput(f"training_data is a {type(dataset).__name__} without a length or an index: it must be a "
                           "map-style dataset")
        self._sampler = ShardSampler(len(dataset), self.global_rank, self.world_size, self.train_micro_batch_size_per_gpu(),
                                     drop_last=self.config.dataloader_drop_last)
        # A generator of its own: each iteration draws a number, and a run that is resumed begins one more of them.
        return DataLoader(dataset, batch_sampler=self._sampler, collate_fn=collate_fn, generator=torch.Generator())

    @contextmanager
    def measured(self, folder: str | Path, tokens: int) -> Iterator[None]:
        """Around a training loop of three updates or more: what a rank holds and sends in a step, and how long it takes, is written to
        `folder`/summary.json, which `zerocourse receipt` lays beside what `zerocourse plan --write` predicted. Collective at its end.

        tokens: of a sample.   Raises BadInput where there were fewer updates, and where the file cannot be written, on every rank.
        """
        self._measured = measured = MeasuredSteps(self)
        try:
            yield
        finally:
            self._measured = None
            measured.stop()
        measured.write(Path(folder), tokens)

    # -- properties --------------------------------------------------------------------------------------------------

    def train_batch_size(self) -> int:
        return self.config.train_batch_size

    def train_micro_batch_size_per_gpu(self) -> int:
        return self.config.train_micro_batch_size_per_gpu

    def gradient_accumulation_steps(self) -> int:
        return self.config.gradient_accumulation_steps

    def gradient_clipping(self) -> float:
        return self.config.gradient_clipping

    def get_global_grad_norm(self) -> float | None:
        """The 2-norm of the whole gradient before clipping, and without a loss scale, at the last step not skipped."""
        if isinstance(self._norm, torch.Tensor):
            self._norm = self._norm.item()
        return self._norm

    def memory(self) -> dict[str, int]:
        """Bytes that this rank holds now, by kind: parameters, gradients, optimizer states with master weights.
        With offload these are the device's, and `host_bytes` are the host's. On a GPU `device_peak_bytes` are at most what its
        allocator has had in use."""
        peak = allocator_peak(self.device.type)
        return self.zero.memory(self.optimizer) | ({} if peak is None else {"device_peak_bytes": peak})

    def communication(self) -> dict[str, int | dict[str, int]]:
        """Bytes that this rank has sent so far by collective, with padding and metadata counted apart.
        With ZeRO++ `bytes_by_link` are those inside of a node and between nodes. With experts on several ranks `bytes_by_axis` are
        those of tokens ("ep"), of what ranks with the same experts share ("dp"), and of all else ("dp+ep").
        With offload `link_bytes` are what has gone "down" to the host, and "up". With states on the disk `io_bytes` are
        what has been "read" and "written" so far, in whole blocks; what is under way counts when it is over (`zero.settle()`)."""
        mesh = self.mesh_comms
        comms = [self.zero.comm, *([] if mesh is None else map(mesh.along, mesh.mesh.axes))]
        by_collective = sum((comm.sent for comm in comms), Counter())
        return {"sent_bytes": sum(by_collective.values()), "by_collective": dict(by_collective),
                "padding_bytes": sum(comm.padding for comm in comms), "metadata_bytes": sum(comm.metadata for comm in comms),
                **({} if mesh is None else {"bytes_by_axis": mesh.sent} if self.config.has_groups_of_experts else {"bytes_by_link": mesh.sent_over}),
                **({"link_bytes": dict(self.host_link.bytes)} if self.host_link is not None else {}),
                **({"io_bytes": dict(self.disk.bytes)} if self.disk is not None else {})}
