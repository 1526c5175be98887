"""The checks of what chapter 16 asks for itself: 16.w1, f and g, and 16.w2, the same with cut tokens."""

import torch
import torch.nn.functional as F

from .....parallel.tensor.regions import all_gather, reduce_scatter
from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.observers.stage_runs import WatchedComm
from ....checks.words import a

# 16.w1 ----------------------------------------------------------------------------------------------------------------

def copy_in(values, comm):
    """f: returns what it was given. In the backward the gradients of all ranks are added up.

    comm: `comm.all_reduce(tensor)` adds up over the ranks, in place, and returns the tensor.
    """
    class CopyIn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values):
            return values.view_as(values)  # what a function returns must be a tensor of its own

        @staticmethod
        def backward(ctx, gradient):
            return comm.all_reduce(gradient.clone())

    return CopyIn.apply(values)


def reduce_out(values, comm):
    """g: returns the sum of all ranks' `values`. In the backward the gradient passes as it is."""
    class ReduceOut(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values):
            return comm.all_reduce(values.clone())

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return ReduceOut.apply(values)


def region(f, g, tokens=4):
    """A cut MLP between f and g on this rank: what comes out, and the gradients."""
    comm = WatchedComm()
    draw = torch.Generator().manual_seed(1)
    x, up, down = (torch.randn(size, generator=draw) for size in ((tokens, 3), (12, 3), (3, 12)))
    own = slice(12 // comm.world_size * comm.rank, 12 // comm.world_size * (comm.rank + 1))
    x.requires_grad_()
    before = x.detach().clone()
    up, down = up[own].clone().requires_grad_(), down[:, own].clone().requires_grad_()
    entered = f(x, comm)
    if not torch.is_tensor(entered):
        raise Wrong(f"f returned {a(entered)}: return a tensor", MISUSED)
    term = F.linear(F.gelu(F.linear(entered, up)), down)
    kept = term.detach().clone()
    y = g(term, comm)
    if not torch.is_tensor(y):
        raise Wrong(f"g returned {a(y)}: return a tensor", MISUSED)
    backward(y * torch.arange(1.0, 4))
    unchanged = torch.equal(before, x.detach()) and torch.equal(kept, term.detach())
    return {"entered": entered.detach(), "y": y.detach(), "unchanged": unchanged} | gradients(down=down, up=up, x=x)


def backward(weighted):
    """From what comes out, if autograd knows where it comes from."""
    if weighted.requires_grad:
        weighted.sum().backward()


def gradients(**leaves):
    """Zeros where there is none."""
    return {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()}


def summed(values, comm):
    return comm.all_reduce(values.clone())


def as_it_is(values, comm):
    return values.view_as(values)


@exercise(
    "16.w1", "f and g", minutes=14, difficulty=2, timeout=15, answer=("copy_in", "reduce_out"), own=(copy_in, reduce_out),
    replaces=("zerocourse.parallel.tensor.regions:copy_in", "zerocourse.parallel.tensor.regions:reduce_out",
              "zerocourse.parallel.tensor.regions:Border"),
    trials=[Trial([(4,)], region, worlds=(2, 3), close=1e-5)],
    mistakes={
        "f does nothing": {"f": (as_it_is, as_it_is)},
        "f adds the inputs": {"f": (summed, summed)},
        "f the wrong way": {"f": (summed, as_it_is)},
        "a mean at f": {"f": (as_it_is, lambda values, comm: summed(values, comm) / comm.world_size)},
        "g does nothing": {"g": (as_it_is, as_it_is)},
        "g adds the gradients": {"g": (summed, summed)},
        "g the wrong way": {"g": (as_it_is, summed)},
        "a mean at g": {"g": (lambda values, comm: summed(values, comm) / comm.world_size, as_it_is)},
        "in place": {"g": (lambda values, comm: comm.all_reduce(values).view_as(values), as_it_is)},
        "cut off": {"g": (lambda values, comm: summed(values.detach(), comm), None)},
    })
def borders(*, f=(as_it_is, summed), g=(summed, as_it_is)):
    """The two right functions, each made of what is done on the way there and on the way back."""
    return border(*f), border(*g)


def border(there, back):
    class TwoWays(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values, comm):
            ctx.comm = comm
            return there(values, comm)

        @staticmethod
        def backward(ctx, gradient):
            return back(gradient, ctx.comm), None

    return there if back is None else TwoWays.apply


# 16.w2 ----------------------------------------------------------------------------------------------------------------

def gather_in(part, comm):
    """f with cut tokens: from this rank's T/t tokens to all T. The backward is that of `scatter_out`.

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
    """g with cut tokens: from a term of all T tokens to this rank's T/t tokens of the sum."""
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
