"""The kernel of AdamW's step: one program updates a block of neighbouring elements, and reads and writes each once."""

import torch

from .backend import INTERPRETED, check_device, launcher, tl, triton


@triton.jit
def adamw_kernel(p_ptr, g_ptr, m_ptr, v_ptr, n, kept, step_size, one_minus_beta1, beta2, one_minus_beta2,
                 root_correction2, eps, BLOCK: tl.constexpr):
    """One program updates BLOCK neighbouring elements. It computes in fp32, whatever the dtype of p and g."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # int64: a shard may have more than 2³¹ elements
    inside = at < n
    p = tl.load(p_ptr + at, mask=inside).to(tl.float32)
    g = tl.load(g_ptr + at, mask=inside).to(tl.float32)
    m = tl.load(m_ptr + at, mask=inside)
    v = tl.load(v_ptr + at, mask=inside)
    m = m + one_minus_beta1 * (g - m)
    v = beta2 * v + one_minus_beta2 * (g * g)
    p = p * kept - step_size * m / (tl.sqrt(v) / root_correction2 + eps)
    tl.store(p_ptr + at, p.to(p_ptr.dtype.element_ty), mask=inside)
    tl.store(m_ptr + at, m, mask=inside)
    tl.store(v_ptr + at, v, mask=inside)


# One config, because memory bounds it whatever the block, and trying several would need a copy of all states to put back:
# 8 neighbours a thread, which it reads 16 bytes at a time. (In the interpreter a program costs a millisecond.)
CONFIG = triton.Config({"BLOCK": 1 << 16}) if INTERPRETED else triton.Config({"BLOCK": 2048}, num_warps=8)
_run = launcher(adamw_kernel, CONFIG)


def fused_adamw(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, t: int, lr: float,
                betas: tuple[float, float], eps: float, weight_decay: float) -> None:
    """One step by the kernel, in place. All are (n,) and contiguous; p and g fp32, bf16 or fp16; m and v fp32."""
    check_device(p, g)
    n, (beta1, beta2) = p.numel(), betas
    _run(lambda config: (triton.cdiv(n, config["BLOCK"]),), p, g, m, v, n, 1 - lr * weight_decay, lr / (1 - beta1**t),
         1 - beta1, beta2, 1 - beta2, (1 - beta2**t) ** 0.5, eps)
