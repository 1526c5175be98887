"""Every collective of the package: issued, counted in bytes, recorded as an event, and explained when it fails."""

from .group import Comm, Handle, add_in_order, fail_all

__all__ = ["Comm", "Handle", "add_in_order", "fail_all"]
