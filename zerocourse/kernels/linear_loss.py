"""The head and its cross entropy in chunks of tokens, so that the logits of all tokens are never there at once.

Shapes: N tokens, C width, V vocabulary, c tokens in a chunk; x_NC, weight_VC, targets_N.

Whole logits are N·V numbers, and their gradients as many again. A chunk's gradient is known as soon as its logits are,
softmax - onehot, and so the forward already computes dx and dW, chunk by chunk, and the backward only multiplies them by what the
loss is multiplied by. That is right for any factor of the loss. In fp16 it would come too late: what the loss is scaled for has
become zero by then, so fp16 is refused.

The price is traffic: each chunk reads W twice, and reads and writes dW. Of small chunks dW costs more than the logits did;
with c of at least C it stays below two thirds of what the logits' own traffic is. No triton is needed.
Source of the idea: Hsu et al. 2024, Liger Kernel, arXiv 2410.10989.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import BadInput

IGNORED = -100


class _LinearLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, chunk: int) -> Tensor:
        counted = (targets_N != IGNORED).sum().clamp(min=1)
        loss = torch.zeros((), dtype=torch.float32, device=x_NC.device)
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        dx_NC = torch.empty_like(x_NC) if needs_x else None
        dweight_VC = torch.zeros_like(weight_VC, dtype=torch.float32) if needs_weight else None
        for begin in range(0, len(x_NC), chunk):
            x, targets = x_NC[begin : begin + chunk], targets_N[begin : begin + chunk]
            logits = (x @ weight_VC.T).float()
            loss += F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
            if not (needs_x or needs_weight):
                continue
            counts = targets != IGNORED
            gradient = torch.softmax(logits, -1, out=logits)  # in place: the logits are done with
            rows = torch.arange(len(x), device=x.device)[counts]
            gradient[rows, targets[counts]] -= 1
            gradient = gradient.mul_(counts[:, None] / counted).to(x.dtype)
            if dx_NC is not None:
                torch.mm(gradient, weight_VC, out=dx_NC[begin : begin + chunk])
            if dweight_VC is not None:
                dweight_VC += gradient.T @ x
        ctx.save_for_backward(dx_NC, dweight_VC)
        ctx.weight_dtype = weight_VC.dtype
        return loss / counted

    @staticmethod
    def backward(ctx, *factors: Tensor):
        dx_NC, dweight_VC = ctx.saved_tensors
        factor = factors[0]
        dx_NC = None if dx_NC is None else dx_NC * factor.to(dx_NC.dtype)
        return dx_NC, None if dweight_VC is None else (dweight_VC * factor).to(ctx.weight_dtype), None, None


def linear_cross_entropy(x: Tensor, weight_VC: Tensor, targets: Tensor, chunk: int | None = None) -> Tensor:
    """`F.cross_entropy((x @ weight.T).float(), targets)`, a mean over the targets that are not -100, as an fp32 scalar.

    x: (..., C) of fp32 or bf16.   targets: (...), int64.   chunk: tokens whose logits are there at once; None: as many as C, at least.
    At the peak it holds c·V numbers of logits in fp32 in place of N·V, and dW in fp32 besides. Where nothing counts it is 0.
    Raises BadInput for other shapes, and for fp16.
    """
    if torch.float16 in (x.dtype, weight_VC.dtype):
        raise BadInput("the loss in chunks computes its gradients before the loss is scaled, and in fp16 small ones would be zero: give it "
                       "bf16 or fp32")
    if weight_VC.dim() != 2 or x.shape[-1:] != weight_VC.shape[1:] or x.shape[:-1] != targets.shape:
        raise BadInput(f"the loss of {tuple(x.shape)} with a head of {tuple(weight_VC.shape)} and targets of {tuple(targets.shape)}: "
                       "needed are (..., C), (V, C) and (...)")
    if chunk is not None and chunk < 1:
        raise BadInput(f"chunk is {chunk}: it must be at least 1 token")
    x_NC = x.flatten(0, -2)
    return _LinearLoss.apply(x_NC, weight_VC, targets.flatten(), chunk or max(x.shape[-1], 1))


def peak_logits_bytes(tokens: int, vocabulary: int, chunk: int | None = None) -> int:
    """Bytes of fp32 logits that are there at once; chunk: None for whole logits, whose gradient is there as well."""
    return 4 * vocabulary * (2 * tokens if chunk is None else min(tokens, chunk))
