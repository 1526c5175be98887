"""The second sum of hybrid sharding: over the ranks that hold the same slice. What of it is still to come, for one flat buffer."""

import torch


class ReplicaSum:
    """postponed: is it left to a later backward, or to the step? That link is the slow one, so it is used once in a step.
    waiting: what was reduced, and is still to be added up over the replicas (own,).   under_way: what is being added up.
    """

    def __init__(self):
        self.postponed = False
        self.waiting: torch.Tensor | None = None
        self.under_way: torch.Tensor | None = None

    def add(self, reduced: torch.Tensor, dtype: torch.dtype) -> None:
        """One more micro-batch is reduced (own,). Several are added up in `dtype`."""
        self.waiting = reduced if self.waiting is None else self.waiting.to(dtype).add_(reduced)

    def begin(self, dtype: torch.dtype) -> torch.Tensor | None:
        """What is now to be added up (own,), in `dtype`; None: nothing, or not yet."""
        if self.waiting is None or self.postponed:
            return None
        self.under_way, self.waiting = self.waiting.to(dtype), None
        return self.under_way

    def end(self) -> torch.Tensor:
        """It is added up."""
        summed, self.under_way = self.under_way, None
        return summed

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [tensor for tensor in (self.waiting, self.under_way) if tensor is not None]
