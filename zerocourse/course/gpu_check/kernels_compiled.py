"""Checks of the Triton kernels, compiled: they equal PyTorch's fused ones, also at odd sizes, and use the memory's bandwidth."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F

from .check_record import EXACT, Record
from .small_training import half

SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
STEPS = 4
LEAST = 0.9  # of the bandwidth that PyTorch's kernel has


def kernels(record: Record) -> None:
    """AdamW and the norms. It is small, so compute-sanitizer can watch it, too: see docs/measurements.md."""
    for dtype in (torch.float32, half()):
        with record.trying(f"AdamW in {dtype}"):
            record.within(8 * torch.finfo(dtype).eps, {f"AdamW in {dtype}": adamw_apart(dtype)})
        for shape in ((1, 1), (3, 65), (300, 200), (2, 3, 1024), (5, 16_384)):
            for norm in ("LayerNorm", "RMSNorm"):
                what = f"{norm} {tuple(shape)} in {dtype}"
                with record.trying(what):
                    record.within(max(8 * torch.finfo(dtype).eps, EXACT), {what: norm_apart(norm, shape, dtype)})


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


def norm_apart(norm: str, shape: tuple[int, ...], dtype: torch.dtype) -> float:
    """Result and gradients beside PyTorch's from the same numbers in fp32: differences as parts of the largest number."""
    from ...kernels.layernorm import layer_norm, rms_norm

    torch.manual_seed(2)
    shapes = (shape, shape[-1:], shape[-1:]) if norm == "LayerNorm" else (shape, shape[-1:])
    inputs = [torch.randn(each, device="cuda").to(dtype).requires_grad_() for each in shapes]
    exact = [each.detach().float().requires_grad_() for each in inputs]
    gradient = torch.randn(shape, device="cuda").to(dtype)
    by_kernel, by_torch = (layer_norm, F.layer_norm) if norm == "LayerNorm" else (rms_norm, F.rms_norm)
    ours = by_kernel(*inputs, eps=1e-5)
    theirs = by_torch(exact[0], shape[-1:], *exact[1:], eps=1e-5)
    gradients = torch.autograd.grad(ours, inputs, gradient), torch.autograd.grad(theirs, exact, gradient.float())
    return furthest([(ours, theirs), *zip(*gradients, strict=True)])


def furthest(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The largest difference of a pair, as a part of its largest number, which counts as 1 at least."""
    return max(((one.float() - other.float()).abs().max() / other.abs().max().float().clamp(min=1)).item() for one, other in pairs)


def head_and_attention(record: Record) -> None:
    """The loss in chunks and the flash attention: values beside PyTorch's in fp64, and the memory that the chunks save."""
    for dtype in (torch.float32, torch.bfloat16):
        for tokens, chunk in ((1, 1), (1000, 333), (4096, None)):
            what = f"loss in chunks, {tokens} tokens, {dtype}"
            with record.trying(what):
                record.within(max(8 * torch.finfo(dtype).eps, EXACT), {what: linear_loss_apart(tokens, chunk, dtype)})
    with record.trying("memory of the loss in chunks"):
        whole, chunks = (loss_peak(chunk) for chunk in (None, 1024))
        record.note(**{"MiB of whole logits": whole >> 20, "MiB of chunks": chunks >> 20})
        record.expect(chunks < 0.3 * whole, "the loss in chunks takes more than three tenths of what whole logits take")
    for bits in (8, 4):
        with record.trying(f"blocks of {bits} bits"):
            record.within(EXACT, {f"blocks of {bits} bits, {numel} numbers": blocks_apart(numel, bits) for numel in (1, 1001, 100_000)})
    for dtype in (torch.float32, half()):
        for T, S, D, causal in ((1, 1, 16, True), (300, 300, 64, True), (129, 1000, 128, False)):
            what = f"flash {T}x{S}x{D}{', causal' if causal else ''}, {dtype}"
            with record.trying(what):
                record.within(max(8 * torch.finfo(dtype).eps, EXACT), {what: flash_apart(T, S, D, causal, dtype)})


def blocks_apart(numel: int, bits: int) -> float:
    """Blocks that the kernels make and add up on the GPU, beside plain PyTorch's on the CPU: the largest difference of a sum. A number that
    lies between two whole ones may go the other way, so payloads are not compared."""
    from ...parallel.plusplus.blocks import dequantized_sum, quantize

    rows = torch.randn(3, numel, generator=torch.Generator().manual_seed(5))
    ours, plain = (dequantized_sum(quantize(values, bits), numel, bits).cpu() for values in (rows.cuda(), rows))
    return (ours - plain).abs().max().item()


def linear_loss_apart(tokens: int, chunk: int | None, dtype: torch.dtype) -> float:
    from ...kernels.linear_loss import linear_cross_entropy

    torch.manual_seed(3)
    x, weight = (torch.randn(*shape, device="cuda").mul(0.3).to(dtype).requires_grad_() for shape in ((tokens, 256), (5000, 256)))
    targets = torch.randint(5000, (tokens,), device="cuda")
    exact = [each.detach().double().requires_grad_() for each in (x, weight)]
    ours, theirs = linear_cross_entropy(x, weight, targets, chunk), F.cross_entropy(exact[0] @ exact[1].T, targets)
    gradients = torch.autograd.grad(3 * ours, (x, weight)), torch.autograd.grad(3 * theirs, exact)
    return furthest([(ours, theirs), *zip(*gradients, strict=True)])


def loss_peak(chunk: int | None) -> int:
    """Bytes above the inputs at the peak of a forward and backward of 8192 tokens and 50,257 words, in bf16."""
    from ...kernels.linear_loss import linear_cross_entropy

    x, weight = (torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16).requires_grad_() for rows in (8192, 50_257))
    targets = torch.randint(50_257, (8192,), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss = F.cross_entropy((x @ weight.T).float(), targets) if chunk is None else linear_cross_entropy(x, weight, targets, chunk)
    loss.backward()
    return torch.cuda.max_memory_allocated() - before


def flash_apart(T: int, S: int, D: int, causal: bool, dtype: torch.dtype) -> float:
    from ...kernels.flash import flash_attention

    torch.manual_seed(4)
    q, k, v = (torch.randn(2, 3, rows, D, device="cuda").to(dtype) for rows in (T, S, S))
    out, lse = flash_attention(q, k, v, causal=causal)
    scores = q.double() @ k.double().mT * D**-0.5
    if causal:
        scores = scores.masked_fill(torch.ones(T, S, dtype=torch.bool, device="cuda").triu(1), -float("inf"))
    return furthest([(out, scores.softmax(-1) @ v.double()), (lse, scores.logsumexp(-1))])


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
