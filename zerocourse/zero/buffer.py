"""The flat buffer of a unit: every tensor that a stage touches, named once. It communicates nothing.

A *unit* is a part of the model that is gathered and freed as a whole (a transformer block, or what is left: the
root). Its parameters lie one after the other in one or more *flat buffers*, each of one dtype, with parameters that
are all trainable or all frozen, and at most `bucket_size` elements long (unless one parameter alone is longer). With N
ranks, n elements in the padded buffer, and `own` this rank's slice of it:

    full          (n,)    all parameters, gathered; the modules' parameters are views of it
    shard         (own,)  this rank's slice of the parameters; a view of `full`, or in stage 3 memory of its own
    master        (own,)  what the optimizer steps: `shard` itself, or fp32 copies when the model trains in half precision
    grad          (n,)    the bucket: this rank's gradients as they arrive, already divided by N; None when empty
    grad_shard    (own,)  this rank's slice of the gradient, summed over the ranks; None before the first reduction
                          (both in the parameters' dtype, unless `Precision` says otherwise)
    shard_params          one optimizer parameter, a 1-D view of `master`, by each of `shard_ranges`: the parts of
                          parameters that lie in this rank's slice

In stage 0 nothing is divided among ranks and `own` is the whole buffer.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import nn
from torch.optim import Optimizer

from ..comm import Handle
from ..layout.rankmap import Layout, ShardRange
from ..measure.storages import raw_grad, set_data
from .extras import pool
from .groups import Groups
from .held_tensors import HeldTensors
from .options import Precision
from .storage import FreeableStorage

HALF = (torch.bfloat16, torch.float16)
SLICE = "_zerocourse_slice"  # marks a gradient that holds only this rank's slice, so that torch's clip_grad_norm_ can be refused


class FlatBuffer(HeldTensors):
    """One flat buffer. `name` is the unit's, with a number when the unit has several.

    groups: the ranks that share it, where they are not just those of the layout (hybrid sharding).
    precision: the dtypes of its gradients.   shards_gradients: is the bucket sent at once, and not added up in?
    """

    def __init__(self, name: str, params: dict[str, nn.Parameter], layout: Layout, dtype: torch.dtype, stage_class, groups: Groups,
                 precision: Precision = Precision()):
        self.name, self.layout, self.dtype, self.groups = name, layout, dtype, groups
        self.params = {key: params[key] for key in layout.shapes}  # in the buffer's order
        self.shards_parameters = stage_class.shards_parameters
        # What a reduce-scatter writes on this rank, and what the optimizer updates: from stage 1 on they are the same.
        self.reduce_slice = layout.slice(groups.shard.rank)
        self.own = self.reduce_slice if stage_class.shards_optimizer else slice(0, layout.padded)
        self.divisor = groups.size  # gradients are averaged over so many ranks
        self.reduce_dtype, self.grad_dtype = precision.of_gradients(dtype)
        self.bucket_dtype = self.reduce_dtype if stage_class.shards_gradients else self.grad_dtype
        self.grad_factor: float | torch.Tensor | None = None  # to multiply half-precision gradients by, in fp32
        self.grad: torch.Tensor | None = None
        self.grad_shard: torch.Tensor | None = None
        self.reduction: Handle | None = None  # the bucket's reduction, while it is under way
        self.complete = False  # is every element of the bucket written?
        self.postpones_replicas = False  # is the sum over the replicas left to a later backward, or to the step?
        self.unsummed: torch.Tensor | None = None  # what was reduced, and is still to be summed over the replicas
        self.summing: torch.Tensor | None = None  # what is being summed over them
        self.counts_in_norm = all(getattr(param, "counts_in_norm", True) for param in params.values())
        self.trainable = 0  # parameters that record gradients now
        self.accumulators: dict[str, object] = {}  # by parameter: autograd's node that brings its gradient
        # Each a set of parameter names:
        self.unreduced: set[str] = set()  # they have a gradient in the bucket that has not been sent to a reduction
        self.deferred: set[str] = set()  # their gradient came while the bucket was being reduced, and is still at the parameter
        self.has_grad: set[str] = set()  # they have a gradient, on some rank, since the last zero_grad

    # -- parameters ---------------------------------------------------------------------------------------------------

    def make_full(self, device: torch.device) -> dict[str, torch.Tensor]:
        """Move the parameters into `full`, padded with zeros. Returns views for those on the meta device, which
        have no values yet."""
        exact = torch.float32 if self.dtype in HALF else self.dtype
        self.full = torch.zeros(self.layout.padded, dtype=exact, device=device)
        empty = {key: self.view_of(self.full, key) for key in self.params}
        for key, param in self.params.items():
            if not param.is_meta:
                param.data = empty.pop(key).copy_(param.detach())
        return empty

    def build(self, equalise) -> None:
        """Build shard, master and shard_params from `full`, of which the parameters become views.

        equalise(values): gives every rank the values of rank 0.
        """
        exact = self.full
        equalise(exact)
        self.full = exact.to(self.dtype)
        self.storage = FreeableStorage(self.full)
        self.views = {key: self.view_of(self.full, key) for key in self.params}
        self.make_shard(exact)
        updated = self.dtype.is_floating_point or self.dtype.is_complex
        self.shard_params = {part: nn.Parameter(self.master_of(part)) for part in (self.ranges() if updated else ())}
        self.show_full()

    def make_shard(self, exact: torch.Tensor) -> None:
        """Make shard and master. exact: the buffer (n,) before its values are rounded to the training dtype."""
        self.shard = self.full[self.own].clone() if self.shards_parameters else self.full[self.own]
        self.master = self.shard if exact.dtype is self.dtype else exact[self.own].clone()

    def view_of(self, flat: torch.Tensor, key: str) -> torch.Tensor:
        """A parameter's elements in `full` or `grad` (n,), in the parameter's shape."""
        return flat[self.layout.param_slice(key)].view(self.layout.shapes[key])

    @staticmethod
    def shard_view_of(own: torch.Tensor, part: ShardRange) -> torch.Tensor:
        """A parameter's part (1-D) of this rank's slice."""
        return own[part.at : part.at + part.stop - part.start]

    def ranges(self, share: slice | None = None) -> list[ShardRange]:
        """The parts of parameters in `share`, a slice of the buffer inside `own`, by default all of it. `at` counts from the
        beginning of `own`."""
        share = share or self.own
        return [replace(part, at=part.at + share.start - self.own.start) for part in self.layout.shard_ranges(share)]

    def master_of(self, part: ShardRange) -> torch.Tensor:
        """The master weights (1-D) of a part of this rank's slice."""
        return self.shard_view_of(self.master, part)

    def show_full(self) -> None:
        """Let the modules use `full`."""
        for key, param in self.params.items():
            set_data(param, self.views[key])

    @property
    def gathered(self) -> bool:
        """Is the memory of `full` held (or, in an empty buffer, is there nothing to hold)?"""
        return self.storage.held

    @property
    def steps_masters(self) -> bool:
        """Does the optimizer step fp32 copies?"""
        return self.master is not self.shard

    def round_masters(self) -> None:
        """After the optimizer's step: round the master weights into the slice that the others will receive."""
        if self.steps_masters:
            self.shard.copy_(self.master)

    def at_hand(self, writes: bool = False, optimizer: Optimizer | None = None) -> AbstractContextManager:
        """Inside, master weights and optimizer states have their values (and the shard, if the offload has its parameters too),
        wherever they usually lie.   writes: what is written into them is kept.   optimizer: has states that are new."""
        return nullcontext()

    def keep_written(self) -> None:
        """This rank's slice of what was written into `full`."""
        self.shard.copy_(self.full[self.own])

    def take_written(self, was_written: bool) -> None:
        """Where the model holds something else than the rounded master weight, somebody has written it: that becomes the master
        weight.

        was_written: has the model, or a user, been seen to write into the parameters?
        """
        if was_written and self.steps_masters:
            self.adopt(self.shard)

    def adopt(self, held: torch.Tensor, master: torch.Tensor | None = None) -> None:
        """held: what the model holds of this rank's slice (own,), or of the part of it that `master` has."""
        master = self.master if master is None else master
        changed = master.to(self.dtype) != held
        master.copy_(torch.where(changed, held.to(master.dtype), master))

    # -- gradients ----------------------------------------------------------------------------------------------------

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
        elif self.unsummed is None:
            self.unsummed = reduced
        else:
            self.unsummed = self.unsummed.to(self.grad_dtype).add_(reduced)

    def add_slice(self, reduced: torch.Tensor) -> None:
        """Add a slice (own,) that is summed over all ranks."""
        reduced = reduced.to(self.grad_dtype)
        self.grad_shard = reduced if self.grad_shard is None else self.grad_shard.add_(reduced)

    @property
    def lacks_replicas(self) -> bool:
        """Is something still to be summed over the replicas?"""
        return self.unsummed is not None

    def add_replicas(self) -> Handle | None:
        """Start the sum over the replicas, in `reduce_dtype`, unless a later backward is to do it. None: there is nothing to wait for."""
        if self.unsummed is None or self.postpones_replicas:
            return None
        self.summing, self.unsummed = self.unsummed.to(self.reduce_dtype), None
        handle = self.sum_replicas(self.summing)
        return self.sum_is_there() if handle is None else handle.then(self.sum_is_there)

    def sum_is_there(self) -> None:
        summed, self.summing = self.summing, None
        self.add_slice(summed)

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
        self.grad_shard, self.grad_factor, self.unsummed = None, None, None
        while self.deferred:
            self.params[self.deferred.pop()].grad = None
        self.has_grad.clear()
        if zeros:
            self.has_grad, self.grad_shard = zeros, self.full.new_zeros(self.shard.numel(), dtype=self.grad_dtype)
            self.publish_gradients()
