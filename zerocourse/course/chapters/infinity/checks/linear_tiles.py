"""The check of 15.6: a linear layer cut into tiles."""

import torch
from torch import nn

from ....checks import Trial, Wrong, exercise

LAYERS = [(8, 12, True, 1, 3, "float32"), (8, 12, True, 4, 1, "float32"), (12, 8, True, 3, 2, "float32"), (12, 8, False, 2, 4, "float32"),
          (6, 6, True, 1, 1, "float32")]


def tiled(answer, inputs, outputs, bias, in_splits, out_splits, dtype):
    """What the tiles compute together, and what memory they hold."""
    torch.manual_seed(inputs + outputs)
    kind = getattr(torch, dtype)
    layer, x = nn.Linear(inputs, outputs, bias=bias, dtype=kind), torch.randn(3, inputs, dtype=kind)
    with torch.no_grad():
        right = layer(x)
        rows = answer(layer, in_splits, out_splits)
        if not (isinstance(rows, (list, tuple)) and rows and all(isinstance(row, (list, tuple)) and row and all(
                isinstance(tile, nn.Linear) for tile in row) for row in rows)):
            raise Wrong("it must return a list of rows, each a list of nn.Linear")
        shapes = [[list(tile.weight.shape) for tile in row] for row in rows]
        wanted = [[[outputs // out_splits, inputs // in_splits]] * in_splits] * out_splits
        dtypes = {str(tile.weight.dtype).removeprefix("torch.") for row in rows for tile in row}
        seen = {"weights": shapes, "dtypes": sorted(dtypes)}
        if shapes == wanted and dtypes == {dtype}:
            parts = x.chunk(in_splits, dim=1)
            seen["output"] = torch.cat([sum(tile(part) for tile, part in zip(row, parts)) for row in rows], dim=1)
            own = {param.untyped_storage().data_ptr() for param in layer.parameters()}
            seen["memory"] = max(tile.weight.untyped_storage().nbytes() for row in rows for tile in row)
            seen["shared"] = any(param.untyped_storage().data_ptr() in own for row in rows for tile in row for param in tile.parameters())
        return seen | {"changed": not torch.equal(layer(x), right)}


@exercise(
    "15.6", "Cut a layer into tiles", minutes=25, difficulty=2, own=(),
    replaces=("zerocourse.offload.tiling:TiledLinear.from_linear",), trials=[Trial(LAYERS, tiled), Trial([(8, 12, True, 1, 3, "float64")], tiled)],
    mistakes={
        "bias in each": {"has_bias": lambda column, columns: True},
        "no bias": {"has_bias": lambda column, columns: False},
        "one bias for all": {"bias_of": lambda bias, row, size: bias[:size]},
        "own values": {"copies": False},
        "fp32": {"dtype": torch.Tensor.float},
        "views": {"shares": True},
        "bias view": {"own_bias": lambda bias: bias},
        "in and out": {"swaps": True},
        "same columns": {"column_of": lambda column: 0},
        "same rows": {"row_of": lambda row: 0},
    })
def tile_linear(layer, in_splits, out_splits, *, has_bias=lambda column, columns: column == columns - 1,
                bias_of=lambda bias, row, size: bias[row * size:(row + 1) * size], copies=True, shares=False,
                swaps=False, dtype=lambda block: block, column_of=lambda column: column, own_bias=torch.clone, row_of=lambda row: row):
    """Rows of tiles: over the outputs, and in each over the inputs."""
    if swaps:
        in_splits, out_splits = out_splits, in_splits
    out, inner = layer.out_features // out_splits, layer.in_features // in_splits
    rows = []
    for row in range(out_splits):
        tiles = []
        for column in range(in_splits):
            bias = layer.bias is not None and has_bias(column, in_splits)
            tile, down, right = nn.Linear(inner, out, bias=bias, dtype=layer.weight.dtype), row_of(row) * out, column_of(column) * inner
            block = layer.weight[down:down + out, right:right + inner].detach()
            block = dtype(block)
            if copies:
                tile.weight = nn.Parameter(block if shares else block.clone())
                if bias:
                    tile.bias = nn.Parameter(own_bias(bias_of(layer.bias, row, out).detach()))
            tiles.append(tile)
        rows.append(tiles)
    return rows
