"""What each micro-batch's mean loss weighs in that of its batch: as much as its targets are of the batch's.

On a GPU the numbers of targets stay there, because to read them would wait for all that it still computes.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Number = int | float | Tensor  # of no dimensions


def count_targets(targets: Tensor, *others: Tensor) -> int | Tensor:
    """What a mean over the targets divides by: class numbers but those of -100, or the rows of anything else. Of several
    tensors the first one counts."""
    if targets.is_floating_point():
        return len(targets)
    counted = (targets != -100).sum()
    return int(counted) if targets.device.type == "cpu" else counted


def shares_of(targets: Sequence[tuple[Tensor, ...]], count: Callable[..., Number], ends: Sequence[int]) -> list[Number]:
    """The share of each micro-batch; all of a batch are 1 together, or 0 where it has no targets.

    count(*target): of a micro-batch.   ends: the last micro-batch of each batch; what comes behind the last one weighs nothing.
    """
    counts = [count(*target) for target in targets]
    shares, start = [], 0
    for end in [last + 1 for last in ends] or [len(counts)]:
        total = sum(counts[start:end])
        total = total.double().clamp(min=1) if isinstance(total, Tensor) else max(total, 1)
        shares += [count / total for count in counts[start:end]]
        start = end
    return shares + [0.0] * (len(counts) - len(shares))


def weigh(mean: Tensor, share: Number) -> tuple[Tensor, Tensor]:
    """(what the backward begins at, what it adds to the batch's loss). Where no target counts, the mean is 0/0: NaN as a number,
    though its gradients are zeros."""
    if isinstance(share, Tensor):
        output = mean * share.to(mean.dtype)
        return output, torch.where(share > 0, output.detach(), 0)
    output = mean * share
    return output, output.detach() if share else torch.zeros_like(output.detach())
