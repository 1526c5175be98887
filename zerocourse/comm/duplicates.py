"""Further Comms of a Comm's ranks, for transfers that may not wait for each other: NCCL has a stream for each process group.

torch makes a process group only where all ranks of the world ask for it, in one order, its members or not. So whoever cuts
the world into groups makes them here, all of them on every rank, and what makes further ones later knows them all.
"""

import weakref
from datetime import timedelta

import torch.distributed as dist

from ..errors import BadInput
from .group import Comm, group_timeout
from .torch_private import worlds

MOST_CTAS = 4  # of a GPU, for one message: a communicator takes memory for each of them (with NCCL's own choice about 100 MB)
_partitions = weakref.WeakKeyDictionary()  # by process group: all that were made with it
_further = weakref.WeakKeyDictionary()  # by process group: those made of the same ranks, which pipelines use one after the other


def new_group(partition: list[list[int]], timeout: timedelta | None = None, backend: str | None = None, options=None) -> dist.ProcessGroup:
    """This rank's group of a partition, which has every rank of the world once. Collective on all ranks of the world.

    timeout, backend: None: those of the default group.   options: of NCCL (`dist.ProcessGroupNCCL.Options`).
    """
    group, _ = dist.new_subgroups_by_enumeration(partition, timeout or group_timeout(None), backend, options)
    _partitions[group] = partition
    return group


def duplicates(comm: Comm, number: int) -> list[Comm]:
    """So many Comms of the same ranks, each on a process group of its own, that share the recorder and the counters of `comm`.

    Collective on all ranks of the world, of which each asks for so many of a Comm of the same partition. Those groups that are
    there already are used again. Raises BadInput where it is not known which groups the other ranks are in.
    """
    of, world = comm.group or dist.group.WORLD, list(range(dist.get_world_size()))
    whole = dist.get_process_group_ranks(of) == world
    if not whole and of not in _partitions:
        raise BadInput(f"what runs on the ranks {dist.get_process_group_ranks(of)} needs {number} more process groups for NCCL, which all "
                       f"{len(world)} ranks must make: give it a Comm of a MeshComms")
    groups = [group for reference in _further.get(of, []) if is_there(group := reference())]
    while len(groups) < number:
        groups.append(new_group([world] if whole else _partitions[of], comm.timeout, dist.get_backend(of), options(comm)))
    _further[of] = [weakref.ref(group) for group in groups]
    return [sharing(comm, group) for group in groups[:number]]


def sharing(comm: Comm, group: dist.ProcessGroup) -> Comm:
    """A Comm of this group that counts and records where `comm` does."""
    other = Comm(group, comm.timeout.total_seconds(), comm.recorder, comm.report.names)
    other.sent, other.elements = comm.sent, comm.elements
    return other


def is_there(group: dist.ProcessGroup | None) -> bool:
    """Has nobody destroyed it? The same on all ranks, also where one still refers to it."""
    return group in worlds.pg_map


def options(comm: Comm):
    """Of NCCL, for a group of which each rank sends or receives one message at a time; None without NCCL."""
    if not dist.is_nccl_available():
        return None
    wanted = dist.ProcessGroupNCCL.Options()
    wanted._timeout = comm.timeout
    wanted.config.max_ctas = MOST_CTAS
    return wanted
