"""Attention of some queries to some of the keys, so that the rest of the keys can be added later. It communicates nothing.

The softmax of a row needs all its scores, yet not at once: an output over some keys, together with the logarithm of the sum
of their exponentials (lse), can be merged with one over other keys. The backward needs the final output and lse only.

Shapes: B batch, H heads, K heads of keys and values (H/K = G queries' heads share one), q queries, c keys, D width of a head.
All arithmetic is in fp32 at least. A block takes B·H·q·c scores of memory while it is computed.
Source: Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135, algorithms 1 and 4; Liu et al., 2310.01889.
"""

import torch
from torch import Tensor


def block_forward(q_BHqD: Tensor, k_BKcD: Tensor, v_BKcD: Tensor, scale: float, diagonal: bool) -> tuple[Tensor, Tensor]:
    """(out (B, H, q, D), lse (B, H, q)) over these keys alone.   diagonal: query i sees keys 0 to i, else all."""
    scores_BKGqc = _scores(q_BHqD, k_BKcD, scale, diagonal)
    lse_BKGq = scores_BKGqc.logsumexp(dim=-1)
    out = (scores_BKGqc - lse_BKGq[..., None]).exp() @ _wide(v_BKcD)[:, :, None]
    return out.flatten(1, 2), lse_BKGq.flatten(1, 2)


def merge(out: Tensor, lse: Tensor, more_out: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """The output and lse over the keys of both, from those over each."""
    both = torch.logaddexp(lse, more_lse)
    return out * (lse - both).exp()[..., None] + more_out * (more_lse - both).exp()[..., None], both


def block_backward(gradient_BHqD: Tensor, q_BHqD: Tensor, k_BKcD: Tensor, v_BKcD: Tensor, out_BHqD: Tensor, lse_BHq: Tensor,
                   scale: float, diagonal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """What these keys add to the gradients of (queries, keys, values), given the final output and lse over all keys."""
    heads = (k_BKcD.shape[1], -1)
    q, dout, out = (_wide(each).unflatten(1, heads) for each in (q_BHqD, gradient_BHqD, out_BHqD))  # (B, K, G, q, D)
    k, v = _wide(k_BKcD)[:, :, None], _wide(v_BKcD)[:, :, None]  # (B, K, 1, c, D)
    p = (_scores(q_BHqD, k_BKcD, scale, diagonal) - lse_BHq.unflatten(1, heads)[..., None]).exp()
    mean = (dout * out).sum(dim=-1, keepdim=True)  # of dout·v over a row's softmax
    dscores = p * (dout @ v.mT - mean) * scale
    return (dscores @ k).flatten(1, 2), (dscores.mT @ q).sum(dim=2), (p.mT @ dout).sum(dim=2)


def _scores(q_BHqD: Tensor, k_BKcD: Tensor, scale: float, diagonal: bool) -> Tensor:
    scores = _wide(q_BHqD).unflatten(1, (k_BKcD.shape[1], -1)) @ _wide(k_BKcD)[:, :, None].mT * scale
    if diagonal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return scores


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
