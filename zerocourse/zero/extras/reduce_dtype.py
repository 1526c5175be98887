"""Gradients that are sent in another dtype than they are added up in. Needed by: fp32 accumulation, sent in bf16.

Stages 0 and 1 add micro-batches up in the bucket, so it has the accumulation's dtype. For its reduction a copy in
`reduce_dtype` takes its place, and the sum is widened again. From stage 2 on the bucket is sent as it arrives, so it
has `reduce_dtype` from the start, and only the slice is added up. So stages 0 and 1 round the sum of the micro-batches when
they send it, where the others round each one, and their sum not at all. Where nothing is sent, on one rank, nothing is rounded.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from ...comm import Chain, Comm, Handle
from ..buffer import FlatBuffer


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
