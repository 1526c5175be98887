"""What the config says about memory beyond the device. It communicates nothing."""

from ..offload import HostOffload
from .config import Config


def offload_of(config: Config) -> HostOffload | None:
    """The config's offload; None where everything stays on the device."""
    states, params = config.zero_optimization.offload_optimizer, config.zero_optimization.offload_param
    if states.device != "cpu":
        return None
    return HostOffload(pin_memory=states.pin_memory, parameters=params.device == "cpu")
