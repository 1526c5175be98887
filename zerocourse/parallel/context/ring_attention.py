"""Ring attention: keys and values travel around the ranks, each of which attends to them with its own queries, and frees them.

A rank computes on the block that it has while the next one is under way. After N-1 hops every rank has seen all keys, and
none has ever held more than two ranks' blocks. In the backward keys and values travel again, and the gradients of each
block follow it one hop behind, so that they are complete when they come home. With t = T/N tokens a rank and keys and
values of K·D each, a layer's forward sends 2(N-1)·B·t·K·D elements, and its backward twice as many.

Under a causal mask, blocks of later keys are left out. With the zigzag cut (see `token_cut`) every rank computes 2N+1
blocks of (T/2N)² scores, two of them on the diagonal; with the contiguous cut rank r computes r+1 blocks of (T/N)².

Shapes: B batch, H heads, K heads of keys and values, t = T/N tokens of a rank, D width of a head, N ranks.
Source: Liu et al., arXiv 2310.01889; Brandon et al. (Striped Attention), arXiv 2311.09431, on the balance.
"""

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

from ...comm import Comm
from ...errors import BadInput
from .score_block import block_backward, block_forward, merge
from .token_cut import parts_of


class RingAttention:
    """Causal attention of one layer, whose tokens are cut in `order` among the ranks of `comm`.

    name: the layer's, as messages and events name it.
    blocks: how many blocks this rank's forwards computed, "whole" and "diagonal" (of which the mask hides a half).
    """

    def __init__(self, comm: Comm, name: str = "attention", order: str = "zigzag"):
        self.comm, self.name, self.order = comm, name, order
        self.parts = [parts_of(rank, comm.world_size, order) for rank in range(comm.world_size)]
        self.blocks: Counter = Counter()

    def __call__(self, q_BHtD: Tensor, k_BKtD: Tensor, v_BKtD: Tensor, dropout_p: float = 0.0,
                 scale: float | None = None, is_causal: bool = True) -> Tensor:
        """The output (B, H, t, D). Every rank of the ring must call it. Raises BadInput."""
        if dropout_p or not is_causal:
            raise BadInput(f"ring attention in {self.name} has no dropout and a causal mask only: set the dropout of "
                           "attention to 0, or use Ulysses")
        return AroundTheRing.apply(q_BHtD, k_BKtD, v_BKtD, self, q_BHtD.shape[-1] ** -0.5 if scale is None else scale)

    # -- what is computed ----------------------------------------------------------------------------------------------

    def visible(self, owner: int) -> Iterator[tuple[int, int, bool]]:
        """(my part, the owner's part, whether they are the same) of each block that this rank computes with the keys of
        rank `owner`, both counted from 0 in the tokens of their rank. Keys that come later than the queries are left out."""
        for mine, part in enumerate(self.parts[self.comm.rank]):
            for theirs, other in enumerate(self.parts[owner]):
                if other <= part:
                    yield mine, theirs, other == part

    def split(self, tensor: Tensor, dim: int = 2) -> tuple[Tensor, ...]:
        """Views of the parts of a rank's tokens, which lie along `dim`."""
        return tensor.chunk(len(self.parts[0]), dim)

    # -- what travels ----------------------------------------------------------------------------------------------------

    def pass_on(self, tensor: Tensor, what: str) -> "Hop":
        """Send `tensor` to the next rank, and receive one like it from the rank before."""
        return Hop(self.comm, tensor.contiguous(), f"{self.name} {what}")

    def travelling(self, kv: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(owner, its keys and values) of each rank, beginning with one's own. The next block is under way meanwhile."""
        for step in range(self.comm.world_size):
            hop = self.pass_on(kv, "keys and values") if step < self.comm.world_size - 1 else None
            yield (self.comm.rank - step) % self.comm.world_size, kv
            if hop is not None:
                kv = hop.wait()


class Hop:
    """A tensor on its way to the next rank of the ring, and another coming from the one before, until `wait`."""

    def __init__(self, comm: Comm, tensor: Tensor, unit: str):
        self.received = torch.empty_like(tensor)
        to, source = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
        self.handle = comm.exchange({to: tensor}, {source: self.received}, unit)  # at once: if all sent first, all would wait

    def wait(self) -> Tensor:
        self.handle.wait()
        return self.received


class AroundTheRing(torch.autograd.Function):
    """Forward and backward of ring attention, over all ranks. Saves this rank's own queries, keys, values and output."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, ring: RingAttention, scale: float) -> Tensor:
        queries = ring.split(q)
        merged: list[tuple[Tensor, Tensor] | None] = [None] * len(queries)  # (output, lse) of each of this rank's parts
        for owner, kv in ring.travelling(together(k, v)):
            with ring.comm.recorder.span("forward", f"{ring.name}, keys of rank {owner}"):
                keys, values = (ring.split(each) for each in apart(kv, k, v))
                for mine, theirs, diagonal in ring.visible(owner):
                    block = block_forward(queries[mine], keys[theirs], values[theirs], scale, diagonal)
                    merged[mine] = block if merged[mine] is None else merge(*merged[mine], *block)
                    ring.blocks["diagonal" if diagonal else "whole"] += 1
        out, lse = torch.cat([out for out, _ in merged], 2), torch.cat([lse for _, lse in merged], 2)
        ctx.ring, ctx.scale = ring, scale
        ctx.save_for_backward(q, k, v, out.to(q.dtype), lse)
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of a block of keys is complete when every rank has added its share: it travels behind the block,
        in fp32 at least, and the last rank of its way sends it home. A rank's share of its own block stays at home."""
        ring, (q, k, v, out, lse) = ctx.ring, ctx.saved_tensors
        mine_of = [ring.split(each) for each in (gradient, q, out, lse)]
        dq = torch.zeros_like(q, dtype=lse.dtype)
        own, hop = None, None
        for owner, kv in ring.travelling(together(k, v)):
            dkv = torch.zeros_like(kv, dtype=lse.dtype)
            with ring.comm.recorder.span("backward", f"{ring.name}, keys of rank {owner}"):
                keys, values, dkeys, dvalues = (ring.split(each) for each in (*apart(kv, k, v), *apart(dkv, k, v)))
                for mine, theirs, diagonal in ring.visible(owner):
                    part_gradient, query, part_out, part_lse = (parts[mine] for parts in mine_of)
                    shares = block_backward(part_gradient, query, keys[theirs], values[theirs], part_out, part_lse,
                                            ctx.scale, diagonal)
                    for into, share in zip((ring.split(dq)[mine], dkeys[theirs], dvalues[theirs]), shares, strict=True):
                        into += share
            if owner == ring.comm.rank:
                own = dkv
                continue
            if hop is not None:
                dkv += hop.wait()  # what the ranks before this one have added
            hop = ring.pass_on(dkv, "gradients of keys and values")
        if hop is not None:
            own += hop.wait()
        dk, dv = apart(own, k, v)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def together(k_BKtD: Tensor, v_BKtD: Tensor) -> Tensor:
    """Keys and values in one message (1-D), because the widths of their heads may differ."""
    return torch.cat([k_BKtD.flatten(), v_BKtD.flatten()])


def apart(kv: Tensor, k_BKtD: Tensor, v_BKtD: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the two in a message; those given have their shapes."""
    k, v = kv.split([k_BKtD.numel(), v_BKtD.numel()])
    return k.view(k_BKtD.shape), v.view(v_BKtD.shape)
