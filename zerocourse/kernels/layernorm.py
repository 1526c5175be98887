"""LayerNorm and RMSNorm in one pass forward and one backward: 2 and 3 memory accesses per element instead of 12 and more.

Shapes: R rows, C columns; x_RC, y_RC; weight_C, bias_C; mean_R, rstd_R (one over the standard deviation), in fp32.

    x̂ = (x - mean)·rstd         y = x̂·weight + bias
    dx = rstd·(ŵ - mean_C(ŵ) - x̂·mean_C(ŵ·x̂))    with ŵ = dy·weight
    dweight = sum_R(dy·x̂)         dbias = sum_R(dy)

RMSNorm is the same without the mean and the bias, which the kernels know as CENTRED: x̂ = x·rstd, with rstd of x itself, and
dx has no mean_C(ŵ). Source: Zhang and Sennrich 2019 (arXiv 1910.07467).

A row fits into the registers of one program. So the forward reads x once. The backward reads dy and x once for dx, and
adds to the sums over rows at the same time. Source: Ba, Kiros and Hinton 2016 (arXiv 1607.06450).
"""

import torch

from ..errors import BadInput
from .backend import INTERPRETED, autotuned, check_device, tl, triton

MOST_COLUMNS = 16384  # of a row that a program can hold
MOST_NUMBERS = 192  # that a thread keeps: of its 255 registers, some hold addresses


def plain_layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """The same in plain PyTorch, operation by operation. Autograd makes its backward."""
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return centred * torch.rsqrt(variance + eps) * weight + bias


def plain_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """The same without the mean and the bias."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


@triton.jit
def forward_kernel(x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, R, C, eps, BLOCK_C: tl.constexpr,
                   CENTRED: tl.constexpr, BLOCK_R: tl.constexpr):
    """One program normalises BLOCK_R rows; BLOCK_C is C, or the next power of two."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.arange(0, BLOCK_C)
    row_is_real, column_is_real = rows < R, columns < C
    at, is_real = rows[:, None] * C + columns[None, :], row_is_real[:, None] & column_is_real[None, :]
    x = tl.load(x_ptr + at, mask=is_real, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=1) / C if CENTRED else tl.zeros((BLOCK_R,), tl.float32)
    centred = tl.where(is_real, x - mean[:, None], 0.0)  # columns beyond C would count -mean each in the variance
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, axis=1) / C + eps)
    weight = tl.load(weight_ptr + columns, mask=column_is_real, other=0.0).to(tl.float32)
    y = centred * rstd[:, None] * weight[None, :]
    if CENTRED:
        y += tl.load(bias_ptr + columns, mask=column_is_real, other=0.0).to(tl.float32)[None, :]
        tl.store(mean_ptr + rows, mean, mask=row_is_real)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=is_real)
    tl.store(rstd_ptr + rows, rstd, mask=row_is_real)


@triton.jit
def backward_kernel(dy_ptr, x_ptr, weight_ptr, mean_ptr, rstd_ptr, dx_ptr, dweights_ptr, dbiases_ptr, R, C,
                    BLOCK_C: tl.constexpr, CENTRED: tl.constexpr, BLOCK_R: tl.constexpr):
    """A program takes every num_programs-th block of rows, and leaves its sums in its own row of dweights, dbiases."""
    columns = tl.arange(0, BLOCK_C)
    column_is_real = columns < C
    weight = tl.load(weight_ptr + columns, mask=column_is_real, other=0.0).to(tl.float32)
    dweight, dbias = tl.zeros((BLOCK_C,), tl.float32), tl.zeros((BLOCK_C,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(R, BLOCK_R), tl.num_programs(0)):
        rows = tl.cast(block, tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
        row_is_real = rows < R
        at, is_real = rows[:, None] * C + columns[None, :], row_is_real[:, None] & column_is_real[None, :]
        dy = tl.load(dy_ptr + at, mask=is_real, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + at, mask=is_real, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + rows, mask=row_is_real, other=0.0) if CENTRED else tl.zeros((BLOCK_R,), tl.float32)
        rstd = tl.load(rstd_ptr + rows, mask=row_is_real, other=0.0)
        normed = tl.where(is_real, (x - mean[:, None]) * rstd[:, None], 0.0)
        weighted = dy * weight[None, :]
        of_mean = tl.sum(weighted, axis=1) / C if CENTRED else tl.zeros((BLOCK_R,), tl.float32)
        of_rstd = tl.sum(weighted * normed, axis=1) / C
        dx = rstd[:, None] * (weighted - of_mean[:, None] - normed * of_rstd[:, None])
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=is_real)
        dweight += tl.sum(dy * normed, axis=0)
        if CENTRED:
            dbias += tl.sum(dy, axis=0)
    mine = tl.program_id(0) * C + columns
    tl.store(dweights_ptr + mine, dweight, mask=column_is_real)
    if CENTRED:
        tl.store(dbiases_ptr + mine, dbias, mask=column_is_real)


CONFIGS = ([triton.Config({"BLOCK_R": 64})] if INTERPRETED else
           [triton.Config({"BLOCK_R": rows}, num_warps=warps)
            for rows, warps in ((1, 1), (1, 4), (1, 8), (2, 4), (4, 4), (8, 8))])


def fits(rows: int, warps: int, block_c: int) -> bool:
    """Do so many rows fit into the registers of a program of so many warps? Of each row the backward has dy and x there, and one
    weight and two sums for all rows. What spills costs bandwidth, and up to a minute of compiling."""
    return (2 * rows + 3) * block_c <= MOST_NUMBERS * 32 * warps


def worth_trying(configs: list[triton.Config], block_c: int) -> list[triton.Config]:
    """Those that fit; where none does, as in rows of more than 8192 columns, one row and the most warps."""
    fitting = [config for config in configs if fits(config.kwargs["BLOCK_R"], config.num_warps, block_c)]
    return fitting or [max(configs, key=lambda config: (-config.kwargs["BLOCK_R"], config.num_warps))]


def prune(configs: list[triton.Config], arguments: dict) -> list[triton.Config]:
    return worth_trying(configs, arguments["BLOCK_C"])


_forward = autotuned(forward_kernel, CONFIGS, key=["C"], prune=prune)
_backward = autotuned(backward_kernel, CONFIGS, key=["C"], prune=prune)


class _Norm(torch.autograd.Function):
    """bias: None for RMSNorm."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        C = x.shape[-1]
        x_RC = x.contiguous().view(-1, C)
        R, y_RC = len(x_RC), torch.empty_like(x_RC)
        mean_R, rstd_R = torch.empty(2, R, device=x.device)
        if R:
            _forward(lambda config: (triton.cdiv(R, config["BLOCK_R"]),), x_RC, weight, weight if bias is None else bias, y_RC,
                     mean_R, rstd_R, R, C, eps, triton.next_power_of_2(C), bias is not None)
        ctx.save_for_backward(x_RC, weight, mean_R, rstd_R)
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y_RC.view(x.shape)

    @staticmethod
    def backward(ctx, dy):
        x_RC, weight, mean_R, rstd_R = ctx.saved_tensors
        R, C = x_RC.shape
        dy_RC, dx_RC = dy.contiguous().view(R, C), torch.empty_like(x_RC)
        programs = _programs(x_RC)
        dweights_PC, dbiases_PC = torch.zeros(2, programs, C, device=x_RC.device)  # zeros: with few rows some have none
        if R:
            _backward(lambda config: (programs,), dy_RC, x_RC, weight, mean_R, rstd_R, dx_RC, dweights_PC, dbiases_PC,
                      R, C, triton.next_power_of_2(C), ctx.bias_dtype is not None)
        dbias_C = None if ctx.bias_dtype is None else dbiases_PC.sum(0).to(ctx.bias_dtype)
        return dx_RC.view(dy.shape), dweights_PC.sum(0).to(weight.dtype), dbias_C, None


def _programs(x_RC: torch.Tensor) -> int:
    """The number of programs: just enough to keep every multiprocessor busy, because each has a row of sums."""
    return 4 * torch.cuda.get_device_properties(x_RC.device).multi_processor_count if x_RC.is_cuda else 2


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """`F.layer_norm(x, x.shape[-1:], weight, bias, eps)` by the kernels, with their backward.

    x: (..., C) of fp32, bf16 or fp16; weight, bias: (C,). The result has x's dtype; sums are in fp32.
    Raises BadInput for a wrong shape, a row of more than 16384, or a device where the kernel cannot run.
    """
    check_device(x, weight, bias)
    C = x.shape[-1] if x.dim() else 0
    if weight.shape != (C,) or bias.shape != (C,):
        raise BadInput(f"layer_norm of {tuple(x.shape)} needs a weight and a bias of shape ({C},), "
                       f"not {tuple(weight.shape)} and {tuple(bias.shape)}")
    check_columns("layer_norm", C)
    return _Norm.apply(x, weight, bias, eps)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """`F.rms_norm(x, x.shape[-1:], weight, eps)` by the same kernels. Shapes, dtypes and what is raised as for `layer_norm`."""
    check_device(x, weight)
    C = x.shape[-1] if x.dim() else 0
    if weight.shape != (C,):
        raise BadInput(f"rms_norm of {tuple(x.shape)} needs a weight of shape ({C},), not {tuple(weight.shape)}")
    check_columns("rms_norm", C)
    return _Norm.apply(x, weight, None, eps)


def check_columns(name: str, columns: int) -> None:
    if not 0 < columns <= MOST_COLUMNS:
        raise BadInput(f"{name} holds a whole row in one program: {columns} columns are not in 1..{MOST_COLUMNS}")


class FusedLayerNorm(torch.nn.LayerNorm):
    """nn.LayerNorm over the last dimension, with weight and bias, by the kernels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


class FusedRMSNorm(torch.nn.RMSNorm):
    """nn.RMSNorm over the last dimension, with a weight, by the kernels. eps: None is that of fp32, as torch has it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, torch.finfo(torch.float32).eps if self.eps is None else self.eps)
