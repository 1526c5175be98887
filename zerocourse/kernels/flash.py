"""Attention without a matrix of scores, small enough to read: forward alone, with the log-sum-exp that lets others be merged.

Shapes: Z heads of all samples, T queries, S keys, D width of a head, a power of two of at least 16.

A program takes BLOCK_T queries of one head, and runs over the keys in pieces of BLOCK_S. It keeps a running maximum, the sum of
exponentials below it, and the output so far; where a piece brings a larger maximum, both are scaled down to it. That is the same line as
`parallel.context.score_block.merge`, by which a ring adds the keys of another rank: a piece here is a rank there.
Sources: Milakov and Gimelshein 2018 (arXiv 1805.02867); Dao et al. 2022 (arXiv 2205.14135), algorithm 1.
"""

import torch
from torch import Tensor

from ..errors import BadInput
from .backend import INTERPRETED, check_device, launcher, tl, triton

CONFIG = triton.Config({"BLOCK_T": 64, "BLOCK_S": 32}, num_warps=4)


@triton.jit
def flash_kernel(q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, T, S, scale, D: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_T: tl.constexpr,
                 BLOCK_S: tl.constexpr):
    """All in fp32 but what is loaded and stored. CAUSAL: query i sees keys 0 to i."""
    begin, head = tl.program_id(0) * BLOCK_T, tl.program_id(1).to(tl.int64)
    rows, features = begin + tl.arange(0, BLOCK_T), tl.arange(0, D)
    queries = head * T * D + rows[:, None] * D + features[None, :]
    row_is_real = rows[:, None] < T
    q = tl.load(q_ptr + queries, mask=row_is_real, other=0.0)
    most = tl.full((BLOCK_T,), -float("inf"), tl.float32)
    total, out = tl.zeros((BLOCK_T,), tl.float32), tl.zeros((BLOCK_T, D), tl.float32)
    end = tl.minimum(begin + BLOCK_T, S) if CAUSAL else S
    for start in range(0, end, BLOCK_S):
        columns = start + tl.arange(0, BLOCK_S)
        keys, column_is_real = head * S * D + columns[:, None] * D + features[None, :], columns[:, None] < S
        k = tl.load(k_ptr + keys, mask=column_is_real, other=0.0)
        v = tl.load(v_ptr + keys, mask=column_is_real, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = (columns[None, :] < S) & ((columns[None, :] <= rows[:, None]) if CAUSAL else (rows[:, None] >= 0))
        scores = tl.where(seen, scores, -float("inf"))
        larger = tl.maximum(most, tl.max(scores, axis=1))
        share, kept = tl.exp(scores - larger[:, None]), tl.exp(most - larger)
        total = total * kept + tl.sum(share, axis=1)
        out = out * kept[:, None] + tl.dot(share.to(v.dtype), v, input_precision="ieee")
        most = larger
    tl.store(out_ptr + queries, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=row_is_real)
    tl.store(lse_ptr + head * T + rows, most + tl.log(total), mask=rows < T)


_run = launcher(flash_kernel, CONFIG)


def flash_attention(q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, scale: float | None = None, causal: bool = True) -> tuple[Tensor, Tensor]:
    """(out (B, H, T, D) in q's dtype, lse (B, H, T) in fp32). It has no backward.

    scale: of the scores; None: D ** -0.5.   causal: query i sees keys 0 to i, and there are as many keys as queries.
    Raises BadInput for other shapes, and for a device where the kernel cannot run.
    """
    B, H, T, D = q_BHTD.shape
    S = k_BHSD.shape[2]
    if k_BHSD.shape != v_BHSD.shape or k_BHSD.shape != (B, H, S, D):
        raise BadInput(f"queries are {tuple(q_BHTD.shape)}, keys {tuple(k_BHSD.shape)} and values {tuple(v_BHSD.shape)}: keys and values "
                       "must be alike, with as many samples and heads, of the same width")
    if D < 16 or D & (D - 1):
        raise BadInput(f"a head has {D} features: the kernel takes a power of two, 16 at least")
    if causal and S != T:
        raise BadInput(f"causal attention needs as many keys as queries, and there are {S} and {T}")
    if INTERPRETED and q_BHTD.dtype is torch.bfloat16:
        raise BadInput("Triton's interpreter multiplies bf16 wrongly, without a word: give the kernel fp16 or fp32 there")
    check_device(q_BHTD, k_BHSD, v_BHSD)
    q, k, v = (each.contiguous() for each in (q_BHTD, k_BHSD, v_BHSD))
    out, lse = torch.empty_like(q), torch.empty(B, H, T, device=q.device)
    if q.numel() and S:
        _run(lambda config: (triton.cdiv(T, config["BLOCK_T"]), B * H), q, k, v, out, lse, T, S, D**-0.5 if scale is None else scale, D, causal)
    return out, lse


def flash_reads(heads: int, queries: int, keys: int, width: int, element: int, causal: bool = True) -> int:
    """Bytes that the kernel reads: q once, and k and v once for each block of queries, which under `causal` stops at its last one."""
    block_T, block_S = CONFIG.kwargs["BLOCK_T"], CONFIG.kwargs["BLOCK_S"]
    ends = [min(begin + block_T, keys) if causal else keys for begin in range(0, queries, block_T)]
    rows = sum(min(-(-end // block_S) * block_S, keys) for end in ends)
    return heads * width * element * (queries + 2 * rows)
