"""What `Precision` asks for beside the dtypes of the buffers themselves.

Gradients may be sent in another dtype than they are added up in. Stages 0 and 1 add micro-batches up in the bucket, so it has the accumulation's dtype. For its reduction a copy in
`reduce_dtype` takes its place, and the sum is widened again. From stage 2 on the bucket is sent as it arrives, so it
has `reduce_dtype` from the start, and only the slice is added up. So stages 0 and 1 round the sum of the micro-batches when
they send it, where the others round each one, and their sum not at all. Where nothing is sent, on one rank, nothing is rounded.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from ...comm import Chain, Comm, Handle
from .buffer import HALF, FlatBuffer


def cast_statistics(model: nn.Module) -> None:
    """Running statistics get the dtype of weights that train in half precision: no kernel takes them in another one.

    DeepSpeed's cast of the model takes every buffer along. Here the others stay as they are: rotary frequencies in bf16, for
    example, would be wrong positions.
    """
    for module in model.modules():
        weight = module._parameters.get("weight")
        if getattr(module, "running_mean", None) is not None and weight is not None and weight.dtype in HALF:
            module._buffers |= {name: buffer.to(weight.dtype) for name, buffer in module._buffers.items()
                                if buffer is not None and buffer.is_floating_point()}


def sent_as_chosen(ops, flats: Iterable[FlatBuffer]):
    """The operations of a stage; where buffers need it, their `reduce` sends in `reduce_dtype`."""
    if all(flat.bucket_dtype is flat.reduce_dtype or flat.groups.size == 1 for flat in flats):
        return ops
    return replace(ops, reduce=in_reduce_dtype(ops.reduce))


def in_reduce_dtype(reduce: Callable[[FlatBuffer, Comm], Handle | None]) -> Callable[[FlatBuffer, Comm], Handle | None]:
    def narrowed(flat: FlatBuffer, comm: Comm) -> Handle | None:
        if flat.bucket_dtype is flat.reduce_dtype:
            return reduce(flat, comm)
        flat.grad = flat.grad.to(flat.reduce_dtype)
        return Chain(reduce(flat, comm), partial(widen, flat))

    return narrowed


def widen(flat: FlatBuffer) -> None:
    """Bucket and slice are in the accumulation's dtype again."""
    flat.grad = flat.grad.to(flat.bucket_dtype)
    flat.grad_shard = flat.grad[flat.own]
