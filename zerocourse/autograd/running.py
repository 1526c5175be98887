"""Is a forward running now? Needed by: a model that calls itself, which a forward that Ctrl-C has ended looks like."""

import sys

from torch import nn


def is_running(module: nn.Module) -> bool:
    """Is the module's forward on Python's stack?"""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "forward" and frame.f_locals.get("self") is module:
            return True
        frame = frame.f_back
    return False
