"""A matrix of 8-bit numbers times a vector, read as it is: what decoding one token does with each linear layer.

A step that decodes waits for its weights (`formulas.models.kv_cache`). Weights that are restored before the product are read in 8 bits,
written in 32, and read again: at least 9 bytes each, and 31 by the operations of PyTorch. Here a program reads 256 columns of ROWS rows as
they are, restores them in its registers, multiplies and adds in fp32, and goes on to the next columns: 1 byte a weight, and 4 for each
256 of them. The vector is read by every program, and all but the first find it in a cache of the card.

Shapes: O outputs, I inputs. The format is that of `parallel.plusplus.blocks`; I is a multiple of 256, so that no scale belongs to two rows.
Source of the idea: Dettmers et al. 2022 (arXiv 2208.07339).
"""

import torch
from torch import Tensor

from ..errors import BadInput
from .backend import check_device, launcher, tl, triton

BLOCK = tl.constexpr(256)  # columns that share a scale
ROWS = 16  # of a program: each thread then reads 16 weights at a time, and x is read by fewer programs than there are rows
CONFIG = triton.Config({"ROWS": ROWS}, num_warps=4)


@triton.jit
def int8_product_kernel(payload_ptr, scales_ptr, x_ptr, out_ptr, O, I, ROWS: tl.constexpr):  # noqa: E741  # as in the shapes
    """payload (O, I) uint8 that are int8, scales (O, I / 256), x (I,), out (O,)."""
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    is_real = rows < O
    at = rows.to(tl.int64)[:, None] * I + columns[None, :]
    first_scale = rows.to(tl.int64) * (I // BLOCK)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for block in range(I // BLOCK):
        whole = tl.load(payload_ptr + at + block * BLOCK, mask=is_real[:, None], other=0).to(tl.int8, bitcast=True).to(tl.float32)
        scale = tl.load(scales_ptr + first_scale + block, mask=is_real, other=0.0)
        x = tl.load(x_ptr + columns + block * BLOCK)
        total += whole * scale[:, None] * x[None, :]
    tl.store(out_ptr + rows, tl.sum(total, axis=1), mask=is_real)


_product = launcher(int8_product_kernel, CONFIG)


def int8_product(payload: Tensor, scales: Tensor, x_I: Tensor) -> Tensor:
    """(O,) fp32: W @ x, of the rows W (O, I) for which payload and scales of `parallel.plusplus.blocks.quantize` stand, in their order.

    payload: O · I bytes.   scales: O · I / 256 numbers in fp32.   x_I: in any floating dtype. Raises BadInput where I is no multiple of 256,
    for a payload of other than whole rows, and where the kernel cannot run.
    """
    check_device(payload)
    inputs = x_I.numel()
    if not inputs or inputs % BLOCK.value or payload.numel() % inputs or scales.numel() * BLOCK.value != payload.numel():
        raise BadInput(f"{payload.numel()} weights, {scales.numel()} scales and {inputs} inputs: a row must be as long as the inputs, and have a "
                       f"scale for each {BLOCK.value} of its weights")
    outputs = payload.numel() // inputs
    out_O = torch.empty(outputs, device=x_I.device)
    if outputs:
        _product(lambda config: (triton.cdiv(outputs, config["ROWS"]),), payload.contiguous(), scales.contiguous(), x_I.float().contiguous(), out_O,
                 outputs, inputs)
    return out_O


def int8_product_bytes(outputs: int, inputs: int) -> tuple[int, int]:
    """(read, written): a byte a weight, 4 for each scale, x by every program, and the result."""
    return outputs * inputs + 4 * outputs * (inputs // BLOCK.value) + 4 * inputs * -(-outputs // ROWS), 4 * outputs
