"""The check of 16.1: two linear layers, cut so that the ranks need one sum."""

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from .....parallel.tensor.regions import copy_in, reduce_out
from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.observers.stage_runs import WatchedComm
from ....checks.words import a


class CountedBorder:
    """f or g, and the elements of each tensor that has passed it."""

    def __init__(self, border, comm, unit):
        self.border, self.comm, self.unit, self.sizes = border, comm, unit, []

    def __call__(self, values):
        self.sizes.append(values.numel())
        return self.border(values, self.comm, self.unit)


class Activated(TorchFunctionMode):
    """elements: that GELU is computed of."""

    elements = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.gelu:
            self.elements += (args[0] if args else kwargs["input"]).numel()
        return func(*args, **(kwargs or {}))


def mlp_on_a_rank(answer, hidden, width):
    """How far the output and the gradients on a rank are from those of one process, in fp64, and what has passed g."""
    comm = WatchedComm()
    sizes = [(4, width), (hidden, width), (hidden,), (width, hidden), (width,)]
    whole = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    mine = [value.detach().clone().requires_grad_() for value in whole]
    x, up, up_bias, down, down_bias = whole
    wanted = F.linear(F.gelu(F.linear(x, up, up_bias)), down, down_bias)
    (wanted * wanted.detach().cos()).sum().backward()
    f, g = CountedBorder(copy_in, comm, "f"), CountedBorder(reduce_out, comm, "g")
    given = mine[0] * 1  # no leaf, so that changing it in place is possible
    with Activated() as activated:
        output = answer(given, *mine[1:], comm.rank, comm.world_size, f, g)
    if not torch.is_tensor(output):
        raise Wrong(f"it returned {a(output)}: return the output, a tensor like `x`", MISUSED)
    if output.shape != wanted.shape:
        raise Wrong(f"its output has the shape {list(output.shape)} where {list(wanted.shape)} is right", MISUSED)
    seen = {"output": (output - wanted).detach(), "changed": not torch.equal(given, mine[0]), "sums": g.sizes}
    if seen["changed"]:
        return seen
    (output * output.detach().cos()).sum().backward()
    came = [torch.zeros_like(value) if value.grad is None else value.grad for value in mine]
    x, up, up_bias, down, down_bias = (got - value.grad for got, value in zip(came, whole, strict=True))
    part = slice(hidden // comm.world_size * comm.rank, hidden // comm.world_size * (comm.rank + 1))
    return seen | {"up": int(came[1].any(1).sum()), "down": int(came[3].any(0).sum()), "bias": down_bias, "input": x,
                   "weights": [up[part], up_bias[part], down[:, part]],
                   "features": max(activated.elements // len(given), hidden // comm.world_size)}


def sums_of_inputs(x, up, up_bias, down, down_bias, rank, ranks, f, g, *, between):
    """The first layer by its inputs, too, so that its output is one term of a sum."""
    def part(size):
        return slice(size // ranks * rank, size // ranks * (rank + 1))

    inputs, outputs = part(x.shape[-1]), part(len(up))
    terms = between(F.linear(f(x)[..., inputs], up[:, inputs])) + up_bias
    return g(F.linear(F.gelu(terms)[..., outputs], down[:, outputs])) + down_bias


def terms_of_a_sum(*args):
    return sums_of_inputs(*args, between=lambda terms: terms)


def summed_twice(*args):
    return sums_of_inputs(*args, between=args[-1])


def everything(x, up, up_bias, down, down_bias, rank, ranks, f, g):
    return F.linear(F.gelu(F.linear(x, up, up_bias)), down, down_bias)


def masked(x, up, up_bias, down, down_bias, rank, ranks, f, g):
    mine = torch.arange(len(up)) // (len(up) // ranks) == rank
    return g(F.linear(F.gelu(F.linear(f(x), up * mine[:, None], up_bias * mine)), down * mine)) + down_bias


def overwritten(x, y):
    x.data.copy_(y)
    return y


def piece(size, rank, ranks):
    return slice(size * rank, size * (rank + 1))


@exercise(
    "16.1", "Two layers, one sum", minutes=25, difficulty=2, timeout=15,
    replaces=("zerocourse.parallel.tensor.row:RowLinear.forward",),
    trials=[Trial([(12, 6), (6, 18)], mlp_on_a_rank, worlds=(2, 3), close=1e-9)],
    mistakes={
        "bias t times": {"term": lambda y, bias, rank, ranks: y + bias, "after": None},
        "bias on one rank": ({"term": lambda y, bias, rank, ranks: y + bias * (rank == 0), "after": None},
                             {"term": lambda y, bias, rank, ranks: y + bias * (rank == ranks - 1), "after": None}),
        "bias in shares": {"term": lambda y, bias, rank, ranks: y + bias / ranks, "after": None},
        "no bias": {"after": None},
        "terms of a sum": terms_of_a_sum,
        "summed twice": summed_twice,
        "everything": everything,
        "masked": masked,
        "no g": {"leave": lambda g, y: y},
        "no f": {"enter": lambda f, x: x},
        "f in between": {"enter": lambda f, x: x, "between": lambda f, h: f(h)},
        "f at the end": {"enter": lambda f, x: x, "last_f": True},
        "f and g": {"enter": lambda f, x: x, "leave": lambda g, y: y},
        "g at the entrance": {"both": True},
        "part of rank 0": {"own": lambda size, rank, ranks: slice(size)},
        "another part": ({"own": lambda size, rank, ranks: slice(rank, None, ranks)},
                         {"own": lambda size, rank, ranks: piece(size, ranks - 1 - rank, ranks)}),
        "bias of rank 0": {"own_bias": lambda size, rank, ranks: slice(size)},
        "no gelu": {"act": lambda y: y},
        "gelu at the end": {"act": lambda y: y, "last": F.gelu},
        "in place": {"result": overwritten},
    })
def mlp_part(x, up, up_bias, down, down_bias, rank, ranks, f, g, *, enter=lambda f, x: f(x), leave=lambda g, y: g(y),
             both=False, own=piece, own_bias=None, act=F.gelu, term=lambda y, bias, rank, ranks: y,
             after=lambda y, bias: y + bias, last=lambda y: y, between=lambda f, h: h, last_f=False, result=lambda x, y: y):
    """Columns, GELU, rows, and the bias after the sum."""
    size = len(up) // ranks
    part, bias_part = own(size, rank, ranks), (own_bias or own)(size, rank, ranks)
    hidden = act(F.linear(g(x) if both else enter(f, x), up[part], up_bias[bias_part]))
    y = F.linear(between(f, hidden), down[:, part])
    y = leave(g, term(y, down_bias, rank, ranks))
    y = f(y) if last_f else y
    return result(x, last(y if after is None else after(y, down_bias)))
