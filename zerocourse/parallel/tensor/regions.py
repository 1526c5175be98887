"""The borders of a region in which every rank computes with its own part of the weights: f at its entrance, g at its end.

    f   copy_in      forward: nothing                    backward: all-reduce
    g   reduce_out   forward: all-reduce                 backward: nothing

Each rank's output is one term of a sum, which g adds up; so each rank's gradient of the input is one term, too, and f
adds those up. With sequence parallelism (Korthikanti et al. 2022, section 4.2.2) the ranks have T/t tokens each outside
of the region, and an all-reduce falls into its two halves, with the same number of elements sent:

    f   gather_in    forward: all-gather                 backward: reduce-scatter
    g   scatter_out  forward: reduce-scatter             backward: all-gather

`split` leads from a tensor that all ranks have to their tokens of it, and its backward is an all-gather.

Activations are (B, T, C), of any dtype. No function changes its input. An all-reduce of n elements sends 2n(t - 1)/t
elements per rank, the others half of that. The sums are made once and sent to all, so every rank has the same bits.
"""

import torch
from torch import Tensor

from ...comm import Comm
from ...errors import BadInput
from ...layout.rankmap import Layout


def all_reduce(values: Tensor, comm: Comm, unit: str) -> Tensor:
    """The element-wise sum over the ranks, as a new tensor: a reduce-scatter, and then an all-gather."""
    if not comm.peers:
        return values
    flat = values.detach().flatten().clone()  # a reduce-scatter may overwrite what it is given
    layout, total = Layout.split(len(flat), comm.world_size), torch.empty_like(flat)
    comm.reduce_scatter(flat, layout, unit, into=total[layout.slice(comm.rank)]).wait()
    comm.all_gather(total, layout, unit).wait()
    return total.view(values.shape)


def all_gather(part_BtC: Tensor, comm: Comm, unit: str) -> Tensor:
    """All ranks' tokens (B, T/t, C), one after the other: (B, T, C)."""
    if not comm.peers:
        return part_BtC
    B, own, C = part_BtC.shape
    parts = part_BtC.new_empty(comm.world_size, B, own, C)
    parts[comm.rank] = part_BtC.detach()
    comm.all_gather(parts.view(-1), Layout.split(parts.numel(), comm.world_size), unit).wait()
    return parts.transpose(0, 1).reshape(B, comm.world_size * own, C)


def reduce_scatter(terms_BTC: Tensor, comm: Comm, unit: str) -> Tensor:
    """This rank's tokens (B, T/t, C) of the sum of all ranks' (B, T, C)."""
    if not comm.peers:
        return terms_BTC
    B, T, C = terms_BTC.shape
    own = tokens_per_rank(T, comm)
    by_rank, part = terms_BTC.new_empty(comm.world_size, B, own, C), terms_BTC.new_empty(B, own, C)
    by_rank.copy_(terms_BTC.detach().reshape(B, comm.world_size, own, C).transpose(0, 1))
    comm.reduce_scatter(by_rank.view(-1), Layout.split(by_rank.numel(), comm.world_size), unit, into=part.view(-1)).wait()
    return part


def own_tokens(whole_BTC: Tensor, comm: Comm, unit: str) -> Tensor:
    """This rank's tokens (B, T/t, C), as a tensor of their own: the whole one may go."""
    own = tokens_per_rank(whole_BTC.shape[1], comm)
    return whole_BTC.detach()[:, own * comm.rank:own * (comm.rank + 1)].clone()


def tokens_per_rank(tokens: int, comm: Comm) -> int:
    """T/t. Raises BadInput where that is no whole number."""
    if tokens % comm.world_size:
        raise BadInput(f"sequence parallelism cuts the {tokens} tokens of a sample among {comm.world_size} ranks: "
                       f"their number must be a multiple of {comm.world_size}")
    return tokens // comm.world_size


def nothing(values: Tensor, comm: Comm, unit: str) -> Tensor:
    return values


class Border(torch.autograd.Function):
    """One operation on the way forward, and another on the way back."""

    @staticmethod
    def forward(ctx, values, comm, unit, there, back):
        ctx.comm, ctx.unit, ctx.back = comm, unit, back
        result = there(values, comm, unit)
        return result.view_as(result)  # where nothing is done it is the input, which a function may not return as it is

    @staticmethod
    def backward(ctx, gradient):
        return ctx.back(gradient, ctx.comm, ctx.unit), None, None, None, None


def copy_in(values: Tensor, comm: Comm, unit: str) -> Tensor:
    return Border.apply(values, comm, unit, nothing, all_reduce)


def reduce_out(values: Tensor, comm: Comm, unit: str) -> Tensor:
    return Border.apply(values, comm, unit, all_reduce, nothing)


def gather_in(values_BtC: Tensor, comm: Comm, unit: str) -> Tensor:
    return Border.apply(values_BtC, comm, unit, all_gather, reduce_scatter)


def scatter_out(values_BTC: Tensor, comm: Comm, unit: str) -> Tensor:
    return Border.apply(values_BTC, comm, unit, reduce_scatter, all_gather)


def split(values_BTC: Tensor, comm: Comm, unit: str) -> Tensor:
    return Border.apply(values_BTC, comm, unit, own_tokens, all_gather)
