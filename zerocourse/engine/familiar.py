"""The names by which DeepSpeed's scripts ask an engine, beside the loop. They communicate where they say so."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from ..comm import bootstrap as distributed
from ..errors import BadInput
from ..zero.whole.consolidate import load_state_dict, state_dict
from .compatibility import refusal


def init_distributed(dist_backend: str | None = None, auto_mpi_discovery: bool = True, distributed_port: int = distributed.PORT,
                     verbose: bool = True, timeout: timedelta | float | None = None, init_method: str | None = None,
                     dist_init_required: bool | None = None, config: object = None, rank: int = -1, world_size: int = -1) -> None:
    """Start the process group from the launcher's variables, or one rank without a launcher. An existing group is used as it is.

    dist_backend: nccl or gloo; by default nccl where each rank has a GPU, else gloo, which also takes nccl's place, with a
        warning, where nccl cannot be.
    auto_mpi_discovery: look at the variables of mpirun and srun, too.   distributed_port: where rank 0 listens, if MASTER_PORT
        does not say so.
    timeout: of a collective, in seconds or as a timedelta; by default half an hour.
    init_method, rank, world_size: as torch.distributed has them, instead of what the launcher says.
    dist_init_required: False says that there is a group already.   verbose, config: change nothing; there are no log messages.
    Raises BadInput where the arguments and the launcher do not say who the ranks are, or say something else than the existing group.
    """
    require_group(dist_init_required)
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    distributed.init(1800 if seconds is None else seconds, dist_backend, init_method, rank, world_size, distributed_port,
                     auto_mpi_discovery)
    for name, given, there in ("rank", rank, dist.get_rank()), ("world_size", world_size, dist.get_world_size()):
        if given not in (-1, there):
            raise BadInput(f"init_distributed got {name}={given}, and the process group that exists has {name} {there}")


def require_group(dist_init_required: bool | None) -> None:
    """Raises BadInput where the script says that it has started the process group, and has not."""
    if dist_init_required is False and not dist.is_initialized():
        raise BadInput("dist_init_required is False, and there is no process group yet: start one, or leave the argument out")


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add `--deepspeed` and `--deepspeed_config FILE`, which `initialize(args=...)` reads."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed's configuration")
    group.add_argument("--deepspeed", action="store_true", help="accepted for DeepSpeed's scripts; it changes nothing")
    group.add_argument("--deepspeed_config", type=str, default=None, help="the path of a ds_config.json")
    return parser


class FamiliarNames:
    """What an engine has of torch's modules and DeepSpeed's engine. Its attributes are the engine's."""

    def forward(self, *args, **kwargs):
        return self(*args, **kwargs)

    def train(self, mode: bool = True):
        self.module.train(mode)
        return self

    def eval(self):
        return self.train(False)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The model's parameters; under stage 3 their values are there only inside `zerocourse.gathered`."""
        return self.module.parameters(recurse)

    def named_parameters(self, *args, **kwargs) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters(*args, **kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of this window, which begins anew."""
        self.zero.zero_grad(set_to_none)
        self._forget_window()

    def get_lr(self) -> list[float]:
        """The learning rate of each parameter group."""
        return [group["lr"] for group in self.optimizer.param_groups] if self.optimizer is not None else []

    def get_mom(self) -> list:
        """The momentum (or Adam's betas) of each parameter group."""
        groups = self.optimizer.param_groups if self.optimizer is not None else []
        return [group.get("momentum", group.get("betas")) for group in groups]

    def get_batch_info(self) -> tuple[int, int, int]:
        """(train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps)"""
        return self.train_batch_size(), self.train_micro_batch_size_per_gpu(), self.gradient_accumulation_steps()

    def was_step_applied(self) -> bool:
        """Did the last `step()` update the parameters?"""
        return self._updated

    @property
    def global_samples(self) -> int:
        """Samples of all ranks in the updates so far, if no window was cut short."""
        return self.global_steps * self.train_batch_size()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards inside only add to the local gradients, and the step sends their sum. From stage 2 on, where DeepSpeed refuses
        it, each backward still sends its gradients, since no rank keeps whole ones: the result is the same."""
        before, self._keeps_local = self._keeps_local, True
        try:
            yield
        finally:
            self._keeps_local = before

    def zero_optimization(self) -> bool:
        return self.zero_stage > 0

    def zero_optimization_stage(self) -> int:
        return self.zero_stage

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Whole parameters and persistent buffers, on every rank. Collective."""
        return state_dict(self.module)

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Set parameters and persistent buffers from whole tensors, the same on every rank. Collective."""
        load_state_dict(self.module, state)

    def save_16bit_model(self, save_dir: str | Path, save_filename: str = "pytorch_model.bin",
                         exclude_frozen_parameters: bool = False) -> bool:
        """Write whole weights as one file of torch's that `torch.load` reads, floats in 16 bits (fp32 becomes bf16).
        Collective.

        Rank 0 holds all of it meanwhile, and writes. Returns True when the file is there, on every rank.
        """
        state = state_dict(self.module, rank_0_only=True, exclude_frozen=exclude_frozen_parameters)
        file, error = Path(save_dir, save_filename), None
        if self.global_rank == 0:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                draft = file.with_name(file.name + ".draft")
                torch.save({name: in_16_bits(value) for name, value in state.items()}, draft)
                draft.replace(file)
            except OSError as caught:
                error = f"{file} cannot be written: {caught.strerror}"
        error = self.zero.groups.all_gather_object(error)[0]
        if error is not None:
            raise BadInput(error)
        return True

    save_fp16_model = save_16bit_model

    def empty_partition_cache(self) -> None:
        """Free parameters that are gathered outside of a forward (stage 3)."""
        if self.zero.shards_parameters:
            self.zero.reshard_all()

    def destroy(self) -> None:
        """Wait for a checkpoint in the background. Collective."""
        self.wait_for_checkpoint()

    def __getattr__(self, name: str):
        """What the engine does not have, its model may: `engine.generate(...)`, `engine.config`."""
        said = refusal("the engine", f"engine.{name}")
        if said is not None or name.startswith("_") or name == "module":
            raise AttributeError(said or f"{type(self).__name__!r} object has no attribute {name!r}")
        try:
            return getattr(self.module, name)
        except AttributeError:
            raise AttributeError(f"neither the engine nor its {type(self.module).__name__} has {name!r}") from None


def in_16_bits(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.element_size() > 2:
        return value.to(torch.bfloat16)
    return value
