"""The flat buffer of a unit: every tensor that a stage touches, named once. It communicates nothing.

A *unit* is a part of the model that is gathered and freed as a whole (a transformer block, or what is left: the
root). Its parameters are laid in one or more *flats*: rows of parameters of one dtype, all trainable or all frozen,
at most `bucket_size` elements long (unless one parameter alone is longer). With N ranks, n elements in the padded row,
and `own` this rank's part of it:

    full        (n,)    the whole row of parameters, gathered; the modules' parameters are views of it
    shard       (own,)  this rank's slice of the parameters; a view of `full`, or in stage 3 memory of its own
    master      (own,)  what the optimizer steps: `shard` itself, or fp32 copies when the model trains in half precision
    grad        (n,)    the bucket: this rank's gradients as they arrive, already divided by N; None when empty
    grad_shard  (own,)  this rank's slice of the gradient, summed over the ranks; None before the first reduction
    pieces              one optimizer parameter, a 1-D view of `master`, for each parameter that meets the slice at `places`

In stage 0 nothing is divided among ranks and `own` is the whole row.
"""

import torch
from torch import nn

from ..errors import BadInput
from .storage import FreeableStorage
from ..layout.rankmap import Layout, ShardRange

HALF = (torch.bfloat16, torch.float16)


class FlatBuffer:
    """One row of parameters. `name` is the unit's, with a number when the unit has several rows."""

    def __init__(self, name: str, params: dict[str, nn.Parameter], layout: Layout, rank: int, sharded_optimizer: bool,
                 sharded_parameters: bool, dtype: torch.dtype):
        self.name, self.layout, self.dtype = name, layout, dtype
        self.params = {key: params[key] for key in layout.shapes}  # in the row's order
        self.rank, self.sharded_parameters = rank, sharded_parameters
        self.own = layout.slice(rank) if sharded_optimizer else slice(0, layout.padded)
        self.world_size = len(layout.bounds) - 1
        self.grad: torch.Tensor | None = None
        self.grad_shard: torch.Tensor | None = None
        self.watched: set[str] = set()  # who has its hook
        self.expected = 0  # gradients that a backward brings when every parameter is used
        self.arrived: set[str] = set()  # who brought one in this backward, since the bucket was last reduced
        self.filled: set[str] = set()  # whose place in the bucket is written, by this micro-batch or earlier ones
        self.fresh: set[str] = set()  # whose place holds a gradient that no reduction took along yet
        self.late: set[str] = set()  # whose gradient came while the bucket was under way: it is still at the parameter
        self.present: set[str] = set()  # who has a gradient, on some rank, since the last zero_grad

    # -- parameters ---------------------------------------------------------------------------------------------------

    def begin(self, device: torch.device) -> dict[str, torch.Tensor]:
        """Move the parameters into a row, padded with zeros. Returns the places of those on meta, which have no values yet."""
        exact = torch.float32 if self.dtype in HALF else self.dtype
        self.row = torch.zeros(self.layout.padded, dtype=exact, device=device)
        places = {key: self.row[self.layout.param_slice(key)].view(shape) for key, shape in self.layout.shapes.items()}
        for key, param in self.params.items():
            if not param.is_meta:
                param.data = places.pop(key).copy_(param.detach())
        return places

    def fill(self, equalise) -> None:
        """Build full, shard, master and pieces from the row; the parameters become views of full.

        equalise(row): makes the row the same on all ranks (rank 0's).
        """
        row, device = self.row, self.row.device
        del self.row
        equalise(row)
        self.full = row.to(self.dtype)
        self.storage = FreeableStorage(self.full)
        self.views = {key: self.full[self.layout.param_slice(key)].view(shape) for key, shape in self.layout.shapes.items()}
        self.strides = {key: (view.shape, view.stride(), view.storage_offset()) for key, view in self.views.items()}
        self.shard = self.full[self.own].clone() if self.sharded_parameters else self.full[self.own]
        self.master = self.shard if row.dtype is self.dtype else row[self.own].clone()
        trainable = self.dtype.is_floating_point or self.dtype.is_complex
        self.shard_ranges = self.layout.shard_ranges(self.own) if trainable else []
        self.shard_params = {place.name: nn.Parameter(self.part(self.master, place)) for place in self.shard_ranges}
        nothing = torch.full((), float("nan") if self.dtype.is_floating_point else 0, dtype=self.dtype, device=device)
        self._hidden = {key: nothing.expand(shape) for key, shape in self.layout.shapes.items()}
        if FreeableStorage(nothing).readable:
            FreeableStorage(nothing).free()
        self.lasting_bytes = self.shard.nbytes if self.sharded_parameters else 0
        self.lasting_bytes += self.master.nbytes if self.steps_copies else 0
        self.versions = {key: param._version for key, param in self.params.items()}  # a write in place moves it on
        self.show()

    def show(self) -> None:
        """Let the modules see the gathered parameters."""
        for key, param in self.params.items():
            param.data = self.views[key]

    def take_writes(self) -> None:
        """Before a step: what was written into parameters in place since the last one, in fp32 copies too.

        Raises BadInput for a parameter that was given other memory, which the optimizer would not reach. (Stage 3 hides
        its parameters between steps.)
        """
        if self.sharded_parameters:
            return
        for key, param in self.params.items():
            if param.data_ptr() != self.views[key].data_ptr():
                raise BadInput(f"parameter {key!r} was given other memory after shard(), which no optimizer reaches: write into "
                               "it under no_grad, as in param.copy_(values), instead of assigning param.data")
        for place in self.shard_ranges if self.steps_copies else []:
            if self.params[place.name]._version != self.versions[place.name]:
                self.part(self.master, place).copy_(self.part(self.shard, place))
                self.versions[place.name] = self.params[place.name]._version

    def hide(self) -> None:
        """Let the modules see the right shapes, and no memory: they read as NaN or raise, and writing to them raises."""
        for key, param in self.params.items():
            param.data = self._hidden[key]

    @property
    def gathered(self) -> bool:
        """Is the memory of `full` held (or, in an empty flat, is there nothing to hold)?"""
        return self.storage.held

    @property
    def steps_copies(self) -> bool:
        """Does the optimizer step fp32 copies?"""
        return self.master is not self.shard

    def publish_shard(self) -> None:
        """After the optimizer's step: round the master weights into the slice the others will receive."""
        if self.steps_copies:
            self.shard.copy_(self.master)

    # -- gradients ----------------------------------------------------------------------------------------------------

    def collect(self, key: str, param: nn.Parameter) -> None:
        """Move a parameter's fresh gradient into the bucket, divided by N, and free it."""
        gradient = param.grad.detach()  # backward(create_graph=True) makes gradients that record
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        param.grad = None
        self.late.discard(key)
        self.open_bucket()
        shape, stride, start = self.strides[key]
        place = self.grad.as_strided(shape, stride, self.grad.storage_offset() + start)
        if key in self.filled:
            place.add_(gradient, alpha=1 / self.world_size)
        else:
            torch.mul(gradient, 1 / self.world_size, out=place)
        for keys in (self.filled, self.fresh, self.arrived, self.present):
            keys.add(key)

    def collect_late(self) -> None:
        """The bucket is back: move the gradients that waited for it."""
        for key in list(self.late):
            self.collect(key, self.params[key])

    def open_bucket(self) -> None:
        """Make room for gradients. Of what an earlier reduction left in it (stages 0 and 1) each rank keeps its own slice
        alone, so that the next sum counts it once."""
        if self.grad is None:
            self.grad = torch.empty(self.layout.padded, dtype=self.dtype, device=self.full.device)
            self.filled.clear()  # a heart from outside may have dropped the bucket by hand
        elif not self.fresh:
            mine = self.layout.slice(self.rank)
            self.grad[: mine.start].zero_()
            self.grad[mine.stop :].zero_()

    def complete_bucket(self) -> None:
        """Zeros where nothing arrived: the bucket is ready to be reduced."""
        self.open_bucket()
        for key in self.params.keys() - self.filled:
            self.grad[self.layout.param_slice(key)].zero_()
        self.grad[self.layout.numel :].zero_()
        self.filled = set(self.params)
        self.fresh.clear()
        self.arrived.clear()

    def drop_bucket(self) -> torch.Tensor | None:
        bucket, self.grad = self.grad, None
        self.filled.clear()
        self.fresh.clear()
        return bucket

    def accumulate(self, reduced: torch.Tensor) -> None:
        """Add a reduced slice (own,) to what earlier micro-batches left."""
        if self.grad_shard is None:
            self.grad_shard = reduced
        else:
            self.grad_shard.add_(reduced)

    def clear_gradients(self) -> None:
        self.drop_bucket()
        self.grad_shard = None
        while self.late:
            self.params[self.late.pop()].grad = None
        self.arrived.clear()
        self.present.clear()
        for piece in self.shard_params.values():
            piece.grad = None

    def publish_gradients(self) -> None:
        """Give each piece its part of `grad_shard`; who has no gradient on any rank keeps None.

        Master weights get it in fp32, which is memory of its own: for them this waits until just before the step.
        """
        if self.grad_shard is None:
            return
        gradient = self.grad_shard.to(self.master.dtype)
        for place in self.shard_ranges:
            if place.name in self.present:
                self.shard_params[place.name].grad = self.part(gradient, place)

    @staticmethod
    def part(own: torch.Tensor, place: ShardRange) -> torch.Tensor:
        """A parameter's part (1-D) of this rank's slice."""
        return own[place.at : place.at + place.stop - place.start]

    # -- what it holds ------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """The real tensors by kind, for a ledger that reads their storages."""
        gradients = [self.grad, self.grad_shard, *(piece.grad for piece in self.shard_params.values())]
        return {"parameters": [self.full, self.shard],
                "gradients": [tensor for tensor in gradients if tensor is not None],
                "optimizer": [self.master] if self.steps_copies else []}

    @property
    def bytes_held(self) -> int:
        """What `tensors()` sums to, without looking: cheap enough to be asked at every event."""
        held = self.lasting_bytes + (self.storage.nbytes if self.gathered else 0)
        if self.grad is not None:
            held += self.storage.nbytes
        if self.grad_shard is not None and (self.grad is None or self.grad_shard._base is not self.grad):  # not in the bucket
            held += self.shard.nbytes
        if self.steps_copies and any(piece.grad is not None for piece in self.shard_params.values()):
            held += self.master.nbytes  # the gradient in fp32
        return held
