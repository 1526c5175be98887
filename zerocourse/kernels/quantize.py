"""Numbers in 8 or 4 bits by one pass over memory, and back into a sum: what `parallel.plusplus` sends.

A program takes one block of one row. To quantize it reads the block once, finds its largest magnitude, and writes whole numbers and a
scale: 4 + 1 bytes an element for fp32 in 8 bits, where the operations of PyTorch move 77. To add up it reads a block of every row, and
writes their sum once. Values are those of `parallel.plusplus.blocks`, bit by bit, infinities and NaN included.
Source of the format: Wang et al. 2023 (arXiv 2306.10209), section 3.
"""

import torch
from torch import Tensor

from ..errors import BadInput
from .backend import check_device, launcher, tl, triton

CONFIG = triton.Config({}, num_warps=1)  # a block is a few hundred numbers
TO_EVEN = tl.constexpr(12_582_912.0)  # 1.5 · 2²³: a number below 2²² that is added to it loses its fraction, and ties go to even
LARGEST = {8: 127, 4: 7}


@triton.jit
def whole_numbers(x, scale, most):
    """x over the scale, rounded. Where the scale is infinite or NaN: 1, which times the scale is not finite either, and 0 for zeros."""
    quotient = tl.div_rn(x, tl.where(scale > 0, scale, 1.0))
    rounded = tl.minimum(tl.maximum((quotient + TO_EVEN) - TO_EVEN, -most), most)
    return tl.where(scale - scale == 0, rounded, tl.where(x != 0, 1.0, 0.0))


@triton.jit
def largest_of(x):
    """The largest magnitude; NaN where one number is."""
    return tl.where(tl.sum((x != x).to(tl.int32), axis=0) > 0, float("nan"), tl.max(tl.abs(x), axis=0))


@triton.jit
def quantize_kernel(x_ptr, payload_ptr, scales_ptr, n, BLOCK: tl.constexpr, BITS: tl.constexpr, MOST: tl.constexpr):
    """x (rows, n), payload (rows, blocks · BLOCK · BITS / 8) uint8, scales (rows, blocks)."""
    block, row, blocks = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    if BITS == 8:
        at = block * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0).to(tl.float32)
        scale = tl.div_rn(largest_of(x), MOST * 1.0)
        tl.store(payload_ptr + row * blocks * BLOCK + at, whole_numbers(x, scale, MOST * 1.0).to(tl.int8).to(tl.uint8, bitcast=True))
    else:
        pair = block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
        low = tl.load(x_ptr + row * n + 2 * pair, mask=2 * pair < n, other=0.0).to(tl.float32)
        high = tl.load(x_ptr + row * n + 2 * pair + 1, mask=2 * pair + 1 < n, other=0.0).to(tl.float32)
        most_low, most_high = largest_of(low), largest_of(high)
        largest = tl.where((most_low != most_low) | (most_high != most_high), float("nan"), tl.maximum(most_low, most_high))
        scale = tl.div_rn(largest, MOST * 1.0)
        packed = (whole_numbers(low, scale, MOST * 1.0) + 8).to(tl.int32) | ((whole_numbers(high, scale, MOST * 1.0) + 8).to(tl.int32) << 4)
        tl.store(payload_ptr + row * blocks * (BLOCK // 2) + pair, packed.to(tl.uint8))
    tl.store(scales_ptr + row * blocks + block, scale)


@triton.jit
def restored(whole, scale):
    """Zeros stay zeros, whatever the scale."""
    return tl.where(whole != 0, whole * scale, 0.0)


@triton.jit
def sum_kernel(payload_ptr, scales_ptr, out_ptr, n, rows, BLOCK: tl.constexpr, BITS: tl.constexpr):
    """out (n,) fp32: the sum over the rows."""
    block, blocks = tl.program_id(0), tl.num_programs(0)
    if BITS == 8:
        at = block * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for row in range(rows):
            scale = tl.load(scales_ptr + tl.cast(row, tl.int64) * blocks + block)
            whole = tl.load(payload_ptr + tl.cast(row, tl.int64) * blocks * BLOCK + at).to(tl.int8, bitcast=True)
            total += restored(whole.to(tl.float32), scale)
        tl.store(out_ptr + at, total, mask=at < n)
    else:
        pair = block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
        low, high = tl.zeros((BLOCK // 2,), tl.float32), tl.zeros((BLOCK // 2,), tl.float32)
        for row in range(rows):
            scale = tl.load(scales_ptr + tl.cast(row, tl.int64) * blocks + block)
            packed = tl.load(payload_ptr + tl.cast(row, tl.int64) * blocks * (BLOCK // 2) + pair).to(tl.int32)
            low += restored(((packed & 15) - 8).to(tl.float32), scale)
            high += restored(((packed >> 4) - 8).to(tl.float32), scale)
        tl.store(out_ptr + 2 * pair, low, mask=2 * pair < n)
        tl.store(out_ptr + 2 * pair + 1, high, mask=2 * pair + 1 < n)


_quantize, _sum = launcher(quantize_kernel, CONFIG), launcher(sum_kernel, CONFIG)


def quantize_rows(values_rn: Tensor, bits: int, block: int) -> tuple[Tensor, Tensor]:
    """(payload (rows, blocks · block · bits / 8) uint8, scales (rows, blocks) fp32); each row is cut into blocks by itself.

    values_rn: (rows, n) of any floating dtype; what a last block has too few is filled up with zeros.   bits: 8 or 4.
    block: numbers that share a scale, a power of two. Raises BadInput for other numbers, and where the kernel cannot run.
    """
    check(bits, block, values_rn)
    rows, n = values_rn.shape
    blocks = -(-n // block)
    payload = torch.empty(rows, blocks * block * bits // 8, dtype=torch.uint8, device=values_rn.device)
    scales = torch.empty(rows, blocks, device=values_rn.device)
    if payload.numel():
        _quantize(lambda config: (blocks, rows), values_rn.contiguous(), payload, scales, n, block, bits, LARGEST[bits])
    return payload, scales


def sum_of_rows(payload: Tensor, scales: Tensor, numel: int, bits: int, block: int) -> Tensor:
    """(numel,) fp32: what the rows of `quantize_rows` stand for, added up. What is raised: as there."""
    check(bits, block, payload)
    out = torch.zeros(numel, device=payload.device)
    if numel and len(payload):
        _sum(lambda config: (scales.shape[1],), payload.contiguous(), scales.contiguous(), out, numel, len(payload), block, bits)
    return out


def check(bits: int, block: int, tensor: Tensor) -> None:
    check_device(tensor)
    if bits not in LARGEST or block < 2 or block & (block - 1):
        raise BadInput(f"{bits} bits in blocks of {block}: the kernel has 8 and 4 bits, and blocks of a power of two")


def quantize_bytes(numel: int, element: int, bits: int, block: int) -> tuple[int, int]:
    """(read, written) for a row."""
    blocks = -(-numel // block)
    return numel * element, blocks * (block * bits // 8 + 4)
