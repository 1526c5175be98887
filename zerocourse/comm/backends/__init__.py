"""How collectives are carried out: one file per backend, each with the methods of `gloo.Gloo`.

A backend starts a collective and returns a `Transfer`. Counting and recording is the work of `Comm`. To add a backend
(such as a fake that sends nothing), write its file and name it in `choose`.
"""

from .first_call import make_communicator
from .gloo import Gloo, Transfer
from .nccl import Nccl, StagedGloo

__all__ = ["Gloo", "Nccl", "StagedGloo", "Transfer", "choose", "make_communicator"]

BY_NAME = {"gloo": Gloo, "nccl": Nccl}


def choose(device_type: str, configured: str) -> type[Gloo]:
    """The backend for tensors on a device in a group whose backends are `configured`, such as "cpu:gloo,cuda:nccl"."""
    names = dict(pair.split(":") for pair in configured.split(",") if ":" in pair)
    backend = BY_NAME.get(names.get(device_type, configured), Gloo)
    return StagedGloo if backend is Gloo and device_type == "cuda" else backend
