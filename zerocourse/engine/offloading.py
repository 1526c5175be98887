"""What the config says about memory beyond the device. It communicates nothing."""

from ..errors import BadInput
from ..offload import DiskOffload, HostActivations, HostOffload
from ..offload.on_disk.disk import Disk
from .config import Config


def offload_of(config: Config, delay_after: int | None = None) -> HostOffload | None:
    """The config's offload; None where everything stays on the device. Raises BadInput for a delay that nothing makes."""
    zero, aio = config.zero_optimization, config.aio
    states, parameters = zero.offload_optimizer, zero.offload_param.device == zero.offload_optimizer.device
    if delay_after is not None and states.device != "cpu":
        raise BadInput(f"initialize got delay_after={delay_after}, and zero_optimization.offload_optimizer.device is {states.device!r}: "
                       "an update can be delayed where the optimizer's states lie on the host, so set the device to 'cpu'")
    if states.device == "cpu":
        return HostOffload(pin_memory=states.pin_memory, parameters=parameters, ratio=states.ratio, delay_after=delay_after)
    if states.device == "nvme":
        disk = Disk(states.nvme_path, workers=aio.queue_depth * aio.intra_op_parallelism, block_bytes=aio.block_size)
        return DiskOffload(disk=disk, parameters=parameters, buffers=states.buffer_count, pin_memory=states.pin_memory)
    return None


def host_activations_of(config: Config) -> HostActivations | None:
    """Where checkpoints wait for the backward; None: on the device."""
    section = config.activation_checkpointing
    return HostActivations() if section is not None and section.enabled and section.cpu_checkpointing else None
