"""Hooks that torch.compile leaves alone. Needed by: torch.compile(model), before or after shard."""

import torch


def eager(hook):
    """torch.compile breaks its graph at this function and runs it as it is. (Its own decorator would load the compiler.)"""
    uncompiled = None

    def call(*args):
        nonlocal uncompiled
        if not torch.compiler.is_compiling():
            return hook(*args)
        uncompiled = uncompiled or torch.compiler.disable(hook)
        return uncompiled(*args)

    return call
