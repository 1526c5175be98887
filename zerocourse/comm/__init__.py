"""Issues every collective of the package, counts its bytes, records it as an event, and explains it when it fails."""

from .backends.gloo import add_in_order
from .group import Comm
from .handle import Chain, Finished, Handle
from .waits.failure import fail_all

__all__ = ["Chain", "Comm", "Finished", "Handle", "add_in_order", "fail_all"]
