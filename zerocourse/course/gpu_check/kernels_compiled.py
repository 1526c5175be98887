"""Checks of the Triton kernels, compiled: they equal PyTorch's fused ones, also at odd sizes, and use the memory's bandwidth."""

import torch
import torch.nn.functional as F

from .check_record import EXACT, Record
from .small_training import half

SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
STEPS = 4
LEAST = 0.9  # of the bandwidth that PyTorch's kernel has


def kernels(record: Record) -> None:
    """AdamW and LayerNorm. It is small, so compute-sanitizer can watch it, too: see docs/measurements.md."""
    for dtype in (torch.float32, half()):
        with record.trying(f"AdamW in {dtype}"):
            record.within(8 * torch.finfo(dtype).eps, {f"AdamW in {dtype}": adamw_apart(dtype)})
        for shape in ((1, 1), (3, 65), (300, 200), (2, 3, 1024), (5, 16_384)):
            what = f"LayerNorm {tuple(shape)} in {dtype}"
            with record.trying(what):
                record.within(max(8 * torch.finfo(dtype).eps, EXACT), {what: layer_norm_apart(shape, dtype)})


def adamw_apart(dtype: torch.dtype) -> float:
    """Ours in `dtype` with fp32 states beside PyTorch's in fp32: the largest difference of parameters, the largest being about 3.

    Parameters begin three elements into their memory, so their addresses are multiples of nothing.
    """
    from ...kernels.adamw import FusedAdamW

    source = torch.Generator(device="cuda").manual_seed(0)
    shapes = [(1,), (1000,), (65_537,), (7, 13)]
    values = [torch.randn(torch.Size(shape).numel() + 3, generator=source, device="cuda").to(dtype) for shape in shapes]
    ours, theirs = ([torch.nn.Parameter(make(value)[3:].view(shape)) for value, shape in zip(values, shapes, strict=True)]
                    for make in (torch.clone, torch.Tensor.float))
    optimizers = FusedAdamW(ours, **SETTINGS), torch.optim.AdamW(theirs, fused=True, **SETTINGS)
    for _step in range(1 if dtype != torch.float32 else STEPS):  # in half precision each step rounds the parameters
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=source, device="cuda").to(dtype)
            other.grad = one.grad.float()
        for optimizer in optimizers:
            optimizer.step()
    return max(((one.float() - other).abs() / other.abs().clamp(min=1)).max().item() for one, other in zip(ours, theirs, strict=True))


def layer_norm_apart(shape: tuple[int, ...], dtype: torch.dtype) -> float:
    """Result and three gradients beside PyTorch's from the same numbers in fp32: differences as parts of the largest number."""
    from ...kernels.layernorm import layer_norm

    torch.manual_seed(2)
    inputs = [torch.randn(each, device="cuda").to(dtype).requires_grad_() for each in (shape, shape[-1:], shape[-1:])]
    exact = [each.detach().float().requires_grad_() for each in inputs]
    gradient = torch.randn(shape, device="cuda").to(dtype)
    ours, theirs = layer_norm(*inputs), F.layer_norm(exact[0], shape[-1:], *exact[1:])
    gradients = torch.autograd.grad(ours, inputs, gradient), torch.autograd.grad(theirs, exact, gradient.float())
    pairs = [(ours, theirs), *zip(*gradients, strict=True)]
    return max(((one.float() - other).abs().max() / other.abs().max().clamp(min=1)).item() for one, other in pairs)


def bandwidth(record: Record) -> None:
    """GB/s of each kernel, beside PyTorch's fused ones and those that it runs operation by operation."""
    from ...kernels.bandwidth import measure_bandwidth

    reached: dict[str, dict[str, float]] = {}
    for row in measure_bandwidth():
        reached.setdefault(row["kernel"], {})[row["by"]] = row["gb_per_second"]
    record.note(gb_per_second=reached)
    for kernel, by in reached.items():
        if "triton" in by:
            record.expect(by["triton"] >= LEAST * by["torch"], f"{kernel} has {by['triton']:.0f} GB/s, and PyTorch's {by['torch']:.0f}")
