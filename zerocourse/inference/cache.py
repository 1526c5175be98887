"""Keys and values of all requests, in blocks, and attention of the next rows to them.

Shapes: R rows of a forward, each one token of some request; H heads of queries, K of keys and values, D features of a head; slots: all places
for a token, block after block.

A forward has a row for each token, in a batch (R, 1): linear layers see R rows whatever they belong to, and nothing is padded.
Attention goes request by request. So a prompt, a piece of one and a token that decodes are the same.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .scheduler import RequestPiece


class PagedCache:
    """keys, values (layers, slots, K, D). `begin` says what the next forward has; then each layer calls `attend` once."""

    def __init__(self, layers: int, blocks: int, size: int, kv_heads: int, features: int, dtype: torch.dtype, device: torch.device):
        self.size, self.heads = size, (kv_heads, features)
        self.keys, self.values = torch.zeros(2, layers, blocks * size, kv_heads, features, dtype=dtype, device=device)
        self.pieces: Sequence[RequestPiece] = ()
        self.write: Tensor = torch.empty(0, dtype=torch.int64)
        self.read: list[Tensor] = []
        self.attended: set[int] = set()  # layers, in the present forward

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def begin(self, pieces: Sequence[RequestPiece]) -> None:
        """Where these pieces' tokens are written, and where all tokens up to them are read."""
        device, self.pieces, self.attended = self.keys.device, pieces, set()
        self.write = torch.tensor([slot for piece in pieces for slot in self.slots(piece, piece.start)], device=device)
        self.read = [torch.tensor(self.slots(piece, 0), device=device) for piece in pieces]

    def copy(self, blocks: Sequence[tuple[int, int]]) -> None:
        """(source, target) one after the other: a block that is free again may be the next one's target."""
        for source, target in blocks:
            into, out_of = (slice(block * self.size, (block + 1) * self.size) for block in (target, source))
            self.keys[:, into], self.values[:, into] = self.keys[:, out_of], self.values[:, out_of]

    def slots(self, piece: RequestPiece, start: int) -> list[int]:
        table = piece.request.table
        return [table[place // self.size] * self.size + place % self.size for place in range(start, piece.end)]

    def attend(self, layer: int, q_RHD: Tensor, k_RKD: Tensor, v_RKD: Tensor, scale: float | None = None) -> Tensor:
        """(R, H, D). Keys and values are written first, so that a token sees itself; it sees nothing behind it."""
        self.attended.add(layer)
        self.keys[layer, self.write], self.values[layer, self.write] = k_RKD, v_RKD
        out, row = [], 0
        for piece, slots in zip(self.pieces, self.read, strict=True):
            rows = slice(row, row := row + piece.end - piece.start)
            k_KtD, v_KtD = (held[layer, slots].transpose(0, 1) for held in (self.keys, self.values))
            places = torch.arange(piece.end, device=slots.device)
            seen = places[None] <= places[piece.start:, None]  # a piece in the middle sees all before it, too
            out.append(F.scaled_dot_product_attention(q_RHD[rows].transpose(0, 1)[None], k_KtD[None], v_KtD[None], attn_mask=seen,
                                                      scale=scale, enable_gqa=len(k_KtD) < q_RHD.shape[1])[0].transpose(0, 1))
        return torch.cat(out)
