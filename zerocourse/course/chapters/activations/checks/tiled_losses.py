"""The check of 13.5: find the bug in a loss that is computed tile by tile."""

import weakref

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from .....activations.keeping import storage_of
from .....comm.torch_private import TorchDispatchMode
from ....checks import Trial, exercise

N, C, V = 10, 6, 40  # tokens, width, vocabulary
PRODUCTS = "mm", "addmm", "bmm", "baddbmm", "matmul", "linear"


class Logits(TorchDispatchMode):
    """The most elements of one tensor that an operation made, and the rows of V numbers that are alive.

    most: rows of logits that were alive at once, as they came from a product of matrices.
    """

    def __init__(self):
        super().__init__()
        self.elements, self.most, self.made = 0, 0, []  # weak references to storages, which a later one cannot be taken for

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(each, torch.Tensor):
                self.elements = max(self.elements, each.numel())
                if each.shape[-1:] == (V,) and each.shape != (C, V):  # not the weight, transposed
                    storage = each.untyped_storage()
                    rows = storage.nbytes() // (V * each.element_size())
                    self.made.append((StorageWeakRef(storage), rows, func.overloadpacket.__name__ in PRODUCTS))
        self.most = max(self.most, self.rows(products=True))
        return out

    def rows(self, products=False):
        """Rows that are alive; products: of logits alone."""
        return sum({ref.cdata: rows for ref, rows, product in self.made if not ref.expired() and product >= products}.values())


def loss_and_gradients(answer, tiles, factor):
    """The loss, multiplied by a factor, and its gradients."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(N, C, generator=draw, requires_grad=True)
    weight = torch.randn(V, C, generator=draw, requires_grad=True)
    targets = torch.randint(V, (N,), generator=draw)
    packed = []  # weakly: what a tile's own backward has used is gone when the forward is over

    def keep(tensor):
        alias = tensor.detach()
        packed.append(weakref.ref(alias))
        return alias

    with Logits() as logits:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = answer(x, weight, targets, tiles)
        kept = {storage_of(each): each.numel() for each in (ref() for ref in packed)
                if each is not None and each.shape[-1:] == (V,) and storage_of(each) != storage_of(weight)}
        alive, elements = max(logits.rows(), sum(kept.values()) // V), logits.elements
        (factor * loss).backward(retain_graph=True)
    first = x.grad, weight.grad
    seen = {"loss": loss.detach(), "x gradient": x.grad, "weight gradient": weight.grad}
    if x.grad is None or weight.grad is None:
        return seen
    x.grad = weight.grad = None
    (factor * loss).backward()
    same = all(torch.equal(*pair) for pair in zip(first, (x.grad, weight.grad), strict=True))
    at_once = tiles > 2 and alive < N <= logits.most  # a loop may hold a tile until the next one is there
    return seen | {"logits": "all" if elements >= N * V and tiles > 1 or at_once else "in tiles",
                   "kept": "all" if alive >= N and tiles > 1 else "none",
                   "later": "all" if logits.elements >= N * V and tiles > 1 and alive < N else "in tiles", "again": "equal" if same else "others"}


@exercise(
    "13.5", "Find the bug: a loss in tiles", minutes=45, difficulty=2,
    trials=[Trial([(1, 1.0), (2, 1.0)], loss_and_gradients, close=1e-4),
            Trial([(2, 128.0), (2, 0.25)], loss_and_gradients, close=1e-4),
            Trial([(3, 1.0), (4, -0.5)], loss_and_gradients, close=1e-4)],
    mistakes={
        "the bug": {"scale_weight": lambda gradient, factor: gradient},
        "neither": {"scale_x": lambda gradient, factor: gradient, "scale_weight": lambda gradient, factor: gradient},
        "twice": {"scale_weight": lambda gradient, factor: gradient * factor * factor},
        "divided": {"scale_weight": lambda gradient, factor: gradient / factor},
        "the other one": {"scale_x": lambda gradient, factor: gradient},
        "mean of means": {"share": lambda tile, tiles: 1 / tiles},
        "sum": {"share": lambda tile, tiles: tile / 1},
        "last tile": {"add": lambda total, part: part},
        "all at once": lambda x, weight, targets, tiles: nn.functional.cross_entropy(x @ weight.T, targets),
        "tiles kept": lambda x, weight, targets, tiles: sum(
            nn.functional.cross_entropy(x[at] @ weight.T, targets[at], reduction="sum") for at in torch.arange(N).tensor_split(tiles)) / N,
        "in place": {"scale_weight": lambda gradient, factor: gradient.mul_(factor)},
        "x forgotten": {"scale_x": lambda gradient, factor: 0 * gradient},
    })
def tiled_loss(x, weight, targets, tiles, *, scale_x=lambda gradient, factor: gradient * factor,
               scale_weight=lambda gradient, factor: gradient * factor, share=lambda tile, tiles: tile / N,
               add=lambda total, part: total + part):
    """The mean cross entropy of x @ weight.T, tile by tile."""
    class Tiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, targets):
            loss, x_gradient, weight_gradient = x.new_zeros(()), torch.zeros_like(x), torch.zeros_like(weight)
            for at in torch.arange(len(x)).tensor_split(tiles):
                with torch.enable_grad():
                    tile, copy = x[at].detach().requires_grad_(), weight.detach().requires_grad_()
                    part = nn.functional.cross_entropy(tile @ copy.T, targets[at]) * share(len(at), tiles)
                x_gradient[at], gradient = torch.autograd.grad(part, (tile, copy))
                weight_gradient = add(weight_gradient, gradient)
                loss += part.detach()
            ctx.save_for_backward(x_gradient, weight_gradient)
            return loss

        @staticmethod
        def backward(ctx, factor):
            x_gradient, weight_gradient = ctx.saved_tensors
            return scale_x(x_gradient, factor), scale_weight(weight_gradient, factor), None

    return Tiled.apply(x, weight, targets)
