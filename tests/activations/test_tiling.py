"""Memory-centric tiling: the whole layer's numbers, and a peak that falls by the number of tiles."""

import pytest
import torch
from torch import nn

from zerocourse import deferred_init, shard
from zerocourse.errors import BadInput
from zerocourse.measure.ledger import Ledger
from zerocourse.models.gpt2 import GPT, GPTConfig
from zerocourse.offload.tiling import TiledLinear, tile_gpt2


def whole_layer(width: int = 64) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(width, 4 * width)


def test_over_out_it_is_bitwise_the_whole_layer():
    linear, x = whole_layer(), torch.randn(8, 64)
    for splits in (1, 2, 4):
        assert torch.equal(TiledLinear.from_linear(linear, 1, splits)(x), linear(x))


@pytest.mark.parametrize("in_splits, out_splits", ((4, 1), (3, 5), (64, 256)))
def test_over_in_it_is_the_whole_layer_but_for_the_order_of_additions(in_splits, out_splits):
    linear, x = whole_layer(), torch.randn(8, 64)
    tiled = TiledLinear.from_linear(linear, in_splits, out_splits)
    torch.testing.assert_close(tiled(x), linear(x), atol=2e-6, rtol=0)
    tiled(x).square().sum().backward()
    linear(x).square().sum().backward()
    rows = [torch.cat([tile.weight.grad for tile in list(tiled.tiles)[start : start + in_splits]], dim=1)
            for start in range(0, len(tiled.tiles), in_splits)]
    torch.testing.assert_close(torch.cat(rows), linear.weight.grad, atol=1e-4, rtol=1e-5)


def test_the_bias_is_added_once():
    tiled = TiledLinear(8, 6, in_splits=4, out_splits=2)
    for name, param in tiled.named_parameters():
        nn.init.constant_(param, float("bias" in name))
    assert torch.equal(tiled(torch.randn(3, 8)), torch.ones(3, 6))


def test_tiles_begin_as_the_whole_layer_would():
    """Uniform within 1/√in: a standard deviation of 1/√(3·in), whatever the tile's own fan-in."""
    torch.manual_seed(0)
    tiled = TiledLinear(256, 512, in_splits=4)
    wanted = (3 * 256) ** -0.5
    assert all(abs(tile.weight.std().item() / wanted - 1) < 0.02 for tile in tiled.tiles)
    assert all(tile.weight.abs().max() <= 256**-0.5 for tile in tiled.tiles)


def test_more_tiles_than_features():
    with pytest.raises(BadInput, match="9 splits over in: there are 8 to split, so it can be 1 to 8"):
        TiledLinear(8, 4, in_splits=9)


def test_a_tiled_gpt2_is_the_same_gpt2():
    tokens = torch.randint(0, 101, (2, 7))
    gpts = []
    for splits in (None, 3):
        torch.manual_seed(1)
        model = GPT(GPTConfig(2, 2, 16, block_size=8, vocab_size=101))
        gpts.append(model if splits is None else tile_gpt2(model, splits))
        model(tokens, tokens).backward()
    whole, tiled = gpts
    assert torch.equal(tiled.wte(tokens), whole.wte(tokens))
    torch.testing.assert_close(tiled(tokens), whole(tokens), atol=6e-7, rtol=0)
    gradient = torch.cat([tile.weight.grad for tile in tiled.wte.tiles])
    torch.testing.assert_close(gradient, whole.wte.weight.grad, atol=1e-7, rtol=1e-5)
    assert [name for name, _ in tiled.named_parameters() if "wte" in name or "head" in name] == [
        f"wte.tiles.{number}.weight" for number in range(3)]
    untied = GPT(GPTConfig(1, 1, 8, block_size=8, vocab_size=11, tied=False))
    with pytest.raises(BadInput, match="not its embedding"):
        tile_gpt2(untied, 2)


def test_tiles_of_a_deferred_gpt2_begin_as_gpt2_does():
    with deferred_init():
        model = tile_gpt2(GPT(GPTConfig(1, 1, 32, block_size=8, vocab_size=512)), 4)
    model, _ = shard(model, None, 1)
    assert all(abs(tile.weight.std().item() / 0.02 - 1) < 0.05 for tile in model.wte.tiles)


def bytes_at_the_peak(tiles: int) -> int:
    """At stage 3, in one backward of a large layer, beside what the rank keeps."""
    torch.manual_seed(0)
    linear = nn.Linear(128, 512, bias=False)
    model = nn.Sequential(linear if tiles == 1 else TiledLinear.from_linear(linear, out_splits=tiles))
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.1), stage=3, prefetch=0, in_flight=0,
                             units=["0"] if tiles == 1 else None)
    x = torch.ones(1, 128)
    with Ledger(model, optimizer) as ledger:
        kept = ledger.now().total
        ledger.reset_peak()
        model(x).sum().backward()
        return ledger.peak - kept


def test_the_peak_falls_by_the_number_of_tiles(pool):
    """The gradient's slice stays. Beside it there are, of one tile at a time, parameters, bucket, and the half of it that arrives."""
    elements, kept_gradients, activations = 128 * 512, 4 * 128 * 512 // 2, 584
    for tiles in (1, 2, 8):
        assert pool(2).run(bytes_at_the_peak, tiles) == [kept_gradients + 10 * elements // tiles + activations] * 2
