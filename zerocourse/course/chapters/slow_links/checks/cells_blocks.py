"""The check of 20.w1, which chapter 20 asks for itself: numbers in 8 bits, with a scale for each block."""

import torch

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a


def quantize(values, block):
    """Whole numbers of 8 bits, and one scale for each block of values.

    values: (n,) fp32; n is a multiple of `block`.
    Returns (whole (n,) int8, from -127 to 127; scales (n / block,) fp32), so that
    scale · whole is off by half a scale at most, and the scale is as small as that allows.
    """
    blocks = values.view(-1, block)
    scales = blocks.abs().amax(1) / 127
    whole = (blocks / scales.where(scales > 0, 1)[:, None]).round()
    return whole.to(torch.int8).flatten(), scales


def dequantize(whole, scales):
    """The values again, (n,) fp32, from what `quantize` returned."""
    return (whole.view(len(scales), -1) * scales[:, None]).flatten()


def there_and_back(quantize, dequantize, kind, block):
    """How far the values are from what they were, in half scales that would do; and what is sent."""
    values = torch.randn(6 * block, generator=torch.Generator().manual_seed(4)) * 1e-3
    if kind == "one large number":
        values[block + 1] = -2.0
    if kind == "a block of zeros":
        values[:block] = 0
    before = values.clone()
    returned = quantize(values, block)
    if not (isinstance(returned, tuple) and len(returned) == 2 and all(map(torch.is_tensor, returned))):
        raise Wrong(f"quantize returned {a(returned)}: return two tensors, the whole numbers and the scales", MISUSED)
    whole, scales = returned
    shapes = tuple(whole.shape), tuple(scales.shape)
    seen = {"dtype": str(whole.dtype), "shapes": shapes}
    if shapes != ((6 * block,), (6,)) or whole.dtype != torch.int8:
        return seen
    half = before.view(6, block).abs().amax(1) / 254
    off = (before - whole.float() * scales.float().repeat_interleave(block)).view(6, block).abs().amax(1)
    seen |= {"finite": bool(off.isfinite().all()), "changed": not torch.equal(before, values)}
    seen["largest"] = whole.int().abs().max().item()
    if seen["finite"]:
        seen["near"] = (off <= 1.001 * half).tolist()
    back = dequantize(torch.arange(-3, 3, dtype=torch.int8), torch.tensor([0.5, 2.0]))
    if not torch.is_tensor(back):
        raise Wrong(f"dequantize returned {a(back)}: return a tensor", MISUSED)
    return seen | {"back": back}


def by_block(values, block):
    return values.view(-1, block)


def fitting(blocks):
    return blocks.abs().amax(1)


@exercise(
    "20.w1", "Eight bits and a scale", minutes=12, difficulty=2, answer=("quantize", "dequantize"), own=(quantize, dequantize),
    replaces=("zerocourse.parallel.plusplus.blocks:*",),
    trials=[Trial([("any numbers", 8), ("one large number", 16), ("a block of zeros", 4)], there_and_back)],
    mistakes={
        "one scale": {"largest": lambda blocks: fitting(blocks).max().expand(len(blocks)).clone()},
        "not rounded": {"rounded": torch.trunc},
        "128": {"levels": 128},
        "coarse": {"levels": 7},
        "without signs": {"largest": lambda blocks: blocks.amax(1).clamp(min=1e-12)},
        "zeros": {"safe": False},
        "scale forgotten": {"restore": lambda whole, scales: whole.float()},
        "divided again": {"restore": lambda whole, scales: (whole.view(len(scales), -1) / scales[:, None]).flatten()},
    })
def two_ways(*, largest=fitting, rounded=torch.round, levels=127, safe=True, restore=dequantize):
    """Both functions."""
    def there(values, block):
        blocks = by_block(values, block)
        scales = largest(blocks) / levels
        whole = rounded(blocks / (scales.where(scales > 0, 1) if safe else scales)[:, None])
        return whole.to(torch.int32).to(torch.int8).flatten(), scales if safe else scales / (scales > 0)
    return there, restore
