"""How each mode is built: a model, its optimizer, and a step. All train the same GPT-2 with the same fused AdamW.

Our stages and torch's modes share one kind of step. DeepSpeed's engine has a step of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..comm.group import Comm
from ..models.gpt2 import GPT, GPTConfig
from ..zero.extras import shard
from .settings import BenchMode, BenchSettings


@dataclass
class Trained:
    """A model in training. `optimizer` is the one whose states are held here; `step(x_BT, y_BT)` returns the loss."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[Tensor, Tensor], float]
    comm: Comm | None = None  # the Comm of our modes, which counts what they send


def build(mode: BenchMode, settings: BenchSettings, bucket: int | None) -> Trained:
    """Build a mode with a new model from the seed in `settings`. Collective."""
    model = gpt2(settings)
    lr = settings.lr if settings.plant != mode.name else 2 * settings.lr
    if mode.ours:
        return ours(model, lr, mode)
    peer = PEERS["deepspeed" if mode.wants == "deepspeed" else mode.name]
    return peer(model, lr, mode, settings, bucket)


def gpt2(settings: BenchSettings) -> GPT:
    torch.manual_seed(settings.seed)
    return GPT(shape(settings))


def shape(settings: BenchSettings) -> GPTConfig:
    """Of the model that every mode trains."""
    return GPTConfig(settings.layers, settings.heads, settings.width, block_size=settings.tokens,
                     vocab_size=settings.vocab)


def alone(settings: BenchSettings) -> Trained:
    """Forward, backward, and the update of about 1/N of the parameters: less no sharded mode can do in a step."""
    model, share = gpt2(settings), []
    for param in model.parameters():
        if sum(map(torch.numel, share)) < settings.params // settings.ranks:
            share.append(param)
    return trained(model, adamw(share, settings.lr))


def adamw(params, lr: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(params, lr=lr, fused=True)


def trained(model: nn.Module, optimizer, held_by=None, comm: Comm | None = None) -> Trained:
    """The plain step. The gradients go at its end, so that no mode holds them while another one computes."""

    def step(x_BT: Tensor, y_BT: Tensor) -> float:
        loss = model(x_BT, y_BT)
        loss.backward()
        optimizer.step()
        model.zero_grad()
        return loss.item()

    return Trained(model, held_by or optimizer, step, comm)


def ours(model: nn.Module, lr: float, mode: BenchMode) -> Trained:
    comm = Comm()
    model, optimizer = shard(model, adamw(model.parameters(), lr), mode.stage, comm=comm,
                             reshard_after_forward=not mode.keep)
    return trained(model, optimizer, comm=comm)


def torch_ddp(model: nn.Module, lr: float, mode: BenchMode, settings: BenchSettings, bucket: int) -> Trained:
    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=bucket)
    return trained(model, adamw(model.parameters(), lr))


def torch_zro(model: nn.Module, lr: float, mode: BenchMode, settings: BenchSettings, bucket: int) -> Trained:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=bucket)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True, lr=lr,
                                        fused=True)
    return trained(model, optimizer, held_by=optimizer.optim)


def fsdp2(model: nn.Module, lr: float, mode: BenchMode, settings: BenchSettings, bucket: int) -> Trained:
    """`bucket` blocks are gathered as one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    options = {"reshard_after_forward": not mode.keep, "mesh": init_device_mesh("cpu", (settings.ranks,))}
    blocks = list(model.h)
    for first in range(0, len(blocks), bucket):
        group = blocks[first : first + bucket]
        fully_shard(group if len(group) > 1 else group[0], **options)
    fully_shard(model, **options)
    return trained(model, adamw(model.parameters(), lr))


def deepspeed(model: nn.Module, lr: float, mode: BenchMode, settings: BenchSettings, bucket: int) -> Trained:
    """Its defaults, but for the bucket sizes (2 GB each otherwise), clipping, which no other mode does, and at stage 3
    for what would keep a small model's parameters gathered."""
    import deepspeed

    zero = {"stage": mode.stage, "reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
    if mode.stage == 3:
        zero = {"stage": 3, "reduce_bucket_size": bucket, "stage3_prefetch_bucket_size": bucket,
                "stage3_max_live_parameters": bucket, "stage3_max_reuse_distance": 0}
    config = {"train_micro_batch_size_per_gpu": settings.micro_batch, "gradient_accumulation_steps": 1,
              "gradient_clipping": 0.0, "zero_optimization": zero,
              "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
              "steps_per_print": 10**9}
    optimizer = adamw(model.parameters(), lr)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)

    def step(x_BT: Tensor, y_BT: Tensor) -> float:
        loss = engine(x_BT, y_BT)
        engine.backward(loss)
        engine.step()
        return loss.item()

    return Trained(engine, optimizer, step)


PEERS = {"torch-ddp": torch_ddp, "torch-zro": torch_zro, "fsdp2": fsdp2, "fsdp2-keep": fsdp2, "deepspeed": deepspeed}


def prepare(wants: str) -> None:
    """What a package needs before its first use in these ranks."""
    if wants == "deepspeed":
        import deepspeed

        if not deepspeed.comm.is_initialized():
            deepspeed.init_distributed("gloo", dist_init_required=not dist.is_initialized(), verbose=False)
