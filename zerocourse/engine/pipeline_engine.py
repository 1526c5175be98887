"""DeepSpeed's pipeline engine on our pipelines: `train_batch` runs 1F1B over the stages, and ZeRO over the data-parallel ranks. It
sends what `parallel.pipeline` sends, and the losses.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader

from ..comm import bootstrap as distributed
from ..data.repeating import RepeatingLoader
from ..data.sampler import ShardSampler
from ..errors import BadInput
from ..layout.mesh import Mesh
from ..parallel.mesh_comms import MeshComms
from ..parallel.pipeline import Pipeline, one_f_one_b, plan
from ..parallel.pipeline.sharded import shard_stages
from .config import Config
from .pipeline_module import PipelineModule
from .updates.half_precision import precision_of
from .updates.optimizers import build_optimizer, choose_scheduler

FORWARD = ("F", "SEND F", "RECV F")
ABSENT = {"forward": "train_batch and eval_batch run all stages", "backward": "train_batch runs the backwards",
          "step": "train_batch steps the optimizer", "save_checkpoint": "zerocourse.parallel.three_d trains and saves on a mesh: take "
          "Parallel3D and parallel.mesh_checkpoint", "load_checkpoint": "take parallel.three_d and parallel.mesh_checkpoint"}


class PipelineEngine:
    """This rank's stage of a `PipelineModule`, and where the training stands. Collective, like `train_batch` and `eval_batch`.

    The world is num_stages x data-parallel ranks, the stages the slower axis. Raises BadInput for a config that it cannot do.
    """

    def __init__(self, module: PipelineModule, config: dict | str, optimizer=None, lr_scheduler=None, training_data=None, collate_fn=None):
        world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        if world % module.num_stages:
            raise BadInput(f"num_stages is {module.num_stages}, which does not divide the {world} ranks")
        self.comms = MeshComms(Mesh({"pp": module.num_stages, "dp": world // module.num_stages}))
        self.config = Config.load(config, world // module.num_stages)
        check(self.config, optimizer)
        pipes, self.data = self.comms.along("pp"), self.comms.along("dp")
        self.module = self.pipeline = None
        layers = module.layers.to(distributed.device())
        one_forward_one_backward = plan("1f1b", one_f_one_b, module.num_stages, self.config.gradient_accumulation_steps)
        self.pipeline = Pipeline(list(layers), one_forward_one_backward, module.loss_fn, pipes, module.cuts(), count=lambda *_: 1,
                                 recompute=module.recompute)
        self.stage_id, self.num_stages = pipes.rank, module.num_stages
        make = optimizer or (lambda params: build_optimizer(self.config, params))
        self.stages = shard_stages(self.pipeline, make, self.comms.groups("dp", norm=("pp",)), self.config.zero_optimization.stage,
                                   bucket_size=self.config.zero_optimization.reduce_bucket_size, precision=precision_of(self.config))
        self.optimizer, = self.stages.optimizers
        self.lr_scheduler = choose_scheduler(self.config, lr_scheduler, self.optimizer)
        self.module = self.pipeline.stages[self.stage_id]
        self.global_rank, self.world_size, self.global_steps, self._norm = self.comms.rank, world, 0, None
        self.batches: Iterator | None = None
        self.loader = None if training_data is None else self.set_dataloader(self.deal(training_data, collate_fn))

    def deal(self, dataset, collate_fn) -> DataLoader:
        sampler = ShardSampler(len(dataset), self.data.rank, self.data.world_size, self.config.train_micro_batch_size_per_gpu)
        return DataLoader(dataset, batch_sampler=sampler, collate_fn=collate_fn, generator=torch.Generator())

    def set_dataloader(self, loader: Iterable) -> RepeatingLoader:
        """From now on `train_batch()` takes its micro-batches from it, again and again."""
        self.batches = RepeatingLoader(loader)
        return self.batches

    def set_dataiterator(self, iterator: Iterator) -> None:
        """From now on `train_batch()` takes its micro-batches from it."""
        self.batches = iterator

    def train_batch(self, data_iter: Iterator | None = None) -> float:
        """An update on gradient_accumulation_steps micro-batches, pairs (inputs, labels), which the first and the last stage read
        from data_iter. Returns their mean loss over all data-parallel ranks."""
        if data_iter is not None:
            self.batches = data_iter
        self.pipeline.stages[self.stage_id].train()
        loss = self.run(self.batches)
        clip = self.config.gradient_clipping
        self._norm = self.pipeline.clip_grad_norm(clip) if clip else self.pipeline.grad_norm()
        self.stages.step()
        self.stages.zero_grad()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
        self.global_steps += 1
        return loss

    def eval_batch(self, data_iter: Iterator, return_logits: bool = False, compute_loss: bool = True, reduce_output: str | None = "avg",
                   bcast_loss: bool = True, num_micro_batches: int | None = None) -> float:
        """The mean loss of as many micro-batches in evaluation, on every rank. Raises BadInput for other results."""
        if return_logits or not compute_loss or reduce_output != "avg" or num_micro_batches not in (None, self.pipeline.plan.micro_batches):
            raise BadInput("eval_batch returns the mean loss of gradient_accumulation_steps micro-batches: for outputs run the model on "
                           "one process")
        whole, stage = self.pipeline.actions, self.pipeline.stages[self.stage_id]
        stage.eval()
        self.pipeline.actions = [action for action in whole if action.kind in FORWARD]
        try:
            return self.run(data_iter)
        finally:
            self.pipeline.actions = whole
            self.pipeline.forget()
            self.stages.zero_grad()  # of weights that two stages share there are some, of zeros
            stage.train()

    def run(self, batches: Iterator | None) -> float:
        inputs = targets = wrong = None
        if self.is_first_stage() or self.is_last_stage():
            try:
                inputs, targets = self.read(batches)
            except Exception as error:
                if self.num_stages < 3:  # every rank reads, so they are all where their data end
                    raise
                wrong = error  # the stages between read nothing, and would wait
        loss = torch.tensor(self.pipeline.step(inputs, targets, wrong), dtype=torch.float64, device=self.pipeline.messages.host)
        return self.data.all_reduce(loss).item() / self.data.world_size

    def read(self, batches: Iterator | None) -> tuple[list, list]:
        """Inputs and labels of a batch's micro-batches. Raises BadInput without batches, and what they raise."""
        if batches is None:
            raise BadInput("train_batch needs data_iter, an iterator of micro-batches (inputs, labels), or initialize training_data")
        pairs = [next(batches) for _ in range(self.pipeline.plan.micro_batches)]
        inputs, labels = ([placed(pair[part], self.pipeline.device) for pair in pairs] for part in (0, 1))
        return inputs, labels

    def is_first_stage(self) -> bool:
        return self.stage_id == 0

    def is_last_stage(self) -> bool:
        return self.stage_id == self.num_stages - 1

    def train_batch_size(self) -> int:
        return self.config.train_batch_size

    def train_micro_batch_size_per_gpu(self) -> int:
        return self.config.train_micro_batch_size_per_gpu

    def gradient_accumulation_steps(self) -> int:
        return self.config.gradient_accumulation_steps

    def get_global_grad_norm(self) -> float | None:
        """The 2-norm of the whole model's gradient at the last step, before clipping."""
        return None if self._norm is None else float(self._norm)

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def parameters(self) -> Iterator[nn.Parameter]:
        """Those of this rank's stage."""
        return self.module.parameters()

    def __getattr__(self, name: str):
        if name in ABSENT:
            raise BadInput(f"a pipeline's engine has no {name}(): {ABSENT[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def placed(value: object, device: torch.device) -> torch.Tensor | tuple[torch.Tensor, ...]:
    return tuple(each.to(device) for each in value) if isinstance(value, tuple | list) else value.to(device)


def check(config: Config, optimizer: object) -> None:
    """Raises BadInput for what a pipeline does not do."""
    zero = config.zero_optimization
    if config.fp16.enabled:
        raise BadInput("fp16.enabled is true, and a pipeline has no loss scale: train in bf16")
    for name, offload in (("offload_optimizer", zero.offload_optimizer), ("offload_param", zero.offload_param)):
        if offload.device not in ("none", None):
            raise BadInput(f"zero_optimization.{name} has the device {offload.device!r}, and a pipeline keeps everything on its own: leave it out")
    if zero.has_slow_links:
        raise BadInput("zero_optimization asks for ZeRO++, which is not there in a pipeline: leave it out")
    if config.has_groups_of_experts:
        raise BadInput("expert_parallel is enabled, and a pipeline keeps all experts of a stage on its ranks: leave it out")
    if optimizer is None and config.optimizer is None:
        raise BadInput("a pipeline needs an optimizer: a section of the config, or a function of initialize that makes one from parameters")
    if optimizer is not None and (isinstance(optimizer, torch.optim.Optimizer) or not callable(optimizer)):
        raise BadInput("initialize got an optimizer that is made already, of parameters of all stages: give a function that makes one "
                       "from a list of parameters, or the config's section optimizer")
