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
    shard_params          one optimizer parameter, a 1-D view of `master`, for each of `shard_ranges`: the parts of
                          parameters that lie in this rank's slice

In stage 0 nothing is divided among ranks and `own` is the whole buffer.
"""

import torch
from torch import nn

from ..layout.rankmap import Layout, ShardRange
from ..measure.storages import raw_grad
from . import pool
from .groups import Groups
from .storage import FreeableStorage

HALF = (torch.bfloat16, torch.float16)
SLICE = "_zerocourse_slice"  # the mark of a gradient that is one rank's slice: torch's clip_grad_norm_ must not take it for all


class FlatBuffer:
    """One flat buffer. `name` is the unit's, with a number when the unit has several.

    groups: the ranks that share it, where they are not just those of the layout (hybrid sharding).
    """

    def __init__(self, name: str, params: dict[str, nn.Parameter], layout: Layout, rank: int, shards_optimizer: bool,
                 shards_parameters: bool, dtype: torch.dtype, groups: Groups | None = None):
        self.name, self.layout, self.dtype, self.rank = name, layout, dtype, rank
        self.params = {key: params[key] for key in layout.shapes}  # in the buffer's order
        self.shards_parameters, self.groups = shards_parameters, groups
        self.divisor = groups.size if groups else len(layout.bounds) - 1  # gradients are averaged over so many ranks
        self.own = layout.slice(rank) if shards_optimizer else slice(0, layout.padded)
        self.grad: torch.Tensor | None = None
        self.grad_shard: torch.Tensor | None = None
        self.trainable = 0  # parameters that record gradients now
        self.accumulators: dict[str, object] = {}  # by parameter: autograd's node that brings its gradient
        # Each a set of parameter names:
        self.awaited: set[str] = set()  # their gradient is still to come in this backward
        self.ready: set[str] = set()  # it came in this backward, after the bucket was last reduced
        self.filled: set[str] = set()  # their place in the bucket is written, by this micro-batch or earlier ones
        self.unreduced: set[str] = set()  # their place holds a gradient that no reduction took along yet
        self.deferred: set[str] = set()  # their gradient came while the bucket was under way: it waits at the parameter
        self.has_grad: set[str] = set()  # they have a gradient, on some rank, since the last zero_grad

    # -- parameters ---------------------------------------------------------------------------------------------------

    def begin(self, device: torch.device) -> dict[str, torch.Tensor]:
        """Move the parameters into `full`, padded with zeros. Returns the places of those on meta, which have no values yet."""
        exact = torch.float32 if self.dtype in HALF else self.dtype
        self.full = torch.zeros(self.layout.padded, dtype=exact, device=device)
        places = {key: self.full[self.layout.param_slice(key)].view(shape) for key, shape in self.layout.shapes.items()}
        for key, param in self.params.items():
            if not param.is_meta:
                param.data = places.pop(key).copy_(param.detach())
        return places

    def fill(self, equalise) -> None:
        """Build shard, master and shard_params from `full`, of which the parameters become views.

        equalise(values): makes the values the same on all ranks (rank 0's).
        """
        exact = self.full
        equalise(exact)
        self.full = exact.to(self.dtype)
        self.storage = FreeableStorage(self.full)
        self.views = {key: self.full[self.layout.param_slice(key)].view(shape) for key, shape in self.layout.shapes.items()}
        self.shard = self.full[self.own].clone() if self.shards_parameters else self.full[self.own]
        self.master = self.shard if exact.dtype is self.dtype else exact[self.own].clone()
        updated = self.dtype.is_floating_point or self.dtype.is_complex
        self.shard_ranges = self.layout.shard_ranges(self.own) if updated else []
        self.shard_params = {part.name: nn.Parameter(self.part(self.master, part)) for part in self.shard_ranges}
        nothing = torch.full((), float("nan") if self.dtype.is_floating_point else 0, dtype=self.dtype, device=exact.device)
        self.hidden_views = {key: nothing.expand(shape) for key, shape in self.layout.shapes.items()}
        if FreeableStorage(nothing).readable:
            FreeableStorage(nothing).free()
        self.bytes_always = (self.shard.nbytes if self.shards_parameters else 0) + (self.master.nbytes if self.steps_masters else 0)
        self.show()

    def show(self) -> None:
        """Let the modules see the gathered parameters."""
        for key, param in self.params.items():
            param.data = self.views[key]

    def hide(self) -> None:
        """Let the modules see the right shapes, and no memory."""
        for key, param in self.params.items():
            param.data = self.hidden_views[key]

    @property
    def gathered(self) -> bool:
        """Is the memory of `full` held (or, in an empty buffer, is there nothing to hold)?"""
        return self.storage.held

    @property
    def steps_masters(self) -> bool:
        """Does the optimizer step fp32 copies?"""
        return self.master is not self.shard

    def publish_shard(self) -> None:
        """After the optimizer's step: round the master weights into the slice that the others will receive."""
        if self.steps_masters:
            self.shard.copy_(self.master)

    # -- gradients ----------------------------------------------------------------------------------------------------

    def collect(self, key: str, param: nn.Parameter) -> None:
        """Move a parameter's new gradient into the bucket, divided by the number of ranks, and free it."""
        gradient = param.grad.detach()  # backward(create_graph=True) makes gradients that record
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        param.grad = None
        self.deferred.discard(key)
        self.open_bucket()
        place = self.grad[self.layout.param_slice(key)].view(gradient.shape)
        if key in self.filled:
            place.add_(gradient, alpha=1 / self.divisor)
        else:
            torch.mul(gradient, 1 / self.divisor, out=place)
        for keys in (self.filled, self.unreduced, self.ready, self.has_grad):
            keys.add(key)

    def collect_deferred(self) -> None:
        """The bucket is back: move the gradients that waited for it."""
        for key in list(self.deferred):
            self.collect(key, self.params[key])

    def open_bucket(self) -> None:
        """Make room for gradients. After an earlier reduction (stages 0 and 1) the bucket holds sums: keep this rank's slice and
        zero the rest, or the next reduction would add the same sum once per rank."""
        if self.grad is None:
            self.grad = pool.empty(self.layout.padded, like=self.full)
            self.filled.clear()  # a function given to shard() may have dropped the bucket by hand
        elif not self.unreduced:
            mine = self.layout.slice(self.rank)
            if self.groups is not None and self.groups.replicate is not None and self.groups.replicate.rank:
                mine = slice(0, 0)  # of replicas, the first keeps it
            self.grad[: mine.start].zero_()
            self.grad[mine.stop :].zero_()

    def complete_bucket(self) -> None:
        """Zeros where nothing arrived: the bucket is ready to be reduced."""
        self.open_bucket()
        for key in self.params.keys() - self.filled:
            self.grad[self.layout.param_slice(key)].zero_()
        self.grad[self.layout.numel :].zero_()
        self.filled = set(self.params)
        self.unreduced.clear()
        self.ready.clear()

    def drop_bucket(self) -> torch.Tensor | None:
        bucket, self.grad = self.grad, None
        self.filled.clear()
        self.unreduced.clear()
        return bucket

    def sum_replicas(self, reduced: torch.Tensor) -> torch.Tensor:
        """The reduced slice (own,), added up over the ranks that hold the same slice, where there are some."""
        return reduced if self.groups is None else self.groups.sum_replicas(reduced, self.name)

    def accumulate(self, reduced: torch.Tensor) -> None:
        """Add a reduced slice (own,) to what earlier micro-batches left."""
        self.sum_replicas(reduced)
        if self.grad_shard is None:
            self.grad_shard = reduced
        else:
            self.grad_shard.add_(reduced)

    def clear_gradients(self, set_to_none: bool = True) -> None:
        """Forget the gradients; without set_to_none, those that were there become zeros."""
        zeros = None if set_to_none else self.has_grad.copy()
        self.drop_bucket()
        self.grad_shard = None
        while self.deferred:
            self.params[self.deferred.pop()].grad = None
        self.ready.clear()
        self.has_grad.clear()
        for part in self.shard_params.values():
            part.grad = None
        if zeros:
            self.has_grad, self.grad_shard = zeros, torch.zeros_like(self.shard)
            self.publish_gradients()

    def publish_gradients(self) -> None:
        """Give each shard parameter its part of `grad_shard`. A parameter without a gradient on any rank keeps None.

        Master weights get it in fp32, which is memory of its own: for them this waits until just before the step.
        """
        if self.grad_shard is None:
            return
        gradient = self.grad_shard.to(self.master.dtype)
        for part in self.shard_ranges:
            if part.name in self.has_grad:
                own_part = self.shard_params[part.name].grad = self.part(gradient, part)
                setattr(own_part, SLICE, True)

    @staticmethod
    def part(own: torch.Tensor, part: ShardRange) -> torch.Tensor:
        """A parameter's part (1-D) of this rank's slice."""
        return own[part.at : part.at + part.stop - part.start]

    # -- what it holds ------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """The real tensors by kind, for a ledger that reads their storages."""
        gradients = [self.grad, self.grad_shard, *map(raw_grad, self.shard_params.values())]
        return {"parameters": [self.full, self.shard],
                "gradients": [tensor for tensor in gradients if tensor is not None],
                "optimizer": [self.master] if self.steps_masters else []}

    @property
    def bytes_held(self) -> int:
        """Bytes of the tensors above, each storage counted once, without looking into any."""
        held = self.bytes_always + (self.storage.nbytes if self.gathered else 0)
        if self.grad is not None:
            held += self.storage.nbytes
        if self.grad_shard is not None and (self.grad is None or self.grad_shard._base is not self.grad):  # not in the bucket
            held += self.shard.nbytes
        if self.steps_masters and any(raw_grad(part) is not None for part in self.shard_params.values()):
            held += self.master.nbytes  # the gradient in fp32
        return held
