"""Weights that several stages share, and the gradient norm over all stages, in which each of them counts once."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...comm import Comm, add_in_order
from .cutting import Tied


class Ties:
    """The weights that this rank's stages share with those of other ranks, such as an embedding and a head.

    Sends each of them once at the start, from its first stage to the others, and its gradient once per batch, from each
    of its ranks to each other one, so that the copies stay equal. owner[stage]: its rank.

    Under ZeRO such a weight has a buffer of its own on each of its ranks, so that all cut it in the same places, and what
    is sent is a slice of the gradient that is already reduced.
    """

    def __init__(self, tied: list[Tied], owner: list[int], comm: Comm):
        self.comm = comm
        ranks = [(weight, sorted({owner[stage] for stage in weight.stages},
                                 key=[owner[stage] for stage in weight.stages].index)) for weight in tied]
        self.mine = [(weight, members) for weight, members in ranks if comm.rank in members]
        self.earlier: list[Tensor | None] = []  # gradients of earlier batches, which are sums already
        for weight, members in self.mine:
            weight.param.own_buffer = weight.name
            if comm.rank != members[0]:
                weight.param.counts_in_norm = False

    def is_copy(self, param: nn.Parameter) -> bool:
        """Has another rank the first of it?"""
        return any(weight.param is param and self.comm.rank != members[0] for weight, members in self.mine)

    @torch.no_grad()
    def start_equal(self) -> None:
        """Every copy gets the values of the first stage's."""
        for weight, members in self.mine:
            if self.comm.rank == members[0]:
                self.comm.exchange(dict.fromkeys(members[1:], weight.param.contiguous()), {}, weight.name).wait()
            else:
                self.comm.recv(weight.param, members[0], weight.name).wait()

    def set_earlier_aside(self) -> None:
        """Before a batch: what `.grad` has from earlier batches must not be added up over the ranks once more."""
        self.earlier = [weight.param.grad for weight, _ in self.mine]
        for weight, _ in self.mine:
            weight.param.grad = None

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Each copy's gradient becomes the sum over all of them, added in the order of stages, the same on every
        rank."""
        for (weight, members), earlier in zip(self.mine, self.earlier, strict=True):
            param = weight.param
            if param.requires_grad:
                total = self.sum(torch.zeros_like(param) if param.grad is None else param.grad.contiguous(), weight.name, members)
                param.grad = total if earlier is None else earlier.add_(total)

    @torch.no_grad()
    def add_slices(self, stages: Sequence[nn.Module]) -> None:
        """The same under ZeRO, where the gradients lie in the buffers of these stages."""
        flat_of = {param: flat for stage in stages for flat in stage.zero.flats for param in flat.params.values()}
        for weight, members in self.mine:
            if weight.param.requires_grad:
                flat = flat_of[weight.param]
                if flat.grad_shard is None:  # no gradient came here
                    flat.grad_shard, flat.has_grad = flat.shard.new_zeros(flat.own.stop - flat.own.start), set(flat.params)
                    flat.publish_gradients()
                flat.grad_shard.copy_(self.sum(flat.grad_shard, weight.name, members))

    def sum(self, own: Tensor, name: str, members: list[int]) -> Tensor:
        """The sum over these ranks of what each of them has."""
        peers = [rank for rank in members if rank != self.comm.rank]
        arrived = {peer: torch.empty_like(own) for peer in peers}
        self.comm.exchange(dict.fromkeys(peers, own), arrived, f"gradient of {name}").wait()
        return add_in_order([arrived.get(rank, own) for rank in members])
