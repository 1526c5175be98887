"""The flat buffer of a unit: every tensor that a stage touches, named once. It communicates nothing.

A *unit* is a part of the model that is gathered and freed as a whole (a transformer block, or what is left: the
root). Its parameters lie one after the other in one or more *flat buffers*, each of one dtype, with parameters that
are all trainable or all frozen, and at most `bucket_size` elements long (unless one parameter alone is longer). With N
ranks, n elements in the padded buffer, and `own` this rank's slice of it:

    full          (n,)    all parameters, gathered; the modules' parameters are views of it
    shard         (own,)  this rank's slice of the parameters; a view of `full`, or in stage 3 memory of its own
    master        (own,)  what the optimizer steps: `shard` itself, or fp32 copies when the model trains in half precision
                          (a model that is frozen and has no optimizer has none)
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

from ...comm import Comm
from ...layout.rankmap import Layout, ShardRange
from ...measure.storages import set_data
from ...memory.storage import FreeableStorage
from ..options import Precision
from .gradients import HALF, GradientBuffer
from .groups import Groups

SHARDED = "_zerocourse_sharded"  # marks a parameter of a flat buffer, and its shards: a weak reference to their stage


class FlatBuffer(GradientBuffer):
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
        self.counts_in_norm = all(getattr(param, "counts_in_norm", True) for param in params.values())
        super().__init__(groups, precision.of_gradients(dtype), stage_class.shards_gradients)

    def make_full(self, device: torch.device, is_trained: bool = True) -> dict[str, torch.Tensor]:
        """Move the parameters into `full`, padded with zeros. Returns views for those on the meta device, which
        have no values yet.   is_trained: False where nothing will ever step them, so that they need no fp32 copies."""
        exact = torch.float32 if self.dtype in HALF and is_trained else self.dtype
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
    def comm(self) -> Comm:
        """The ranks that cut it among them."""
        return self.groups.shard

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
