"""Starts the process group: nccl where every rank of this machine has a GPU of its own, gloo everywhere else."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from .attempt import MEET_SECONDS, agree_on_attempt


def local_rank() -> int:
    """This rank's number on its machine; 0 outside torchrun."""
    return int(os.environ.get("LOCAL_RANK", 0))


def ranks_here(otherwise: int) -> int:
    """How many ranks the launcher has started on this machine; outside torchrun what is given."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", otherwise))


def device() -> torch.device:
    """This rank's device: the CPU, or a GPU, which ranks share if there are more ranks than GPUs."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank() % torch.cuda.device_count())


def init(timeout_seconds: float = 120) -> None:
    """Initialise `torch.distributed` for this rank, and select its GPU. A process group that exists is used as it is.

    Under torchrun the ranks are torchrun's. Outside it there is one rank, which needs neither a port nor a file.
    A collective that waits longer than `timeout_seconds` raises an error.
    """
    here = device()
    if here.type == "cuda":
        torch.cuda.set_device(here)
    if dist.is_initialized():
        return
    timeout = timedelta(seconds=timeout_seconds)
    if "RANK" not in os.environ:
        dist.init_process_group(_backend(1), store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
        return
    store, rank, world_size = next(dist.rendezvous("env://", timeout=timeout))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # After an elastic restart the agent's store still holds the addresses of ranks that are gone.
        store = dist.PrefixStore(agree_on_attempt(store, rank, world_size, min(timeout_seconds, MEET_SECONDS)), store)
    dist.init_process_group(_backend(int(os.environ["LOCAL_WORLD_SIZE"])), store=store, rank=rank,
                            world_size=world_size, timeout=timeout)


def run_id() -> str:
    """What torchrun calls this run: the same after an elastic restart. "" outside torchrun."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")


def max_restarts() -> int:
    """How often torchrun may start the ranks again when one of them fails; 0 outside torchrun."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0))


def _backend(local_world_size: int) -> str:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() and dist.is_nccl_available() else 0
    return "cpu:gloo,cuda:nccl" if gpus >= local_world_size else "gloo"
