"""Activation checkpointing of whole blocks: forward keeps a block's input, and backward computes the rest again.

It communicates nothing, and it works at every stage, because it lies inside of the unit: at stage 3 the parameters have
been gathered for the unit's backward before the block computes again, so nothing is gathered once more.
Source: Chen et al., arXiv 1604.06174; ZeRO, arXiv 1910.02054, section 6.1.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..errors import BadInput
from ..zero.buffers.unit import cut_into_units
from .keeping import Packing, keeping


def no_contexts() -> tuple:
    """For the forward, and for computing again."""
    return nullcontext(), nullcontext()


def checkpoint_blocks(model: nn.Module, number: int | None = None, context: Callable = no_contexts,
                      packing: Packing | None = None) -> list[str]:
    """Checkpoint the first `number` blocks of the model, or all of them. Call it before `shard`. Returns their names.

    context: makes a context for the forward and one for computing again, such as `selective.saving()`.
    packing: how the blocks' inputs are kept, such as `Int8()`; None: as they are.

    A block is what `shard` takes for a unit: an entry of a ModuleList, in any model, Hugging Face's included (whose
    cache of keys and values is switched off but for `generate`, as it would grow a second time when a block computes
    again). Dropout draws the same masks again, and a block's buffers, such as batch statistics, are updated once.
    Raises BadInput for a model without blocks, or with fewer than `number`.
    """
    blocks = [unit for unit in cut_into_units(model) if unit.module is not model]
    if not blocks or len(blocks) < (number or 0):
        has = f"{len(blocks)} blocks" if blocks else "no blocks (entries of a ModuleList)"
        asks = "every block" if number is None else f"{number} of them"
        raise BadInput(f"activation_checkpointing asks for {asks}: {type(model).__name__} has {has}")
    for block in blocks[:number]:
        block.module.forward = checkpointed(block.module, context, packing)
    config = getattr(model, "config", None)
    if getattr(config, "use_cache", False):
        config.use_cache = False
    return [block.name for block in blocks[:number]]


def checkpointed(block: nn.Module, context: Callable = no_contexts, packing: Packing | None = None) -> Callable:
    """The block's forward under a checkpoint; where no gradients are recorded it is the plain one."""
    forward = block.forward

    @wraps(forward)
    def wrapped(*args, **kwargs):
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        with keeping(block, packing, at_least=1) if packing is not None else nullcontext():
            return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    def contexts() -> tuple:
        first, again = context()
        if context is no_contexts:
            return first, Recomputing(block)
        return first, both(same_buffers(block), again)  # selective checkpointing would take the copies for the block's own work

    return wrapped


@contextmanager
def both(outer, inner) -> Iterator[None]:
    """Once, after which it keeps neither of them, nor what the inner one has saved."""
    with outer, inner:
        yield


class Recomputing:
    """Is around a block while it computes again, once for each backward through it."""

    def __init__(self, block: nn.Module):
        self.block = block

    def __enter__(self) -> None:
        self.entered = same_buffers(self.block)
        self.entered.__enter__()

    def __exit__(self, *error) -> bool | None:
        return self.entered.__exit__(*error)


@contextmanager
def same_buffers(block: nn.Module) -> Iterator[None]:
    """While the block computes again it changes copies of its buffers, so that they are updated once a forward.

    They are swapped and not copied back, because autograd would take that for a change of what it has saved.
    """
    own = [(module, {name: buffer for name, buffer in module._buffers.items() if buffer is not None})
           for module in block.modules()]
    try:
        for module, buffers in own:
            module._buffers.update({name: buffer.clone() for name, buffer in buffers.items()})
        yield
    finally:
        for module, buffers in own:
            module._buffers.update(buffers)
