"""The gradients of a flat buffer: the bucket that fills and is reduced, and this rank's slice of the sum.

Nothing is reduced here (see `stage1`, `stage2`); of `grad` and `grad_shard`, and of the life of a bucket, the docstrings of
`buffer` and `passes.backward` tell.
"""

from collections.abc import Callable

import torch
from torch import nn

from ...comm import Handle
from ...layout.rankmap import Layout, ShardRange
from ...measure.storages import raw_grad
from ...memory import pool
from .groups import Groups
from .held_tensors import HeldTensors
from .replica_sum import ReplicaSum

HALF = (torch.bfloat16, torch.float16)
SLICE = "_zerocourse_slice"  # marks a gradient that holds only this rank's slice


class GradientBuffer(HeldTensors):
    """That half of a `FlatBuffer`, which has the parameters and the slices.

    dtypes: in which gradients are sent, and in which they are added up.   shards_gradients: is the bucket sent at once, and not
    added up in?
    """

    name: str
    layout: Layout
    groups: Groups
    params: dict[str, nn.Parameter]
    own: slice
    reduce_slice: slice
    view_of: Callable[[torch.Tensor, str], torch.Tensor]
    shard_view_of: Callable[[torch.Tensor, ShardRange], torch.Tensor]

    def __init__(self, groups: Groups, dtypes: tuple[torch.dtype, torch.dtype], shards_gradients: bool):
        self.divisor = groups.size  # gradients are averaged over so many ranks
        self.reduce_dtype, self.grad_dtype = dtypes
        self.bucket_dtype = self.reduce_dtype if shards_gradients else self.grad_dtype
        self.grad: torch.Tensor | None = None
        self.grad_shard: torch.Tensor | None = None
        self.grad_factor: float | torch.Tensor | None = None  # to multiply half-precision gradients by, in fp32
        self.reduction: Handle | None = None  # the bucket's, while it is under way
        self.replicas = ReplicaSum()
        self.complete = False  # is every element of the bucket written?
        self.trainable = 0  # parameters that record gradients now
        self.accumulators: dict[str, object] = {}  # by parameter: autograd's node that brings its gradient
        # Each a set of parameter names:
        self.unreduced: set[str] = set()  # they have a gradient in the bucket that has not been sent to a reduction
        self.deferred: set[str] = set()  # their gradient came while the bucket was being reduced, and is still at the parameter
        self.has_grad: set[str] = set()  # they have a gradient, on some rank, since the last zero_grad

    def collect(self, key: str, param: nn.Parameter) -> None:
        """Move a parameter's new gradient into the bucket, divided by the number of ranks, and free it."""
        gradient = param.grad.detach()  # backward(create_graph=True) makes gradients that record
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        gradient = gradient.to(torch.promote_types(gradient.dtype, self.bucket_dtype))  # before 1/N of it is rounded
        param.grad = None
        self.open_bucket()
        into = self.view_of(self.grad, key)
        if self.complete or key in self.unreduced:
            into.add_(gradient, alpha=1 / self.divisor)
        else:
            torch.mul(gradient, 1 / self.divisor, out=into)
        self.deferred.discard(key)
        self.unreduced.add(key)
        self.has_grad.add(key)

    def collect_deferred(self) -> None:
        """The reduction is over: collect the gradients that came meanwhile."""
        for key in sorted(self.deferred):
            self.collect(key, self.params[key])

    def open_bucket(self) -> None:
        """Make room for gradients. Stages 0 and 1 keep the bucket after they have reduced it, and only this rank's slice of the sum
        may count again, so the rest becomes zero: else the next reduction would add that sum N times. (Of replicas, only the
        first keeps it.)"""
        if self.grad is None:
            self.grad = pool.empty(self.layout.padded, like=self.full, dtype=self.bucket_dtype)
            self.complete = False  # a user's own `reduce` may have set `grad` to None itself
        elif not self.unreduced:
            kept = slice(0, 0) if self.groups.replicate and self.groups.replicate.rank else self.reduce_slice
            self.grad[: kept.start].zero_()
            self.grad[kept.stop :].zero_()

    def complete_bucket(self) -> None:
        """Zeros where no gradient came: the bucket can be reduced."""
        self.open_bucket()
        if not self.complete:
            for key in self.params.keys() - self.unreduced:
                self.view_of(self.grad, key).zero_()
            for gap in self.layout.padding:
                self.grad[gap].zero_()
        self.complete = True
        self.unreduced.clear()

    def take_bucket(self) -> torch.Tensor | None:
        bucket, self.grad = self.grad, None
        self.unreduced.clear()
        return bucket

    def slice_is_reduced(self) -> None:
        """The sum was written where it lay in the bucket."""
        self.grad_shard = self.grad[self.own]

    def sum_replicas(self, reduced: torch.Tensor) -> Handle | None:
        """Start adding up a reduced slice (own,), in place, over the ranks that hold the same slice; None where there are none."""
        return self.groups.sum_replicas(reduced, self.name)

    def accumulate(self, reduced: torch.Tensor) -> None:
        """Add a reduced slice (own,) to what earlier micro-batches left, of which perhaps the sum over the replicas is still to come."""
        if self.groups.replicate is None:
            self.add_slice(reduced)
        else:
            self.replicas.add(reduced, self.grad_dtype)

    def add_slice(self, reduced: torch.Tensor) -> None:
        """Add a slice (own,) that is summed over all ranks."""
        reduced = reduced.to(self.grad_dtype)
        self.grad_shard = reduced if self.grad_shard is None else self.grad_shard.add_(reduced)

    def add_replicas(self) -> Handle | None:
        """Start the sum over the replicas, unless it is postponed. None: there is nothing to wait for."""
        summing = self.replicas.begin(self.reduce_dtype)
        if summing is None:
            return None
        handle = self.sum_replicas(summing)
        return self.sum_is_there() if handle is None else handle.then(self.sum_is_there)

    def sum_is_there(self) -> None:
        self.add_slice(self.replicas.end())

    def publish_gradients(self) -> None:
        """Give each shard parameter its part of `grad_shard`. A parameter without a gradient on any rank keeps None.

        Master weights get it in fp32, which is memory of its own: for them this waits until the step of this buffer.
        """
        if self.grad_shard is None:
            return
        gradient = self.grad_shard.to(self.master.dtype)
        if self.grad_factor is not None:
            gradient *= self.grad_factor
        self.hand_out(gradient, self.has_grad)

    def hand_out(self, gradient: torch.Tensor, names: set[str]) -> None:
        """Give each shard parameter its part of a gradient (own,); names: of the parameters that have one."""
        for part, param in self.shard_params.items():
            if part.name in names:
                own_part = param.grad = self.shard_view_of(gradient, part).view(param.shape)
                setattr(own_part, SLICE, True)

    def reduced_gradient(self) -> torch.Tensor | None:
        """This rank's slice of the gradient so far, which may be written (see `gradient_was_written`)."""
        self.apply_factor()
        return self.grad_shard

    def gradient_was_written(self) -> None:
        """By somebody outside of a step."""
        if not self.steps_masters:
            self.publish_gradients()

    @staticmethod
    def norm_of(gradient: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return torch.linalg.vector_norm(torch.view_as_real(gradient) if gradient.is_complex() else gradient, dtype=dtype)

    def gradient_norm(self, dtype: torch.dtype) -> torch.Tensor:
        """The 2-norm of `grad_shard`, as a tensor."""
        norm = self.norm_of(self.grad_shard, dtype)
        return norm if self.grad_factor is None else norm * self.grad_factor

    def scale_gradient(self, factor: float | torch.Tensor) -> None:
        """Multiply `grad_shard`. Half precision is multiplied later, when it becomes fp32: here the product may be too small."""
        if self.grad_shard is None:
            return
        if self.grad_shard.dtype in HALF:
            self.grad_factor = factor if self.grad_factor is None else self.grad_factor * factor
        else:
            self.grad_shard.mul_(factor)

    def apply_factor(self) -> None:
        """More gradients will be added: multiply those that are there, now."""
        if self.grad_factor is not None:
            self.grad_shard.mul_(self.grad_factor)
            self.grad_factor = None

    def withdraw_gradients(self) -> None:
        """Take the gradients from the shard parameters."""
        for param in self.shard_params.values():
            param.grad = None

    def clear_gradients(self, set_to_none: bool = True) -> None:
        """Forget the gradients; without set_to_none, those that were there become zeros."""
        zeros = None if set_to_none else self.has_grad.copy()
        self.take_bucket()
        self.withdraw_gradients()
        self.grad_shard, self.grad_factor, self.replicas.waiting = None, None, None
        while self.deferred:
            self.params[self.deferred.pop()].grad = None
        self.has_grad.clear()
        if zeros:
            self.has_grad, self.grad_shard = zeros, self.full.new_zeros(self.shard.numel(), dtype=self.grad_dtype)
            self.publish_gradients()
