"""The check of 16.w1, which chapter 16 asks for itself: f and g."""

import torch
import torch.nn.functional as F

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.observers.stage_runs import WatchedComm
from ....checks.words import a


def copy_in(values, comm):
    """f: returns what it was given. The backward adds up the gradients of all ranks.

    comm: `comm.all_reduce(tensor)` adds up over the ranks, in place, and returns it.
    """
    class CopyIn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values):
            return values.view_as(values)  # a function must return a tensor of its own

        @staticmethod
        def backward(ctx, gradient):
            return comm.all_reduce(gradient.clone())

    return CopyIn.apply(values)


def reduce_out(values, comm):
    """g: returns the sum of all ranks' `values`. The backward passes the gradient on."""
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
