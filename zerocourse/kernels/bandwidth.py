"""What part of a GPU's memory bandwidth the kernels reach, beside PyTorch's own fused ones.

All rows of the result are for the same bytes (`traffic`), so their seconds say which kernel wastes bandwidth. The
bandwidth of the memory is measured too, by copying, because nothing reaches the number on the data sheet.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from ..errors import BadInput
from .adamw_kernel import fused_adamw
from .backend import INTERPRETED, triton
from .layernorm import layer_norm, plain_layer_norm
from .traffic import adamw_bytes, layer_norm_bytes


def measure_bandwidth(n: int = 1 << 26, R: int = 1 << 15, C: int = 1024,
                      dtype: torch.dtype = torch.float32) -> list[dict]:
    """Rows of {"kernel", "by", "seconds", "bytes", "gb_per_second", "of_copy"}, medians; `of_copy` is the fraction.

    n: elements of the AdamW step.   R, C: the rows and columns of the LayerNorm; both should be far larger than the
    GPU's cache.   by: "copy", "triton", "torch" (its fused one) or "plain" (operation by operation: the same useful
    bytes in more seconds). Raises BadInput without a GPU.
    """
    if INTERPRETED or not torch.cuda.is_available():
        raise BadInput("measure_bandwidth needs a GPU and compiled kernels: the interpreter says nothing about speed")
    rows = [_row("copy", "copy", 2 * 4 * n, _copy(n)), *_adamw(n, dtype), *_layer_norm(R, C, dtype)]
    return [row | {"of_copy": row["gb_per_second"] / rows[0]["gb_per_second"]} for row in rows]


def _copy(n: int) -> Callable[[], object]:
    source, target = torch.zeros(2, n, device="cuda")
    return lambda: target.copy_(source)


def _adamw(n: int, dtype: torch.dtype) -> list[dict]:
    settings = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    param = torch.nn.Parameter(torch.randn(n, device="cuda", dtype=dtype))
    param.grad = torch.randn_like(param)
    mean, square = torch.zeros(2, n, device="cuda")
    rows = [_row("adamw", "triton", adamw_bytes(n, param.element_size()).total,
                 lambda: fused_adamw(param.data, param.grad, mean, square, 10, **settings))]
    for by, options in (("torch", {"fused": True}), ("plain", {"fused": False, "foreach": False})):
        optimizer = torch.optim.AdamW([param], **settings, **options)
        rows.append(_row("adamw", by, 7 * n * param.element_size(), optimizer.step))  # torch's means have p's dtype
    return rows


def _layer_norm(R: int, C: int, dtype: torch.dtype) -> list[dict]:
    x_RC = torch.randn(R, C, device="cuda", dtype=dtype, requires_grad=True)
    weight_C, bias_C = (torch.randn(C, device="cuda", dtype=dtype, requires_grad=True) for _ in range(2))
    dy_RC = torch.randn_like(x_RC)
    forward, backward = layer_norm_bytes(R, C, x_RC.element_size())
    makers = {"triton": layer_norm, "torch": lambda x, weight, bias: F.layer_norm(x, (C,), weight, bias),
              "plain": plain_layer_norm}
    rows = []
    for by, make in makers.items():
        y_RC = make(x_RC, weight_C, bias_C)
        rows.append(_row("layer_norm", by, forward.total, lambda make=make: make(x_RC, weight_C, bias_C)))
        rows.append(_row("layer_norm backward", by, backward.total, lambda y_RC=y_RC: torch.autograd.grad(
            y_RC, (x_RC, weight_C, bias_C), dy_RC, retain_graph=True)))
    return rows


def _row(kernel: str, by: str, nbytes: int, work: Callable[[], object]) -> dict:
    """The median seconds of the work, with a cold cache."""
    seconds = triton.testing.do_bench(work, warmup=50, rep=200, return_mode="median") / 1e3
    return {"kernel": kernel, "by": by, "seconds": seconds, "bytes": nbytes, "gb_per_second": nbytes / seconds / 1e9}
