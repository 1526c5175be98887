"""The ranks that have parts of one model must read the same samples: otherwise they train on a mixture, and nothing tells."""

from collections.abc import Callable, Iterable
from hashlib import sha256

import torch
from torch import Tensor

from ..comm import Comm
from ..errors import BadInput


def check_same_samples(values: Iterable[object], comm: Comm, name: Callable[[int], str]) -> None:
    """Compare the tensors among `values` by their digests, over the ranks of `comm`, which `name` names. Collective.

    Raises BadInput, on a rank whose tensors are not those of another. Reads values: for a first step, and not for each.
    """
    tensors = [value.detach().cpu().contiguous() for value in values if isinstance(value, Tensor)]
    mine = [[list(each.shape), str(each.dtype), sha256(each.flatten().view(torch.uint8).numpy()).hexdigest()] for each in tensors]
    for other, theirs in enumerate(comm.all_gather_object(mine)):
        if theirs != mine:
            raise BadInput(f"{name(comm.rank)} and {name(other)} have parts of one model and were given different samples: "
                           "data differ from replica to replica, along dp, and not inside of one")
