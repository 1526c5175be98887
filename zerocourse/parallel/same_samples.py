"""The ranks that have parts of one model must read the same samples, and draw the same dropout masks: otherwise they
train on a mixture, and nothing tells."""

from collections.abc import Callable, Collection, Iterable
from hashlib import sha256

import torch
from torch import Tensor, nn

from ..comm import Comm
from ..errors import BadInput


def check_same_samples(values: Iterable[object], comm: Comm, name: Callable[[int], str]) -> None:
    """Compare the tensors among `values` by their digests, over the ranks of `comm`, which `name` names. Collective.

    Raises BadInput, on a rank whose tensors are not those of another. Reads values: for a first step, and not for each.
    """
    mine = [digest(value) for value in values if isinstance(value, Tensor)]
    for other in others(mine, comm):
        raise BadInput(f"{name(comm.rank)} and {name(other)} have parts of one model and were given different samples: "
                       "data differ from replica to replica, along dp, and not inside of one")


def check_same_masks(modules: Collection[nn.Module], comm: Comm, name: Callable[[int], str]) -> None:
    """The same of the random states, where the modules have dropout, for tensor-parallel ranks: between the regions all
    of them have the same activations, so they must drop the same ones. Collective where there is dropout. Raises
    BadInput."""
    if not any(isinstance(layer, nn.Dropout) and layer.p for module in modules for layer in module.modules()):
        return
    gpus = dict.fromkeys(param.device for module in modules for param in module.parameters() if param.is_cuda)
    mine = [digest(torch.get_rng_state()), *(digest(torch.cuda.get_rng_state(gpu)) for gpu in gpus)]
    for other in others(mine, comm):
        raise BadInput(f"{name(comm.rank)} and {name(other)} have the same activations and would drop different ones, "
                       "because their random states differ: give torch.manual_seed one number for all ranks of the "
                       "group")


def digest(tensor: Tensor) -> list:
    """Shape, dtype and contents, as JSON can hold them."""
    tensor = tensor.detach().cpu().contiguous()
    return [list(tensor.shape), str(tensor.dtype), sha256(tensor.flatten().view(torch.uint8).numpy()).hexdigest()]


def others(mine: list, comm: Comm) -> list[int]:
    """The ranks that have something else. Collective."""
    return [rank for rank, theirs in enumerate(comm.all_gather_object(mine)) if theirs != mine]
