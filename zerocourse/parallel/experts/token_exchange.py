"""Rows travel to the ranks that have their experts, and back: an all-to-all whose parts have different lengths.

A rank sends C · (pairs whose expert is elsewhere) elements, four times a layer and step: to the experts, back, and the same
for the gradients. Before the rows go E numbers, so that every rank knows how many come. How many they are is up to the
routing: (ep - 1)/ep of the pairs is the mean, where all experts are equally busy.

An expert sees the tokens of all ranks of its group, each of which has a loss of its own. The gradient of the *mean* of these losses
is the sum divided by their number, so what comes back to an expert is divided by it, and what goes home is multiplied
again. So every parameter's gradient is that of a mean over the ranks of its own group, experts' and others' alike, and
data parallelism averages the experts over the ranks that have the same ones, and all else over all.
Source: Lepikhin et al. 2020, arXiv 2006.16668; the factor is what DeepSpeed#5259, #6546 and Megatron-LM#1628 were about.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ...comm import Comm
from .routing import numbers_of


class Trip(NamedTuple):
    """How many rows this rank sends to each rank of the group, and gets from each."""

    sent: list[int]
    received: list[int]

    @property
    def back(self) -> "Trip":
        return Trip(self.received, self.sent)


class Arrivals(NamedTuple):
    """What comes to this rank's experts.   trip: of the rows.   local_A: int64, the expert of each row that arrives, counted from this rank's
    first; the rows come rank after rank, and those of a rank in the order of experts."""

    trip: Trip
    local_A: Tensor


def announce(counts_E: Tensor, comm: Comm, unit: str, pairs: int) -> Arrivals:
    """Tell every rank how many rows come for each of its experts. Collective; the ranks have equally many experts, in order.

    pairs: the sum of counts_E.
    """
    ranks, here = comm.world_size, len(counts_E) // comm.world_size
    going = counts_E.view(ranks, here)
    coming = torch.empty_like(going)
    comm.all_to_all(going, coming, f"counts of {unit}").wait()
    trip = Trip(numbers_of(going.sum(1), pairs), numbers_of(coming.sum(1), pairs))
    local_E = torch.arange(here, device=counts_E.device).repeat(ranks)
    return Arrivals(trip, local_E.repeat_interleave(coming.flatten(), output_size=sum(trip.received)))


class TokenExchange(torch.autograd.Function):
    """rows (sum of sent, C) -> (sum of received, C), each rank's rows in the order of ranks. scale: of the gradients on their way back."""

    @staticmethod
    def forward(ctx, rows_PC: Tensor, trip: Trip, comm: Comm, unit: str, scale: float) -> Tensor:
        ctx.trip, ctx.comm, ctx.unit, ctx.scale = trip, comm, unit, scale
        return exchanged(rows_PC, trip, comm, unit)

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        back = exchanged(gradients[0], ctx.trip.back, ctx.comm, f"gradient of {ctx.unit}")
        return back * ctx.scale, None, None, None, None


def exchanged(rows_PC: Tensor, trip: Trip, comm: Comm, unit: str) -> Tensor:
    """The rows that come, in the order of ranks. Collective."""
    rows_PC = rows_PC.contiguous()
    out_PC = rows_PC.new_empty(sum(trip.received), rows_PC.shape[1])
    parts, places = rows_PC.split(trip.sent), out_PC.split(trip.received)
    places[comm.rank].copy_(parts[comm.rank])
    sends = {peer: parts[peer] for peer in comm.peers if trip.sent[peer]}
    receives = {peer: places[peer] for peer in comm.peers if trip.received[peer]}
    if sends or receives:
        comm.exchange(sends, receives, unit).wait()
    return out_PC


def to_experts(rows_PC: Tensor, trip: Trip, comm: Comm, unit: str) -> Tensor:
    """Rows to the ranks that have their experts. Their gradients come home as of this rank's own loss."""
    return TokenExchange.apply(rows_PC, trip, comm, f"tokens of {unit}", float(comm.world_size))


def back_home(rows_AC: Tensor, trip: Trip, comm: Comm, unit: str) -> Tensor:
    """What the experts made of them, back to where they came from. To an expert its gradients are those of the losses' mean."""
    return TokenExchange.apply(rows_AC, trip.back, comm, f"outputs of {unit}", 1 / comm.world_size)
