"""Dropout in a region whose activations differ between the ranks, where every rank needs a mask of its own.

All ranks of the group begin with the same random state, so that what is replicated gets the same mask everywhere. Inside
the region a rank uses a state made of the next number of the common one and of its own rank. The common state goes on
alike on all ranks, and a forward that is run again, as in checkpointing, finds the same masks, because the state that
is set back for it is the only one.
"""

from collections.abc import Callable
from functools import wraps

import torch
from torch import nn

from ...comm import Comm


def own_masks(module: nn.Module, comm: Comm) -> None:
    """From now on `module` draws its random numbers apart from other ranks, while it trains."""
    module.forward = in_own_stream(module, module.forward, comm)


def in_own_stream(module: nn.Module, forward: Callable, comm: Comm) -> Callable:
    @wraps(forward)
    def run(*args, **kwargs):
        if not module.training:
            return forward(*args, **kwargs)
        seed = comm.numbers(torch.randint(2**31, ()))[0]  # on the CPU, so that no GPU is waited for
        device = next((value.device for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), torch.device("cpu"))
        with torch.random.fork_rng([device] if device.type == "cuda" else []):  # by default of all GPUs that the machine has
            torch.manual_seed(seed * comm.world_size + comm.rank)
            return forward(*args, **kwargs)

    return run
