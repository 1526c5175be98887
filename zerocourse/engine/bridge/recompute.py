"""`deepspeed.checkpointing`: activation checkpointing by DeepSpeed's names, on torch's own. It communicates nothing."""

from torch.utils.checkpoint import checkpoint as torch_checkpoint

from ...errors import BadInput

configured = False


def configure(mpu_=None, deepspeed_config=None, partition_activations: bool | None = None, contiguous_checkpointing: bool | None = None,
              num_checkpoints: int | None = None, checkpoint_in_cpu: bool | None = None, synchronize: bool | None = None,
              profile: bool | None = None) -> None:
    """Arguments that only say how often or when DeepSpeed looks change nothing. Raises BadInput for what would save memory that torch's
    checkpointing does not."""
    global configured
    refused = {"partition_activations": (partition_activations, "there are no tensor-parallel ranks that hold the same activations"),
               "contiguous_checkpointing": (contiguous_checkpointing, "activations lie where torch puts them"),
               "checkpoint_in_cpu": (checkpoint_in_cpu, ("set cpu_checkpointing in the config's activation_checkpointing, which moves the "
                                      "blocks' inputs to the host"))}
    for name, (value, why) in refused.items():
        if value:
            raise BadInput(f"checkpointing.configure got {name}={value}, which is not supported: {why}")
    configured = True


def is_configured() -> bool:
    return configured


def reset() -> None:
    """Nothing is kept between two steps."""


def checkpoint(function, *args):
    """Compute `function(*args)` and keep its inputs alone; the backward computes it again. (Without reentrance: inputs need no
    gradient of their own.)"""
    return torch_checkpoint(function, *args, use_reentrant=False)


non_reentrant_checkpoint = checkpoint
