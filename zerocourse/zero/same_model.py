"""Have all ranks the same model, and do they shard it in the same way? Asked once, before anything is changed."""

from collections.abc import Callable
from hashlib import sha256
from itertools import zip_longest

from torch import nn

from ..errors import BadInput


def describe(model: nn.Module) -> list[str]:
    """Each parameter and buffer in words: what all ranks must agree on."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    return [f"{name} {tuple(tensor.shape)} {tensor.dtype}{' trained' * tensor.requires_grad}" for name, tensor in tensors]


def check_same(gather: Callable[[object], list], mine: list[str]) -> None:
    """Raise BadInput, on every rank, that names the first thing in which a rank differs from rank 0.

    gather: brings every rank's object to all. Ranks that agree send a digest: N lists on N ranks would be long to read.
    """
    digests = gather(sha256("\n".join(mine).encode()).hexdigest())
    by_rank = gather(mine) if len(set(digests)) > 1 else []
    for rank, other in enumerate(by_rank):
        for here, there in zip_longest(by_rank[0], other, fillvalue="nothing more"):
            if here != there:
                raise BadInput(f"the ranks disagree on the model: rank 0 has {here}, rank {rank} has {there}; "
                               "build the same model, and shard it in the same way, on every rank")
