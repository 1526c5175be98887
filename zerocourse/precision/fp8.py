"""Numbers of eight bits, simulated: values are rounded to those that the format has, and keep their dtype.

So one sees on any machine what a format does to a loss. It saves neither memory nor time. Formats: Micikevicius et al.
2022, arXiv 2209.05433; blocks of 32 with a shared power of two: OCP Microscaling Formats (MX) Specification v1.0.
"""

import torch

from ..errors import BadInput

FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}  # largest numbers: 448 and 57344
BLOCK = 32  # elements that share a scale in MXFP8
LEAST, MOST = -127, 127  # exponents of such a scale


def dtype_of(name: str) -> torch.dtype:
    if name not in FORMATS:
        raise BadInput(f"there is no format {name!r}: there are {' and '.join(FORMATS)}")
    return FORMATS[name]


def cast(values: torch.Tensor, name: str) -> torch.Tensor:
    """The nearest numbers (ties to even) that "e4m3" or "e5m2" has; what is too large becomes the largest."""
    most = torch.finfo(dtype_of(name)).max
    return values.clamp(-most, most).to(dtype_of(name)).to(values.dtype)


def mx_scales(values: torch.Tensor, name: str) -> torch.Tensor:
    """The power of two of each block of 32 along the last dimension (..., n) -> (..., n / 32), in fp32.

    The largest element of a block gets the format's largest exponent. Raises BadInput for a last dimension that is no
    multiple of 32.
    """
    if values.dim() == 0 or values.shape[-1] % BLOCK:
        last = values.shape[-1] if values.dim() else 1
        raise BadInput(f"the last dimension, {last}, is not a multiple of {BLOCK}, the block of MXFP8: pad it")
    largest = values.detach().float().unflatten(-1, (-1, BLOCK)).abs().amax(-1)
    most = torch.frexp(torch.tensor(torch.finfo(dtype_of(name)).max)).exponent - 1
    exponents = torch.where(largest > 0, torch.frexp(largest).exponent - 1 - most, LEAST)
    return torch.ldexp(torch.ones_like(largest), exponents.clamp(LEAST, MOST))


def mx_cast(values: torch.Tensor, name: str) -> torch.Tensor:
    """The nearest numbers that MXFP8 has: each block of 32 is divided by its scale, cast, and multiplied again."""
    scales = mx_scales(values, name)[..., None]
    blocks = values.float().unflatten(-1, (-1, BLOCK))
    return (cast(blocks / scales, name) * scales).flatten(-2).to(values.dtype)


class _Simulated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, how, forward, backward):
        ctx.how, ctx.format = how, backward
        return how(values, forward)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.how(gradient, ctx.format), None, None, None


def simulate(values: torch.Tensor, how=cast, forward: str = "e4m3", backward: str = "e5m2") -> torch.Tensor:
    """The values cast by `how` (`cast` or `mx_cast`). Their gradient is cast as well, and nothing else is done to it.

    Put it around the inputs and weights of a matrix product to see what fp8 does to a loss.
    """
    return _Simulated.apply(values, how, forward, backward)
