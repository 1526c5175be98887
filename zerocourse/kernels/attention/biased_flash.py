"""The loop of `flash` with biases on the scores, and with blocks that are left out: attention of protein models, and sparse attention.

A score may get two biases before the softmax: one for each key of a sample, which is how padding is masked, and one for each pair of
places, which all N sequences of an alignment share. With matrices of scores this is N · H · T · S numbers for each sample; here no
program has more than a block of them. Where a mask says that a block of queries sees nothing of a block of keys, that block is not even read.
The backward makes the scores of some queries at a time again, from the log-sum-exp.

Shapes: B samples, N sequences of each, H heads, T queries, S keys, D features of a head, a power of two of at least 16.
Sources: Jumper et al. 2021 (AlphaFold, the two biases); DeepSpeed's DS4Sci_EvoformerAttention; Child et al. 2019 (arXiv 1904.10509) and
Beltagy et al. 2020 (arXiv 2004.05150), patterns of blocks.
"""

import torch
from torch import Tensor

from ...errors import BadInput
from ..backend import INTERPRETED, check_device, launcher, tl, triton

CONFIG = triton.Config({"BLOCK_T": 32, "BLOCK_S": 32}, num_warps=4)
BLOCK = CONFIG.kwargs["BLOCK_T"]  # queries and keys of a block of the mask


@triton.jit
def biased_kernel(q_ptr, k_ptr, v_ptr, key_bias_ptr, pair_bias_ptr, mask_ptr, out_ptr, lse_ptr, T, S, N, H, scale, D: tl.constexpr,
                  HAS_KEY: tl.constexpr, HAS_PAIR: tl.constexpr, HAS_MASK: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr):
    """A program has BLOCK_T queries of one head of one sequence. All in fp32 but what is loaded and stored."""
    begin, head = tl.program_id(0) * BLOCK_T, tl.program_id(1).to(tl.int64)  # head: of all B · N · H
    of_sample, sequence, own = head // (N * H), head // H, head % H
    rows, features = begin + tl.arange(0, BLOCK_T), tl.arange(0, D)
    queries = head * T * D + rows[:, None] * D + features[None, :]
    row_is_real = rows[:, None] < T
    q = tl.load(q_ptr + queries, mask=row_is_real, other=0.0)
    most = tl.full((BLOCK_T,), -float("inf"), tl.float32)
    total, out = tl.zeros((BLOCK_T,), tl.float32), tl.zeros((BLOCK_T, D), tl.float32)
    for start in range(0, S, BLOCK_S):
        is_seen = True
        if HAS_MASK:
            place = (own * tl.cdiv(T, BLOCK_T) + tl.program_id(0)) * tl.cdiv(S, BLOCK_S) + start // BLOCK_S
            is_seen = tl.load(mask_ptr + place) != 0
        if is_seen:
            columns = start + tl.arange(0, BLOCK_S)
            keys, column_is_real = head * S * D + columns[:, None] * D + features[None, :], columns[:, None] < S
            k = tl.load(k_ptr + keys, mask=column_is_real, other=0.0)
            v = tl.load(v_ptr + keys, mask=column_is_real, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            if HAS_KEY:
                scores += tl.load(key_bias_ptr + sequence * S + columns, mask=columns < S, other=0.0).to(tl.float32)[None, :]
            if HAS_PAIR:
                pairs = (of_sample * H + own) * T * S + rows[:, None] * S + columns[None, :]
                scores += tl.load(pair_bias_ptr + pairs, mask=row_is_real & (columns[None, :] < S), other=0.0).to(tl.float32)
            scores = tl.where(columns[None, :] < S, scores, -float("inf"))
            larger = tl.maximum(most, tl.max(scores, axis=1))
            base = tl.where(larger == -float("inf"), 0.0, larger)  # a row that has seen nothing yet
            share, kept = tl.exp(scores - base[:, None]), tl.exp(most - base)
            total = total * kept + tl.sum(share, axis=1)
            out = out * kept[:, None] + tl.dot(share.to(v.dtype), v, input_precision="ieee")
            most = larger
    whole = tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + queries, (out / whole[:, None]).to(out_ptr.dtype.element_ty), mask=row_is_real)
    tl.store(lse_ptr + head * T + rows, most + tl.log(whole), mask=rows < T)


_run = launcher(biased_kernel, CONFIG)


class BiasedAttention(torch.autograd.Function):
    """q (B, N, H, T, D), k and v (B, N, H, S, D), key_bias (B, N, S), pair_bias (B, H, T, S), mask (H, blocks of T, blocks of S) -> out."""

    @staticmethod
    def forward(ctx, q, k, v, key_bias, pair_bias, mask):
        B, N, H, T, D = q.shape
        S, lse = k.shape[3], torch.empty(B, N, H, T, device=q.device)
        out = torch.empty_like(q)
        if q.numel() and S:
            none = lse  # a pointer that nobody reads
            _run(lambda config: (triton.cdiv(T, config["BLOCK_T"]), B * N * H), q, k, v, none if key_bias is None else key_bias,
                 none if pair_bias is None else pair_bias, none if mask is None else mask, out, lse, T, S, N, H, D**-0.5, D,
                 key_bias is not None, pair_bias is not None, mask is not None)
        ctx.save_for_backward(q, k, v, key_bias, pair_bias, mask, out, lse)
        return out

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        """A block of queries after the other, so that no more than its scores are there. A bias's gradient is that of the scores, added up over
        all that share it."""
        q, k, v, key_bias, pair_bias, mask, out, lse = ctx.saved_tensors
        grad_out, scale = gradients[0].float(), q.shape[-1] ** -0.5
        grad_q, grad_k, grad_v = (torch.zeros_like(each, dtype=torch.float32) for each in (q, k, v))
        grad_key, grad_pair = (None if each is None else torch.zeros_like(each, dtype=torch.float32) for each in (key_bias, pair_bias))
        weights = (grad_out * out.float()).sum(-1, keepdim=True)
        for number, begin in enumerate(range(0, q.shape[3], BLOCK)):
            part = slice(begin, begin + BLOCK)
            scores = q[..., part, :].float() @ k.float().mT * scale
            if key_bias is not None:
                scores = scores + key_bias[:, :, None, None].float()
            if pair_bias is not None:
                scores = scores + pair_bias[:, None, :, part].float()
            if mask is not None:
                seen = mask[:, number].repeat_interleave(BLOCK, 1)[:, : k.shape[3]].bool()
                scores = scores.masked_fill(~seen[:, None], -float("inf"))
            shares = (scores - lse[..., part, None]).exp().nan_to_num(0.0)  # a row that sees nothing has shares of nothing
            grad_v += shares.mT @ grad_out[..., part, :]
            grad_scores = shares * (grad_out[..., part, :] @ v.float().mT - weights[..., part, :])
            grad_q[..., part, :] = grad_scores @ k.float() * scale
            grad_k += grad_scores.mT @ q[..., part, :].float() * scale
            if grad_key is not None:
                grad_key += grad_scores.sum((2, 3))
            if grad_pair is not None:
                grad_pair[..., part, :] = grad_scores.sum(1)
        return (grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype),
                None if grad_key is None or key_bias is None else grad_key.to(key_bias.dtype),
                None if grad_pair is None or pair_bias is None else grad_pair.to(pair_bias.dtype), None)


def evoformer_attention(q: Tensor, k: Tensor, v: Tensor, key_bias: Tensor | None = None, pair_bias: Tensor | None = None) -> Tensor:
    """Attention within each of N sequences, (B, N, T, H, D) each, as DeepSpeed for Science has it.

    key_bias: (B, N, 1, 1, T).   pair_bias: (B, 1, H, T, T), the same for all sequences of a sample. All have gradients.
    Raises BadInput for other shapes, and for a device where the kernel cannot run.
    """
    B, N, T, H = q.shape[:4]
    for name, bias, shape in (("key_bias", key_bias, (B, N, 1, 1, T)), ("pair_bias", pair_bias, (B, 1, H, T, T))):
        if bias is not None and bias.shape != shape:
            raise BadInput(f"{name} is {tuple(bias.shape)}: for queries {tuple(q.shape)} it must be {shape}")
    check(q, k, v)
    of_keys = None if key_bias is None else key_bias[:, :, 0, 0].contiguous()
    of_pairs = None if pair_bias is None else pair_bias[:, 0].contiguous()
    out = BiasedAttention.apply(*(each.transpose(2, 3).contiguous() for each in (q, k, v)), of_keys, of_pairs, None)
    return out.transpose(2, 3)


def block_sparse_attention(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, seen: Tensor) -> Tensor:
    """(B, H, T, D): attention in which only some blocks of 32 queries see some blocks of 32 keys; the others are not read.

    seen: (H, blocks, blocks) bool. A query that sees nothing gets zeros. Raises BadInput for other shapes.
    """
    H, T = q_BHTD.shape[1:3]
    blocks = -(-T // BLOCK)
    if seen.shape != (H, blocks, blocks):
        raise BadInput(f"seen is {tuple(seen.shape)}: for {H} heads and {T} queries in blocks of {BLOCK} it must be {(H, blocks, blocks)}")
    check(q_BHTD, k_BHTD, v_BHTD)
    parts = (each[:, None].contiguous() for each in (q_BHTD, k_BHTD, v_BHTD))
    return BiasedAttention.apply(*parts, None, None, seen.to(torch.int8).contiguous())[:, 0]


def near_and_first(heads: int, tokens: int, near: int, first: int) -> Tensor:
    """(heads, blocks, blocks): each block sees `near` blocks to either side, and the `first` ones of all, which also see all (Longformer)."""
    blocks = -(-tokens // BLOCK)
    place = torch.arange(blocks)
    seen = ((place[:, None] - place).abs() <= near) | (place < first) | (place[:, None] < first)
    return seen.expand(heads, blocks, blocks)


def check(q: Tensor, k: Tensor, v: Tensor) -> None:
    D = q.shape[-1]
    if not q.shape == k.shape == v.shape or not q.dtype == k.dtype == v.dtype:
        raise BadInput(f"queries are {tuple(q.shape)} in {q.dtype}, keys {tuple(k.shape)} in {k.dtype}, values {tuple(v.shape)} in {v.dtype}: "
                       "they must be alike")
    if D < 16 or D & (D - 1):
        raise BadInput(f"a head has {D} features: the kernel takes a power of two, 16 at least")
    if INTERPRETED and q.dtype is torch.bfloat16:
        raise BadInput("Triton's interpreter multiplies bf16 wrongly, without a word: give the kernel fp16 or fp32 there")
    check_device(q, k, v)
