"""The check of 16.w2, which chapter 16 asks for itself: f and g with cut tokens."""

import torch
import torch.nn.functional as F

from .....parallel.tensor.regions import all_gather, reduce_scatter
from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.observers.stage_runs import WatchedComm
from ....checks.words import a
from .cells_borders import backward, border, gradients


def gather_in(part, comm):
    """f with cut tokens: from this rank's T/t to all T. The backward is `scatter_out`'s.

    part: (B, T/t, C).
    `all_gather(part, comm, "f")` returns all ranks' tokens, and
    `reduce_scatter(terms, comm, "g")` this rank's tokens of the sum of all ranks' terms.
    """
    class GatherIn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, part):
            return all_gather(part, comm, "f")

        @staticmethod
        def backward(ctx, of_all_tokens):
            return reduce_scatter(of_all_tokens, comm, "f")

    return GatherIn.apply(part)


def scatter_out(terms, comm):
    """g with cut tokens: from a term of all T tokens to this rank's T/t of the sum."""
    class ScatterOut(torch.autograd.Function):
        @staticmethod
        def forward(ctx, terms):
            return reduce_scatter(terms, comm, "g")

        @staticmethod
        def backward(ctx, of_own_tokens):
            return all_gather(of_own_tokens, comm, "g")

    return ScatterOut.apply(terms)


def region_of_tokens(f, g, tokens):
    """A norm of this rank's tokens, and a cut MLP of all of them."""
    comm = WatchedComm()
    draw, t, rank = torch.Generator().manual_seed(2), comm.world_size, comm.rank
    x, up, down = (torch.randn(size, generator=draw) for size in ((2, tokens * t, 3), (12, 3), (3, 12)))
    hidden = slice(12 // t * rank, 12 // t * (rank + 1))
    own = x[:, tokens * rank:tokens * (rank + 1)].clone().requires_grad_()
    up = up[hidden].clone().requires_grad_()
    entered = f(own, comm)
    if not torch.is_tensor(entered) or entered.shape != x.shape:
        raise Wrong(f"gather_in returned {a(entered) if not torch.is_tensor(entered) else tuple(entered.shape)}: the shape must be {tuple(x.shape)}",
                    MISUSED)
    y = g(F.linear(F.gelu(F.linear(entered, up)), down[:, hidden]), comm)
    if not torch.is_tensor(y) or y.shape != own.shape:
        raise Wrong(f"scatter_out returned {a(y) if not torch.is_tensor(y) else tuple(y.shape)}: the shape must be {tuple(own.shape)}", MISUSED)
    backward(y * torch.arange(1.0, 4) * (1 + rank))
    return {"entered": entered.detach(), "y": y.detach()} | gradients(up=up, own=own)


def gathers(values, comm):
    return all_gather(values, comm, "gather")


def scatters(values, comm):
    return reduce_scatter(values, comm, "scatter")


def takes(values, comm):
    size = values.shape[1] // comm.world_size
    return values[:, size * comm.rank:size * (comm.rank + 1)].clone()


@exercise(
    "16.w2", "f and g with cut tokens", minutes=8, difficulty=1, timeout=15, answer=("gather_in", "scatter_out"), own=(gather_in, scatter_out),
    replaces=("zerocourse.parallel.tensor.regions:gather_in", "zerocourse.parallel.tensor.regions:scatter_out",
              "zerocourse.parallel.tensor.regions:Border"),
    trials=[Trial([(2,), (3,)], region_of_tokens, worlds=(2, 3), close=1e-5)],
    mistakes={
        "own gradient": {"f": (gathers, takes)},
        "own term": {"g": (takes, gathers)},
        "a mean": {"g": (lambda values, comm: scatters(values, comm) / comm.world_size, gathers)},
        "a mean on the way back": {"f": (gathers, lambda values, comm: scatters(values, comm) / comm.world_size)},
        "times t": {"g": (scatters, lambda values, comm: gathers(values, comm) * comm.world_size)},
    })
def borders_of_tokens(*, f=(gathers, scatters), g=(scatters, gathers)):
    """The two right functions."""
    return border(*f), border(*g)
