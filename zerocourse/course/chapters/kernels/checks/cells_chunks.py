"""The check of 22.w2, which chapter 22 asks for itself: a head's loss and its gradients, a few tokens at a time."""

import torch
import torch.nn.functional as F

from .....comm.torch_private import TorchDispatchMode
from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a

N, C, V = 22, 4, 50


def loss_in_chunks(x, weight, targets, chunk):
    """The mean cross entropy of the logits x @ weight.T, and its gradients.

    x: (N, C).   weight: (V, C).   targets: (N,) int64.
    Returns (loss, dx (N, C), dweight (V, C)). No more than `chunk` rows of logits, or of
    what becomes of them, are there at a time.
    """
    loss, dx, dweight = 0.0, torch.empty_like(x), torch.zeros_like(weight)
    for begin in range(0, len(x), chunk):
        rows = slice(begin, begin + chunk)
        logits = x[rows] @ weight.T
        loss += F.cross_entropy(logits, targets[rows], reduction="sum") / len(x)
        gradient = logits.softmax(-1)
        gradient[torch.arange(len(gradient)), targets[rows]] -= 1
        gradient /= len(x)
        dx[rows] = gradient @ weight
        dweight += gradient.T @ x[rows]
    return loss, dx, dweight


class Rows(TorchDispatchMode):
    """The most rows of V numbers that an operation has made."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for each in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(each, torch.Tensor) and not function.is_view and each.shape[-1:] == (V,):
                self.most = max(self.most, each.numel() // V)
        return made


def in_chunks(answer, chunk):
    """Loss and gradients, and how many rows of logits were there."""
    source = torch.Generator().manual_seed(chunk)
    x, weight = (torch.randn(*shape, generator=source) for shape in ((N, C), (V, C)))
    targets = torch.randint(V, (N,), generator=source)
    with Rows() as seen:
        made = answer(x, weight, targets, chunk)
    if not (isinstance(made, tuple) and len(made) == 3 and all(map(torch.is_tensor, made[1:]))):
        raise Wrong(f"it returned {a(made)}: return the loss and two tensors, dx and dweight", MISUSED)
    loss, dx, dweight = made
    return {"rows": seen.most <= chunk, "loss": float(loss), "dx": dx.detach(), "dweight": dweight.detach(), "_most": seen.most, "_chunk": chunk}


@exercise(
    "22.w2", "A loss in chunks", minutes=20, difficulty=3, answer="loss_in_chunks", own=loss_in_chunks,
    replaces=("zerocourse.kernels.linear_loss:*",), trials=[Trial([(22,), (11,), (8,)], in_chunks, close=1e-4)],
    mistakes={
        "all at once": {"size": lambda chunk: N},
        "mean of a chunk": {"of": lambda rows, chunk: rows},
        "mean of means": {"of": lambda rows, chunk: rows * -(-N // chunk)},
        "gradients not divided": {"gradient_of": lambda count: 1},
        "last chunk": {"adds": False},
        "no target": {"minus": 0},
        "rest left out": {"end": lambda chunk: N // chunk * chunk},
        "turned": {"turned": True},
    })
def chunked_loss(x, weight, targets, chunk, *, size=lambda chunk: chunk, of=lambda rows, chunk: N, gradient_of=None, adds=True, minus=1,
                 end=lambda chunk: N, turned=False):
    """(loss, dx, dweight)."""
    loss, dx, dweight = 0.0, torch.zeros_like(x), torch.zeros_like(weight)
    for begin in range(0, end(chunk), size(chunk)):
        rows = slice(begin, min(begin + size(chunk), end(chunk)))
        logits = x[rows] @ weight.T
        count = of(len(logits), chunk)
        loss += F.cross_entropy(logits, targets[rows], reduction="sum") / count
        gradient = logits.softmax(-1)
        gradient[torch.arange(len(gradient)), targets[rows]] -= minus
        gradient /= gradient_of(count) if gradient_of else count
        dx[rows] = gradient @ weight
        dweight = (dweight if adds else 0) + gradient.T @ x[rows]
    return (loss, dweight, dx) if turned else (loss, dx, dweight)
