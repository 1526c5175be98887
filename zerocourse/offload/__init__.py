"""Memory beyond the device: optimizer states, gradients and parameters in the host's, moved over a counted link."""

from .host_link import HostLink
from .host_offload import HostOffload
from .tiers import Tier
from .tiling import TiledLinear, tile_gpt2

__all__ = ["HostLink", "HostOffload", "TiledLinear", "Tier", "tile_gpt2"]
