"""Numbers in 8 or 4 bits: each block of them has one scale, its largest magnitude over the largest whole number.

Symmetric, without a zero point: x ≈ scale · q with q from -127 to 127, or from -7 to 7. So |x - scale · q| is at most half
a scale, zeros stay zeros, and a block with an infinity or a NaN comes back with nothing finite but its zeros: an overflow
in half precision must still be seen after the transfer. Small blocks are what makes 4 bits enough: one large number spoils
its block alone.
"""

import importlib.util
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 256  # numbers that share a scale: 4 bytes of fp32 for 256 or 128 bytes
LARGEST = {8: 127, 4: 7}


@dataclass(frozen=True)
class Quantized:
    """rows of numbers. payload (rows, bytes) uint8: the whole numbers, in 4 bits two a byte.   scales (rows, blocks) fp32."""

    payload: Tensor
    scales: Tensor


def blocks_of(numel: int) -> int:
    return -(-numel // BLOCK)


def payload_bytes(numel: int, bits: int) -> int:
    """Of a row of so many numbers; the last block is filled up with zeros."""
    return blocks_of(numel) * BLOCK * bits // 8


def empty(rows: int, numel: int, bits: int, device: torch.device) -> Quantized:
    """Memory for what another rank sends."""
    return Quantized(torch.empty(rows, payload_bytes(numel, bits), dtype=torch.uint8, device=device),
                  torch.empty(rows, blocks_of(numel), dtype=torch.float32, device=device))


def quantize(values_rn: Tensor, bits: int) -> Quantized:
    """values_rn: (rows, n) in any floating dtype; each row is cut into blocks by itself. On a GPU a kernel does it, where triton is."""
    if has_kernels(values_rn):
        from ...kernels.quantize import quantize_rows

        return Quantized(*quantize_rows(values_rn, bits, BLOCK))
    rows, numel = values_rn.shape
    padded = torch.zeros(rows, blocks_of(numel) * BLOCK, dtype=torch.float32, device=values_rn.device)
    padded[:, :numel] = values_rn
    blocks = padded.view(rows, -1, BLOCK)
    scales = blocks.abs().amax(2) / LARGEST[bits]
    whole = (blocks / scales.where(scales > 0, 1.0)[..., None]).round()
    # Where the scale is not finite the quotients are 0 or NaN: any number but 0 times such a scale is not finite again.
    broken = ~scales.isfinite()[..., None] & (blocks != 0)
    whole = whole.masked_fill(broken, 1).nan_to_num(0).clamp(-LARGEST[bits], LARGEST[bits]).to(torch.int8).view(rows, -1)
    if bits == 8:
        return Quantized(whole.view(torch.uint8), scales)
    nibbles = (whole + 8).view(torch.uint8)
    return Quantized(nibbles[:, ::2] | nibbles[:, 1::2] << 4, scales)


def has_kernels(tensor: Tensor) -> bool:
    return tensor.is_cuda and importlib.util.find_spec("triton") is not None


def dequantized_sum(blocks: Quantized, numel: int, bits: int) -> Tensor:
    """(numel,) in fp32: the sum over the rows, in one pass by a kernel on a GPU."""
    if has_kernels(blocks.payload):
        from ...kernels.quantize import sum_of_rows

        return sum_of_rows(blocks.payload, blocks.scales, numel, bits, BLOCK)
    return dequantize(blocks, numel, bits).sum(0)


def dequantize(blocks: Quantized, numel: int, bits: int) -> Tensor:
    """(rows, numel) in fp32."""
    rows = len(blocks.payload)
    if bits == 8:
        whole = blocks.payload.view(torch.int8).float()
    else:
        pairs = torch.stack([blocks.payload & 15, blocks.payload >> 4], 2).view(rows, -1)
        whole = pairs.float() - 8
    scaled = whole.view(rows, -1, BLOCK) * blocks.scales[..., None]
    return scaled.where(whole.view(rows, -1, BLOCK) != 0, 0).view(rows, -1)[:, :numel]
