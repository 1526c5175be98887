"""Every collective of the package: issued, counted in bytes, recorded as an event, and explained when it fails."""

from .backends.gloo import add_in_order
from .failure import fail_all
from .group import Comm
from .handle import Handle

__all__ = ["Comm", "Handle", "add_in_order", "fail_all"]
