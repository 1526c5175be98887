"""Smaller forms of activations: eight bits an element, or one slice a rank."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..comm import Comm
from ..layout.rankmap import Layout


@dataclass(frozen=True)
class Int8Rows:
    """A tensor as int8, with one scale for each row of its last dimension."""

    rows: Tensor  # int8, of the tensor's shape
    scale: Tensor  # fp32, with a last dimension of 1
    dtype: torch.dtype


class Int8:
    """Keep a quarter of fp32: the largest of each row becomes 127, and the rest is rounded. Gradients change slightly."""

    def pack(self, tensor: Tensor) -> Int8Rows:
        scale = tensor.abs().amax(dim=-1, keepdim=True).float().clamp_(min=torch.finfo(torch.float32).tiny) / 127
        return Int8Rows((tensor / scale).round_().to(torch.int8), scale, tensor.dtype)

    def unpack(self, packed: Int8Rows) -> Tensor:
        return (packed.rows * packed.scale).to(packed.dtype)


@dataclass(frozen=True)
class OwnSlice:
    """This rank's slice of a flattened tensor, and the shape of the whole."""

    own: Tensor
    layout: Layout
    shape: torch.Size


class Partitioned:
    """Each rank of a group keeps one slice of a tensor that all of them have (P_a; arXiv 1910.02054, section 6.1).

    Only ranks that compute the *same* activations have something to divide: those of a tensor-parallel group, never those
    that are data-parallel. Kept are n/t bytes in place of n; each tensor costs one all-gather in the backward.
    comm: of that group. It must be one of its own, because the backward may call it while others are under way.
    """

    def __init__(self, comm: Comm):
        self.comm = comm

    def pack(self, tensor: Tensor) -> OwnSlice:
        layout = Layout.build({"activation": tuple(tensor.shape)}, self.comm.world_size)
        flat = tensor.reshape(-1)
        own = flat.new_zeros(layout.padded // self.comm.world_size)
        start, stop = layout.slice(self.comm.rank).start, min(layout.slice(self.comm.rank).stop, flat.numel())
        own[: max(0, stop - start)].copy_(flat[start:stop])
        return OwnSlice(own, layout, tensor.shape)

    def unpack(self, packed: OwnSlice) -> Tensor:
        whole = packed.own.new_empty(packed.layout.padded)
        whole[packed.layout.slice(self.comm.rank)].copy_(packed.own)
        self.comm.all_gather(whole, packed.layout, "activations").wait()
        return whole[: packed.layout.numel].view(packed.shape)
