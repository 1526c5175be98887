"""DeepSpeed-Ulysses: an all-to-all turns some tokens of all heads into all tokens of some heads, and back. It frees nothing.

Every layer but attention treats each token by itself, so there a rank needs its own tokens only. Attention treats each
head by itself, so there a rank can have whole sequences, if it has a part of the heads. Four all-to-alls a layer (queries,
keys, values, output) take the forward from one to the other and back, and four the backward. With C the width and t = T/N
tokens, B·t·C·(N-1)/N elements each: with T/N constant, no more on more ranks.

Shapes: B batch, H heads, K heads of keys and values, t = T/N tokens of a rank, T of all, D width of a head, N ranks.
Source: Jacobs et al., arXiv 2309.14509, section 3.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ...comm import Comm
from ...errors import BadInput


class Ulysses:
    """Causal attention of one layer, whose tokens are cut contiguously among the ranks of `comm`.

    name: the layer's, as messages and events name it.
    """

    order = "contiguous"

    def __init__(self, comm: Comm, name: str = "attention"):
        self.comm, self.name = comm, name

    def __call__(self, q_BHtD: Tensor, k_BKtD: Tensor, v_BKtD: Tensor, dropout_p: float = 0.0,
                 scale: float | None = None, is_causal: bool = True) -> Tensor:
        """The output (B, H, t, D). Collective. Where K is no multiple of N, heads of keys and values are repeated, and
        sent so. Raises BadInput when H is no multiple of N."""
        q_BHTD, k_BKTD, v_BKTD = (tokens_to_heads(heads, self.comm, f"{self.name} {name}") for name, heads in
                                  (("queries", q_BHtD), ("keys", self.enough(k_BKtD, q_BHtD)),
                                   ("values", self.enough(v_BKtD, q_BHtD))))
        out_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BKTD, v_BKTD, dropout_p=dropout_p, is_causal=is_causal,
                                                  scale=scale, enable_gqa=q_BHTD.shape[1] != k_BKTD.shape[1])
        return heads_to_tokens(out_BHTD, self.comm, f"{self.name} output")

    def enough(self, k_BKtD: Tensor, q_BHtD: Tensor) -> Tensor:
        """Keys or values with each head repeated, side by side, until N divides their number."""
        ranks, heads, kv_heads = self.comm.world_size, q_BHtD.shape[1], k_BKtD.shape[1]
        if heads % ranks:
            raise BadInput(f"{self.name} has {heads} heads, which {ranks} ranks cannot share equally: Ulysses needs a number "
                           f"of ranks that divides {heads}, and ring attention takes any")
        return k_BKtD.repeat_interleave(ranks // math.gcd(kv_heads, ranks), dim=1)


def tokens_to_heads(x_BHtD: Tensor, comm: Comm, unit: str) -> Tensor:
    """This rank's tokens of all heads (B, H, t, D) to all tokens of its heads (B, H/N, T, D). Collective."""
    rows = x_BHtD.unflatten(1, (comm.world_size, -1)).movedim(1, 0)  # (N, B, H/N, t, D): the heads of each rank
    return Exchange.apply(rows, comm, unit).movedim(0, 2).flatten(2, 3)


def heads_to_tokens(x_BHTD: Tensor, comm: Comm, unit: str) -> Tensor:
    """All tokens of this rank's heads (B, H/N, T, D) to its tokens of all heads (B, H, t, D). Collective."""
    rows = x_BHTD.unflatten(2, (comm.world_size, -1)).movedim(2, 0)  # (N, B, H/N, t, D): the tokens of each rank
    return Exchange.apply(rows, comm, unit).movedim(0, 1).flatten(1, 2)


class Exchange(torch.autograd.Function):
    """An all-to-all of rows. What came from rank r goes back to rank r, so the backward is the same once more."""

    @staticmethod
    def forward(ctx, rows: Tensor, comm: Comm, unit: str) -> Tensor:
        ctx.comm, ctx.unit = comm, unit
        rows = rows.contiguous()
        received = torch.empty_like(rows)
        comm.all_to_all(rows, received, unit).wait()
        return received

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        return Exchange.forward(ctx, gradient, ctx.comm, f"{ctx.unit.removesuffix(' gradient')} gradient"), None, None
