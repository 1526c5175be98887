"""Says where this rank computes, and starts the process group: nccl where every rank has a GPU of its own, gloo everywhere else.

The environment's ZEROCOURSE_DEVICE is the one switch, and it is read here alone:

    cpu     on the CPU, also where there are GPUs, which are not touched then
    cuda    on a GPU; an error where there is none
    auto    on a GPU if there is one (without the variable, too)
"""

import atexit
import os
import socket
import warnings
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from ..errors import BadInput
from .attempt import MEET_SECONDS, agree_on_attempt
from .launchers import PORT, missing_variables

BOTH = "cpu:gloo,cuda:nccl"
_has_made_group = False
SWITCH, PLACES = "ZEROCOURSE_DEVICE", ("cpu", "cuda", "auto")


def local_rank() -> int:
    """This rank's number on its machine; 0 outside torchrun."""
    return int(os.environ.get("LOCAL_RANK", 0))


def uses_gpu() -> bool:
    """Does this process compute on a GPU? Raises BadInput where the switch has another value, or says cuda and there is none."""
    place = os.environ.get(SWITCH, "auto")
    if place not in PLACES:
        raise BadInput(f"{SWITCH} is {place[:60]!r}: it must be cpu, cuda or auto")
    if place == "cpu":
        return False
    found = torch.cuda.is_available()
    if place == "cuda" and not found:
        raise BadInput(f"{SWITCH} is cuda, and torch finds no GPU here" + ("" if torch.version.cuda or torch.version.hip else
                       ", because this torch was built without CUDA") + ": set it to cpu or auto")
    return found


def device() -> torch.device:
    """This rank's device: the CPU, or a GPU, which ranks share if there are more ranks than GPUs.

    Without a launcher it is the GPU that the script has selected, else the first. Raises what `uses_gpu` raises.
    """
    if not uses_gpu():
        return torch.device("cpu")
    if "LOCAL_RANK" not in os.environ and torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cuda", local_rank() % torch.cuda.device_count())


def init(timeout_seconds: float = 120, backend: str | None = None, init_method: str | None = None, rank: int = -1,
         world_size: int = -1, port: int = PORT, discover: bool = True) -> None:
    """Initialise `torch.distributed` for this rank, and select its GPU. A process group that exists is used as it is.

    The ranks are those of the launcher: torchrun, DeepSpeed's, mpirun or srun (see `launchers`), whose missing variables are set
    for the script, too. Without one there is one rank, which needs neither a port nor a file.
    A collective that waits longer than `timeout_seconds` raises an error. When the process ends, so does the group.

    backend: nccl or gloo; by default what the machine and the switch allow.   init_method, rank, world_size: as torch has them,
    instead of what the launcher says.   port, discover: see `launchers.missing_variables`.
    Raises BadInput where the variables and arguments do not say who the ranks are, and what `uses_gpu` raises.
    """
    if not dist.is_initialized():
        os.environ.update(missing_variables(os.environ, port, discover))
    here = device()
    if here.type == "cuda":
        torch.cuda.set_device(here)
    if dist.is_initialized():
        return
    if backend not in (None, "gloo", "nccl", BOTH):
        raise BadInput(f"the backend is {str(backend)[:60]!r}: it must be 'nccl' or 'gloo', or left out, and then follows from the machine")
    global _has_made_group
    _has_made_group, timeout = True, timedelta(seconds=timeout_seconds)
    alone = "RANK" not in os.environ or (os.environ["WORLD_SIZE"] == "1" and "MASTER_ADDR" not in os.environ)
    if alone and init_method is None and rank == world_size == -1:
        store = dist.HashStore()
        dist.init_process_group(agree_on_backend(store, 0, 1, here, backend), store=store, rank=0, world_size=1, timeout=timeout)
        return
    store, rank, world_size = _meet(init_method or "env://", rank, world_size, timeout)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and init_method is None:
        # After an elastic restart the agent's store still holds the addresses of ranks that are gone.
        store = dist.PrefixStore(agree_on_attempt(store, rank, world_size, min(timeout_seconds, MEET_SECONDS)), store)
    if "LOCAL_WORLD_SIZE" not in os.environ:
        os.environ["LOCAL_WORLD_SIZE"] = str(_count_ranks_here(store, world_size))
    dist.init_process_group(agree_on_backend(store, rank, world_size, here, backend), store=store, rank=rank,
                            world_size=world_size, timeout=timeout)


@atexit.register
def _leave() -> None:
    """Destroy the group, which waits for gloo's threads: one that still has a tensor when Python is gone aborts the process.

    What a peer that is gone would have sent fails at once; what one never sends, at the group's time-out.
    """
    if _has_made_group and dist.is_initialized():
        with suppress(RuntimeError, ValueError):
            dist.destroy_process_group()


def _meet(init_method: str, rank: int, world_size: int, timeout: timedelta) -> tuple[dist.Store, int, int]:
    """(store, rank, world size); -1 stands for what the environment says. Raises BadInput where neither does."""
    if init_method != "env://":
        rank = int(os.environ.get("RANK", -1)) if rank < 0 else rank
        world_size = int(os.environ.get("WORLD_SIZE", -1)) if world_size < 0 else world_size
    try:
        return next(dist.rendezvous(init_method, rank, world_size, timeout=timeout))
    except ValueError as error:  # an argument, or a variable, that is missing
        raise BadInput(f"the ranks cannot meet by init_method={init_method!r}, rank={rank} and world_size={world_size}: {error}") from error


def _count_ranks_here(store: dist.Store, world_size: int) -> int:
    """How many ranks have this machine's name. Waits for all of them."""
    here = f"zerocourse/machine/{socket.gethostname()}"
    store.add(here, 1)
    if store.add("zerocourse/arrived", 1) == world_size:
        store.set("zerocourse/all", "1")
    store.wait(["zerocourse/all"])
    return store.add(here, 0)


def run_id() -> str:
    """What torchrun calls this run: the same after an elastic restart. "" outside torchrun."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")


def max_restarts() -> int:
    """How often torchrun may start the ranks again when one of them fails; 0 outside torchrun."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0))


def agree_on_backend(store: dist.Store, rank: int, world_size: int, here: torch.device, asked: str | None = None) -> str:
    """The backends of the process group, the same on all ranks: NCCL for tensors on GPUs if no two ranks share one. Collective.

    A launcher may show each rank a single GPU, so what counts is which one it is, and not how many a rank sees: rank 0 compares
    the identities that GPUs have by themselves. Warns where nccl is asked for and cannot be.
    """
    if asked == "gloo":
        return asked
    gpus = 0
    if dist.is_nccl_available():  # as on all ranks, because they run the same torch
        store.set(f"zerocourse/gpu of rank {rank}", "" if here.type == "cpu" else str(torch.cuda.get_device_properties(here).uuid))
        if rank == 0:
            known = {store.get(f"zerocourse/gpu of rank {each}") for each in range(world_size)}
            store.set("zerocourse/gpus", str(len(known - {b""})))
        gpus = int(store.get("zerocourse/gpus"))
    if gpus == world_size:
        return BOTH
    if asked is not None:
        warnings.warn(f"the backend is {asked!r}, and {world_size} ranks use {gpus} GPUs: they communicate over gloo", stacklevel=3)
    return "gloo"
