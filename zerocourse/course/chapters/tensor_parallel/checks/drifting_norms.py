"""The check of 16.6: find the bug in the step of a block whose copies drift apart."""

import torch
import torch.nn.functional as F
from torch import nn

from .....parallel.tensor.cuts import Cut
from .....parallel.tensor.regions import gather_in, scatter_out
from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.observers.stage_runs import WatchedComm
from ....checks.words import a

C, LR = 6, 0.5
CUT = {"up.weight": 0, "up.bias": 0, "down.weight": 1}  # name: the dimension along which it is cut


def linear(out, inputs):
    return nn.Linear(inputs, out, dtype=torch.float64)


class SequenceBlock(nn.Module):
    """norm, and an MLP cut among the ranks. Its input and output have this rank's tokens (B, T/t, C)."""

    def __init__(self, comm):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(C, dtype=torch.float64), linear(2 * C, C), linear(C, 2 * C)
        self.comm = comm

    def forward(self, x_BtC):
        y_BTC = gather_in(self.norm(x_BtC), self.comm, "mlp")
        return x_BtC + scatter_out(F.linear(F.gelu(self.up(y_BTC)), self.down.weight), self.comm, "mlp") + self.down.bias


def cut_block(comm):
    """This rank's part, with `tensor_cut` at what is cut, and the whole parameters."""
    block = SequenceBlock(comm)
    whole = {name: param.detach().clone().requires_grad_() for name, param in block.named_parameters()}
    for name, dim in CUT.items():
        module, key = block.get_submodule(name.split(".")[0]), name.split(".")[1]
        cut = Cut.even(dim, whole[name].shape[dim], comm.world_size)
        part = nn.Parameter(cut.take(whole[name].detach(), comm.rank))
        part.tensor_cut = cut
        setattr(module, key, part)
    return block, whole


def forward_whole(whole, x_BTC):
    y_BTC = F.layer_norm(x_BTC, (C,), whole["norm.weight"], whole["norm.bias"])
    return x_BTC + F.linear(F.gelu(F.linear(y_BTC, whole["up.weight"], whole["up.bias"])), whole["down.weight"],
                            whole["down.bias"])


def stepped_on_a_rank(answer, steps):
    """Losses, and how far the parameters are from those of one process after some steps, in fp64.

    case: {0} steps on {world} ranks
    first loss: the first loss of rank {rank} is {got}, and {want} is right.
    apart: the ranks' copies of {_apart} differ, and all ranks must have the same.
    copies: the ranks' copies are equal, but rank {rank} has other values than one process.
    parts: rank {rank} has other values in its part of the weights than one process.
    losses: the losses of rank {rank} are {got}, and {want} are right.
    """
    comm = WatchedComm()
    t, rank = comm.world_size, comm.rank
    block, whole = cut_block(comm)
    tokens, targets = torch.randn(2, steps, 2, 2 * t, C, dtype=torch.float64)
    tokens = tokens + torch.arange(2 * t)[:, None]  # unlike from token to token
    losses, wanted_losses = [], []
    for x_BTC, y_BTC in zip(tokens, targets):
        own = slice(2 * rank, 2 * rank + 2)
        loss = answer(block, x_BTC[:, own].clone(), y_BTC[:, own].clone(), comm, LR)
        if not isinstance(loss, (float, torch.Tensor)) or torch.is_tensor(loss) and loss.numel() != 1:
            raise Wrong(f"it returned {a(loss)}: return the loss, a tensor of one number", MISUSED)
        losses.append(round(float(loss), 6))
        error = F.mse_loss(forward_whole(whole, x_BTC), y_BTC)
        wanted_losses.append(error.item())
        gradients = torch.autograd.grad(error, whole.values())
        whole = {name: (value - LR * gradient).detach().requires_grad_()
                 for (name, value), gradient in zip(whole.items(), gradients, strict=True)}
    mine = {name: param.detach() for name, param in block.named_parameters()}
    off = {name: value - Cut.even(CUT[name], whole[name].shape[CUT[name]], t).take(whole[name].detach(), rank)
           if name in CUT else value - whole[name].detach() for name, value in mine.items()}
    everyone = comm.all_gather_object({name: mine[name].tolist() for name in mine if name not in CUT})
    apart = [name for name in everyone[0] if any(not torch.allclose(torch.tensor(each[name]).double(), mine[name], atol=1e-5)
                                                 for each in everyone)]
    return {"first loss": losses[0], "apart": apart, "copies": [value for name, value in off.items() if name not in CUT],
            "parts": [value for name, value in off.items() if name in CUT], "losses": losses, "_losses": wanted_losses,
            "_apart": " and ".join(apart)}


def of_copies(block):
    return [name for name, param in block.named_parameters() if not hasattr(param, "tensor_cut")]


@exercise(
    "16.6", "Find the bug: copies that drift apart", minutes=30, difficulty=3, timeout=15,
    trials=[Trial([(2,), (1,), (3,)], stepped_on_a_rank, worlds=(2, 3), close=1e-6)],
    mistakes={
        "the bug": {"names": lambda block: []},
        "norms alone": {"names": lambda block: ["norm.weight", "norm.bias"]},
        "weights alone": {"names": lambda block: ["norm.weight"]},
        "everything": {"names": lambda block: [name for name, _ in block.named_parameters()]},
        "the others": {"names": lambda block: [name for name, _ in block.named_parameters() if name not in of_copies(block)]},
        "mean": ({"share": lambda comm: 1 / comm.world_size},
                 {"names": lambda block: [], "after": lambda param, comm: comm.all_reduce(param) / comm.world_size}),
        "from rank 0": {"names": lambda block: [], "after": lambda param, comm: comm.broadcast(param, "copies")},
        "largest": {"op": "max"},
        "own loss": {"total": lambda error, comm: error},
        "loss divided again": {"total": lambda error, comm: comm.all_reduce(error) / comm.world_size},
        "gradients kept": {"clears": False},
        "loss of own tokens": {"scale": lambda comm: 1},
        "stuck": {"names": lambda block: of_copies(block) if block.comm.rank == 0 else []},
    })
def sgd_step(block, x_BtC, y_BtC, comm, lr, *, names=of_copies, share=lambda comm: 1, after=None, op="sum", clears=True,
             total=lambda error, comm: comm.all_reduce(error), scale=lambda comm: 1 / comm.world_size):
    """A step of SGD, in which the gradients of copies are added up.

    the bug: The bug is still there: each rank has normalised other tokens, so its gradient of a parameter that is whole is one
        term of a sum.
    norms alone: You added up the gradients of the norm alone. Which other parameter is whole on each rank, and used on this
        rank's tokens?
    weights alone: You added up the gradient of the norm's weight alone: its bias, and the bias that is added after g, are copies
        as well.
    everything: You added up the gradients of what is cut as well: there each rank has another part, and its gradient is
        complete.
    the others: You added up the gradients of what is cut: they are complete. Those of the copies are not.
    mean: You took the mean over the ranks: the loss is divided by all tokens already, so the terms are added up.
    from rank 0: You sent rank 0's copies to all: they are equal now, but know of rank 0's tokens only.
    largest: You took the largest gradient: the terms are added up.
    own loss: You returned the loss of this rank's tokens: that of all tokens is wanted, which was there before.
    loss divided again: You divided the loss once more: it is a part of the mean over all tokens already.
    gradients kept: You kept the gradients, so the next step adds to them.
    loss of own tokens: The loss of a rank is divided by its own tokens now: with t ranks all gradients are t times too large.
    stuck: You let some ranks alone call a collective: all ranks must.
    right: every copy has the gradient of all tokens, so the copies stay equal, and one process would have the same.
    """
    error = F.mse_loss(block(x_BtC), y_BtC) * scale(comm)
    error.backward()
    with torch.no_grad():
        for name, param in block.named_parameters():
            if name in names(block):
                param.grad = comm.all_reduce(param.grad, op) * share(comm)
        for name, param in block.named_parameters():
            param -= lr * param.grad
            if clears:
                param.grad = None
            if after and name in of_copies(block):
                param.copy_(after(param.data.clone(), comm))
    return total(error.detach().clone(), comm)
