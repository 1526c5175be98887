"""What the config says about memory beyond the device. It communicates nothing."""

from ..offload import DiskOffload, HostActivations, HostOffload
from ..offload.disk import Disk
from .config import Config


def offload_of(config: Config) -> HostOffload | None:
    """The config's offload; None where everything stays on the device."""
    zero, aio = config.zero_optimization, config.aio
    states, parameters = zero.offload_optimizer, zero.offload_param.device == zero.offload_optimizer.device
    if states.device == "cpu":
        return HostOffload(pin_memory=states.pin_memory, parameters=parameters, ratio=states.ratio)
    if states.device == "nvme":
        disk = Disk(states.nvme_path, workers=aio.queue_depth * aio.intra_op_parallelism, block_bytes=aio.block_size)
        return DiskOffload(disk=disk, parameters=parameters, buffers=states.buffer_count, pin_memory=states.pin_memory)
    return None


def host_activations_of(config: Config) -> HostActivations | None:
    """Where checkpoints wait for the backward; None: on the device."""
    section = config.activation_checkpointing
    return HostActivations() if section is not None and section.enabled and section.cpu_checkpointing else None
