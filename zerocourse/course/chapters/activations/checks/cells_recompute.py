"""The checks of what chapter 13 asks for itself: 13.w1, a block that is computed again, and 13.w2, the bytes of checkpoints."""

import torch
from torch import nn

from .....measure.ledger import Ledger
from ....checks import Trial, exercise

# 13.w1 ----------------------------------------------------------------------------------------------------------------

def keep_input(ctx, block, x):
    """The forward: run `block` on x, and keep in `ctx` what `compute_again` needs,
    and no more.

    block: a function of one tensor, which may draw random numbers.   x: its input.
    Returns the block's output. autograd is switched off in here.
    """
    ctx.block, ctx.random = block, torch.get_rng_state()
    ctx.save_for_backward(x)
    return block(x)


def compute_again(ctx, gradient):
    """The backward: run the block once more, with the same random numbers,
    and differentiate.

    gradient: of the block's output.
    Returns None, for `block`, and the gradient of x. Gradients of parameters go where a
    backward always puts them. autograd is switched off in here, too: `torch.enable_grad()`
    switches it on. Afterwards the random state must be what it was before.
    """
    x = ctx.saved_tensors[0].detach().requires_grad_()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.set_rng_state(ctx.random)
        output = ctx.block(x)
    output.backward(gradient)
    return None, x.grad


WIDE, ROWS, DEEP = 256, 64, 3  # one activation has 64 KB, so that a random state of 5 KB is little beside it


def recomputed(forward, backward, dropout):
    """A forward and a backward through a few blocks, each of which is run by the answer."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDE, WIDE), nn.GELU(), nn.Dropout(dropout), nn.Linear(WIDE, WIDE)) for _ in range(DEEP)]
    x = torch.randn(ROWS, WIDE, requires_grad=True)
    function = type("Recompute", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})
    with Ledger(nn.ModuleList(blocks)) as ledger:
        ledger.track(x)
        before = ledger.now().rest
        output = x
        for block in blocks:
            output = function.apply(block, output)
        kept = (ledger.now().rest - before) / x.nbytes - 1  # the output itself is ours
        seen = {"output": output.detach().clone(), "kept": round(kept)}
        output.square().mean().backward()
    nothing = torch.zeros(1)
    gradients = [nothing if param.grad is None else param.grad for block in blocks for param in block.parameters()]
    return seen | {"gradients": torch.cat([each.flatten() for each in gradients]), "input": nothing if x.grad is None else x.grad,
                   "next": torch.rand(3)}


def with_graph(ctx, block, x):
    with torch.enable_grad():
        ctx.x = x.detach().requires_grad_()
        ctx.output = block(ctx.x)
    return ctx.output.detach()


def through_graph(ctx, gradient):
    ctx.output.backward(gradient)
    return None, ctx.x.grad


def of_input_alone(output, x, gradient):
    x.grad, = torch.autograd.grad(output, x, gradient)


@exercise(
    "13.w1", "A block that is computed again", minutes=15, difficulty=2, answer=("keep_input", "compute_again"),
    own=(keep_input, compute_again), trials=[Trial([(0.0,)], recomputed), Trial([(0.5,)], recomputed)],
    mistakes={
        "other masks": tuple({"seeded": lambda state: None, "guarded": guarded} for guarded in (True, False)),
        "state moved": {"guarded": False},
        "taken late": {"late": True},
        "nothing for the input": {"returned": lambda x, gradient: None},
        "passed on": {"returned": lambda x, gradient: gradient},
        "of the sum": {"differentiate": lambda output, x, gradient: output.sum().backward()},
        "input alone": {"differentiate": of_input_alone},
        "graph kept": lambda: (with_graph, through_graph),
    })
def recompute_pair(*, seeded=torch.set_rng_state, guarded=True, late=False, returned=lambda x, gradient: x.grad,
                   differentiate=lambda output, x, gradient: output.backward(gradient)):
    """The two right functions."""
    def forward(ctx, block, x):
        ctx.block, ctx.random = block, torch.get_rng_state()
        ctx.save_for_backward(x)
        output = block(x)
        if late:
            ctx.random = torch.get_rng_state()
        return output

    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.random.fork_rng(devices=[], enabled=guarded), torch.enable_grad():
            seeded(ctx.random)
            output = ctx.block(x)
        differentiate(output, x, gradient)
        return None, returned(x, gradient)

    return forward, backward


# 13.w2 ----------------------------------------------------------------------------------------------------------------

def peak_of(starts, inputs, kept):
    """The most bytes that a backward holds at a time, with checkpoints before some blocks.

    starts: the numbers of these blocks, in order; the first is 0. A segment goes from a
        checkpoint to the next one, or to the end.
    inputs[i]: bytes of block i's input.   kept[i]: bytes of all else that block i keeps.
    When its segment's turn comes, blocks are computed again: then they keep all of that.
    The backward begins with the last segment, and frees a segment when it is through.
    """
    held, most = 0, 0
    for start, stop in zip(starts, [*starts[1:], len(kept)]):
        held += inputs[start]
        most = max(most, held + sum(kept[start:stop]) + sum(inputs[start + 1:stop]))
    return most


PLACED = [([0], [3], [40]), ([0, 1, 2], [3, 3, 3], [40, 40, 40]), ([0, 2], [3, 3, 3, 3], [40, 40, 40, 40]),
          ([0, 1], [5, 2, 4], [9, 30, 31]), ([0, 3], [10, 10, 10, 10], [50, 60, 70, 20]), ([0, 2, 3], [1, 20, 300, 4000], [7, 8, 9, 10])]


@exercise(
    "13.w2", "What checkpoints leave to hold", minutes=10, difficulty=1, answer="peak_of", own=peak_of,
    replaces=("zerocourse.activations.spacing:*",), cases=PLACED,
    mistakes={
        "no inputs inside": {"inside": lambda inputs: 0},
        "all checkpoints": {"held": lambda inputs, before, starts: sum(inputs[start] for start in starts)},
        "own checkpoint": {"held": lambda inputs, before, starts: inputs[before[-1]]},
        "no checkpoints": {"held": lambda inputs, before, starts: 0},
        "checkpoint twice": {"inside": lambda inputs: sum(inputs), "first": 0},
        "one block at a time": {"whole": max},
        "last segment": {"most": lambda peaks: peaks[-1]},
        "added up": {"most": sum},
        "not again": {"whole": lambda kept: 0},
    })
def peaks_of(starts, inputs, kept, *, held=lambda inputs, before, starts: sum(inputs[start] for start in before), first=1, whole=sum,
             inside=sum, most=max):
    """The right peak."""
    stops = [*starts[1:], len(kept)]
    return most([held(inputs, starts[:number + 1], starts) + whole(kept[start:stop]) + inside(inputs[start + first:stop])
                 for number, (start, stop) in enumerate(zip(starts, stops, strict=True))])
