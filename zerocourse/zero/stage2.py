"""Stage 2: reduce-scatters each bucket as its gradients arrive, and frees it; only the slice is kept.

2Ψ + 14Ψ/N bytes (arXiv 1910.02054, section 5.2). Every micro-batch is reduced, so that no full gradient survives it:
with accumulation over G micro-batches (G+1)Ψ(N-1)/N elements are sent a step instead of 2Ψ(N-1)/N.
"""

from ..comm import Comm, Handle
from .buffers.buffer import FlatBuffer
from .ddp import StageOps
from .stage1 import Stage1, sharded_step


def reduce_scatter_and_free(flat: FlatBuffer, comm: Comm) -> Handle:
    """Sum this rank's slice of the bucket over the ranks, add it to `grad_shard`, free the bucket."""
    bucket = flat.take_bucket()  # the handle has the last reference: the memory goes when the sum is there
    return comm.reduce_scatter(bucket, flat.layout, flat.name, done=flat.accumulate).then(flat.add_replicas)


class Stage2(Stage1):
    """Optimizer states and gradients are sharded."""

    number = 2
    shards_gradients = True
    ops = StageOps(reduce_scatter_and_free, sharded_step)

    @property
    def reduces_now(self) -> bool:
        return True
