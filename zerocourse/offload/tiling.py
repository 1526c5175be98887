"""Memory-centric tiling: a layer too large for the device, cut into tiles, of which one at a time is there.

Each tile is an entry of a ModuleList, and so a unit: stage 3 gathers it, uses it and frees it before the next one, and its
gradient is reduced by itself. The largest thing that the device must hold then is a tile and not the layer. It
communicates nothing and frees nothing itself.

A tile begins with values such as the whole layer would have: what an initializer derives from the size of its layer (its
fan-in) is that of the whole one. DeepSpeed's tiles (0.19.8) take their own, and begin √in_splits too large.
Source: Rajbhandari et al. 2021, arXiv 2104.07857, section 5.1.3.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadInput


class LinearTile(nn.Linear):
    """(..., in of the tile) to (..., out of the tile): a block of a layer of `whole_in` inputs."""

    def __init__(self, in_features: int, out_features: int, whole_in: int, **kwargs):
        self.whole_in = whole_in
        super().__init__(in_features, out_features, **kwargs)

    def reset_parameters(self) -> None:
        """As torch does for the whole layer: uniform within 1/√whole_in."""
        bound = 1 / math.sqrt(self.whole_in)
        for param in (self.weight, *([] if self.bias is None else [self.bias])):
            nn.init.uniform_(param, -bound, bound)


class TiledLinear(nn.Module):
    """A linear layer in out_splits × in_splits tiles: their outputs stand side by side over out, and are added up over in.

    The bias lies in the tiles of the last in-split, so that it is added once. With one in-split the result is, on the CPU,
    bitwise that of the whole layer. Raises BadInput for more splits than features.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, in_splits: int = 1, out_splits: int = 1,
                 device=None, dtype=None):
        super().__init__()
        self.in_sizes, self.out_sizes = sizes("in", in_features, in_splits), sizes("out", out_features, out_splits)
        self.tiles = nn.ModuleList(
            LinearTile(columns, rows, in_features, bias=bias and number == in_splits - 1, device=device, dtype=dtype)
            for rows in self.out_sizes for number, columns in enumerate(self.in_sizes))

    @classmethod
    def from_linear(cls, linear: nn.Linear, in_splits: int = 1, out_splits: int = 1) -> "TiledLinear":
        """The same layer, with its values (none, where it lies on the meta device)."""
        tiled = cls(linear.in_features, linear.out_features, linear.bias is not None, in_splits, out_splits, linear.weight.device,
                    linear.weight.dtype)
        tiled.load_whole(linear.weight, linear.bias)
        return tiled

    @torch.no_grad()
    def load_whole(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take the values of a whole layer: weight (out, in), bias (out,)."""
        tiles = iter(self.tiles)
        for number, rows in enumerate(weight.split(self.out_sizes)):
            for block in rows.split(self.in_sizes, dim=1):
                tile = next(tiles)
                tile.weight.copy_(block)
            if bias is not None:
                tile.bias.copy_(bias.split(self.out_sizes)[number])

    def forward(self, x: Tensor) -> Tensor:
        tiles, parts = iter(self.tiles), x.split(self.in_sizes, dim=-1)
        outputs = []
        for _ in self.out_sizes:
            total = None
            for part in parts:
                out = next(tiles)(part)
                total = out if total is None else total + out
            outputs.append(total)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)


class VocabularyTile(nn.Module):
    """Rows `first` to `first + rows` of a token embedding (rows, C). It looks tokens up, and it makes their logits."""

    def __init__(self, first: int, rows: int, width: int, std: float = 1.0, device=None, dtype=None):
        super().__init__()
        self.first, self.std = first, std
        self.weight = nn.Parameter(torch.empty(rows, width, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch does for an embedding, with the spread of the whole one."""
        nn.init.normal_(self.weight, std=self.std)

    def forward(self, values: Tensor) -> Tensor:
        """Whole numbers are tokens (...): returns (..., C), zero for those of other tiles. Others are hidden states (..., C):
        returns the logits (..., rows)."""
        if values.is_floating_point():
            return F.linear(values, self.weight)
        row, rows = values - self.first, self.weight.shape[0]
        mine = (row >= 0) & (row < rows)
        return F.embedding(row.clamp(0, rows - 1), self.weight) * mine.unsqueeze(-1)


class TiledEmbedding(nn.Module):
    """A token embedding (V, C) in tiles of rows. `TiledHead(embedding)` makes logits with the same tiles."""

    def __init__(self, num_embeddings: int, embedding_dim: int, splits: int, std: float = 1.0, device=None, dtype=None):
        super().__init__()
        self.sizes = sizes("vocabulary", num_embeddings, splits)
        firsts = [sum(self.sizes[:number]) for number in range(splits)]
        self.tiles = nn.ModuleList(VocabularyTile(first, rows, embedding_dim, std, device, dtype)
                                   for first, rows in zip(firsts, self.sizes, strict=True))

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, splits: int, std: float = 1.0) -> "TiledEmbedding":
        """The same embedding, with its values. std: of those that it gets where it lies on the meta device."""
        weight = embedding.weight
        tiled = cls(*weight.shape, splits, std, weight.device, weight.dtype)
        with torch.no_grad():
            for tile, rows in zip(tiled.tiles, weight.split(tiled.sizes), strict=True):
                tile.weight.copy_(rows)
        return tiled

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (...) to (..., C), bitwise as the whole embedding."""
        return sum(tile(tokens) for tile in self.tiles)


class TiledHead(nn.Module):
    """The head that is tied to a tiled embedding: hidden states (..., C) to logits (..., V), a tile at a time."""

    def __init__(self, embedding: TiledEmbedding):
        super().__init__()
        self.embedding = [embedding]  # in a list: the tiles have one name each, that in the embedding

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([tile(x) for tile in self.embedding[0].tiles], dim=-1)


def tile_gpt2(model: nn.Module, splits: int) -> nn.Module:
    """Cut the token embedding of a `models.gpt2.GPT`, and the head that is tied to it, into so many tiles, in place. Call it
    before `shard` and before the optimizer is made. Raises BadInput where head and embedding are two tensors."""
    if model.lm_head.weight is not model.wte.weight:
        raise BadInput("the head of this GPT-2 is not its embedding: take TiledEmbedding and TiledLinear.from_linear for the two")
    model.wte = TiledEmbedding.from_embedding(model.wte, splits, std=0.02)  # as GPT-2 begins
    model.lm_head = TiledHead(model.wte)
    return model


def sizes(what: str, whole: int, splits: int) -> list[int]:
    """Lengths of the pieces, which differ by one at most."""
    if not 1 <= splits <= whole:
        raise BadInput(f"{splits} splits over {what}: there are {whole} to split, so it can be 1 to {whole}")
    return [whole // splits + (number < whole % splits) for number in range(splits)]
