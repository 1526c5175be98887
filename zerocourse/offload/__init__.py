"""Memory beyond the device: optimizer states, gradients and parameters in the host's or on disk, every byte moved counted."""

from .host_activations import HostActivations
from .host_link import HostLink
from .host_offload import HostOffload
from .on_disk.disk import Disk
from .on_disk.disk_offload import DiskOffload
from .tiers import Tier
from .tiling import TiledLinear, tile_gpt2

__all__ = ["Disk", "DiskOffload", "HostActivations", "HostLink", "HostOffload", "TiledLinear", "Tier", "tile_gpt2"]
