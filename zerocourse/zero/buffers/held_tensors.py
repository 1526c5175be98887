"""What a flat buffer holds: its tensors and their bytes, by name and by kind."""

import torch
from torch import nn

from ...comm import Handle
from ...layout.rankmap import ShardRange
from ...measure.storages import raw_grad
from ...memory.storage import FreeableStorage
from .replica_sum import ReplicaSum


class HeldTensors:
    """Of a `FlatBuffer`, which has the tensors (see `buffer`)."""

    full: torch.Tensor
    shard: torch.Tensor
    master: torch.Tensor
    storage: FreeableStorage
    shard_params: dict[ShardRange, nn.Parameter]
    shards_parameters: bool
    steps_masters: bool
    gathered: bool
    grad: torch.Tensor | None
    grad_shard: torch.Tensor | None
    grad_dtype: torch.dtype
    reduction: Handle | None
    replicas: ReplicaSum

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """The real tensors by kind, for a ledger that reads their storages."""
        gradients = [self.grad_or_in_flight, self.grad_shard, *self.replicas.tensors, *self.handed_out]
        return {"parameters": [self.full, self.shard],
                "gradients": [tensor for tensor in gradients if tensor is not None],
                "optimizer": [self.master] if self.steps_masters else []}

    @property
    def handed_out(self) -> list[torch.Tensor]:
        """The gradients of the shard parameters that have one."""
        return [gradient for param in self.shard_params.values() if (gradient := raw_grad(param)) is not None]

    @property
    def grad_or_in_flight(self) -> torch.Tensor | None:
        """The bucket, also while it is still being sent and `grad` is None already (from stage 2 on)."""
        if self.grad is not None or self.replicas.under_way is not None:
            return self.grad
        return getattr(self.reduction, "tensor", None)  # a user's own handle may have none

    @property
    def bytes_by_tensor(self) -> dict[str, int]:
        """Bytes of the tensors above, each storage counted once, without looking into any."""
        has_slice = self.grad_shard is not None and (self.grad is None or self.grad_shard._base is not self.grad)
        copied = self.steps_masters and self.grad_dtype is not self.master.dtype and bool(self.handed_out)
        return {"full": self.storage.nbytes * self.gathered, "shard": self.shard.nbytes * self.shards_parameters,
                "bucket": getattr(self.grad_or_in_flight, "nbytes", 0),
                "grad_shard": self.shard.numel() * self.grad_dtype.itemsize * has_slice
                + sum(tensor.nbytes for tensor in self.replicas.tensors),
                "master": self.master.nbytes * self.steps_masters, "master_grads": self.master.nbytes * copied}

    @property
    def received_bytes(self) -> int:
        """Bytes into which the other ranks' slices of the bucket arrive, while its reduction is under way."""
        return getattr(self.reduction, "received", 0)
