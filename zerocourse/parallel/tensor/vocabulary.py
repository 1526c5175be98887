"""The vocabulary cut among the ranks: V/t rows each of the embedding and of the head, and the loss without whole logits.

The logits of all words would be the largest tensor of many models, and to gather them costs (t - 1)/t · B·T·V elements
per rank. A cross entropy needs of other ranks' words only three numbers a token: the largest logit, the sum of the
exponentials, and the logit of the target, which one rank has (Shoeybi et al. 2019, section 3).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...comm import Comm
from .regions import all_reduce, reduce_out


class VocabularyEmbedding(nn.Module):
    """weight (V/t, C): this rank's words, of which the first is `start`. What is not here counts as zero in a sum."""

    def __init__(self, weight: nn.Parameter, start: int, comm: Comm, unit: str, padding_idx: int | None = None):
        super().__init__()
        self.weight, self.start, self.comm, self.unit = weight, start, comm, unit
        here = padding_idx is not None and 0 <= padding_idx - start < len(weight)
        self.padding_idx = padding_idx - start if here else None

    def forward(self, tokens_BT: Tensor) -> Tensor:
        rows_BT = tokens_BT - self.start
        elsewhere_BT = (rows_BT < 0) | (rows_BT >= len(self.weight))
        x_BTC = F.embedding(rows_BT.masked_fill(elsewhere_BT, 0), self.weight, self.padding_idx)
        return reduce_out(x_BTC.masked_fill(elsewhere_BT[..., None], 0), self.comm, self.unit)


class CrossEntropy(torch.autograd.Function):
    """See `cross_entropy`. logits_NV: this rank's columns, in fp32 or wider."""

    @staticmethod
    def forward(ctx, logits_NV, targets_N, start, vocabulary, smoothing, comm):
        most_N = comm.all_reduce(logits_NV.amax(1), "max")
        shifted_NV = logits_NV - most_N[:, None]
        rows_N = targets_N - start
        here_N = (rows_N >= 0) & (rows_N < logits_NV.shape[1])
        rows_N = rows_N.where(here_N, 0)
        exp_NV = shifted_NV.exp()
        own_N = shifted_NV.gather(1, rows_N[:, None])[:, 0].where(here_N, 0)
        terms = torch.stack([exp_NV.sum(1), own_N] + [shifted_NV.sum(1)] * bool(smoothing))
        sums_N, target_N, *all_N = all_reduce(terms, comm, "cross entropy")
        ctx.save_for_backward(exp_NV.div_(sums_N[:, None]), rows_N, here_N)
        ctx.smoothing, ctx.vocabulary = smoothing, vocabulary
        loss_N = sums_N.log() - (1 - smoothing) * target_N
        return loss_N - smoothing * all_N[0] / vocabulary if smoothing else loss_N

    @staticmethod
    def backward(ctx, gradient_N):
        probabilities_NV, rows_N, here_N = ctx.saved_tensors
        result_NV = probabilities_NV - ctx.smoothing / ctx.vocabulary
        taken_N = (1 - ctx.smoothing) * here_N.to(result_NV.dtype)
        result_NV.scatter_add_(1, rows_N[:, None], -taken_N[:, None])
        return result_NV * gradient_N[:, None], None, None, None, None, None


def cross_entropy(logits: Tensor, targets: Tensor, start: int, vocabulary: int, comm: Comm, label_smoothing: float = 0.0,
                  ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """torch's `cross_entropy`, where each rank has the logits (..., V/t) of its own words; the same on every rank.

    start: the first of this rank's words.   vocabulary: V.   targets: of the whole vocabulary, int64; those that are
    `ignore_index` do not count.   label_smoothing: ε of the probability is spread over all V words, not over V/t.
    reduction: "mean" over the targets that count, or "sum". Sends 3 all-reduces of one element a token (4 with smoothing).
    """
    logits_NV, targets_N = logits.flatten(0, -2), targets.flatten()
    if logits_NV.dtype in (torch.bfloat16, torch.float16):
        logits_NV = logits_NV.float()
    counts_N = targets_N != ignore_index
    loss_N = CrossEntropy.apply(logits_NV, targets_N, start, vocabulary, label_smoothing, comm)
    total = loss_N.where(counts_N, 0).sum()
    return total / counts_N.sum() if reduction == "mean" else total
