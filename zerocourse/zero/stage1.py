"""Stage 1: reduce-scatters the gradients, all-gathers the updated parameters; frees N-1 of N optimizer states.

Each rank updates only its slice, so it needs the optimizer's state of that slice alone: 4Ψ + 12Ψ/N bytes (arXiv
1910.02054, section 5.1). The full gradient stays; the reduced slice overwrites this rank's part of it.
"""

from collections.abc import Callable

from ..comm import Comm, Handle
from .buffers.buffer import FlatBuffer
from .ddp import DataParallel, StageOps


def reduce_scatter_in_place(flat: FlatBuffer, comm: Comm) -> Handle:
    """Sum this rank's slice of the bucket over the ranks. Ψ(N-1)/N elements."""
    own = flat.grad[flat.own]
    reduced = comm.reduce_scatter(flat.grad, flat.layout, flat.name, into=own).then(lambda: flat.sum_replicas(own))
    return reduced.then(flat.slice_is_reduced)


def sharded_step(flats: list[FlatBuffer], comm: Comm, optimizer_step: Callable[..., object]) -> object:
    """Every rank updates its slice, then all fetch the slices of the others. Ψ(N-1)/N elements.

    Buffer by buffer: while one is on its way, the next is updated.
    """
    result, handles = None, []
    for flat in flats:
        result = optimizer_step(flat)
        flat.round_masters()
        handles.append(comm.all_gather(flat.full, flat.layout, flat.name))
    for handle in handles:
        handle.wait()
    return result


class Stage1(DataParallel):
    """Optimizer states are sharded."""

    number = 1
    shards_optimizer = True
    ops = StageOps(reduce_scatter_in_place, sharded_step)
