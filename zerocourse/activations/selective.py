"""Selective recomputation: a checkpointed block keeps the outputs of some operations, and computes the others again.

Source: Korthikanti et al., arXiv 2205.05198, section 5; the policy is torch's own (`torch.utils.checkpoint`).
"""

from collections.abc import Callable, Iterable

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from ..comm.torch_private import OpOverload

MATRIX_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
"""A linear layer is `addmm` with a bias and `mm` without one, so a list with one of the two misses the other kind."""


def saving(operations: Iterable[OpOverload] = MATRIX_PRODUCTS) -> Callable:
    """A `context_fn` for torch's checkpoint: the outputs of these operations are kept. Which experts a router has chosen
    (`topk`) is kept always, or they could be others the second time."""
    kept = {*operations, torch.ops.aten.topk.default}

    def policy(context, operation, *args, **kwargs) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operation in kept else CheckpointPolicy.PREFER_RECOMPUTE

    return lambda: create_selective_checkpoint_contexts(policy)
