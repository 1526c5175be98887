"""The check of 21.w3, which chapter 21 asks for itself: the loss that keeps experts busy, over the ranks of a group."""

import torch

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.observers.stage_runs import WatchedComm
from ....checks.words import a


def balance(chosen, probabilities, comm):
    """E · Σ fₑ · Pₑ, which is 1 where all experts are equally busy.

    chosen: (N, k), int64, the experts of this rank's tokens.   probabilities: (N, E), the
    router's for them. fₑ is the share of *all ranks'* pairs that expert e has. Pₑ is its
    mean probability over this rank's tokens, and the only part with a gradient.
    comm: `comm.all_reduce(tensor)` adds up a tensor over the ranks, in place,
        and returns it.
    Returns a scalar.
    """
    experts = probabilities.shape[1]
    counts = comm.all_reduce(torch.bincount(chosen.flatten(), minlength=experts).float())
    return experts * (counts / counts.sum() * probabilities.mean(0)).sum()


def balanced(answer, tokens, experts, k):
    """The loss and its gradient, on ranks with different tokens."""
    comm = WatchedComm()
    draw = torch.Generator().manual_seed(10 * tokens + comm.rank)
    logits = torch.randn(tokens, experts, generator=draw).requires_grad_()
    probabilities = logits.softmax(-1)
    loss = answer(probabilities.topk(k, -1)[1], probabilities, comm)
    if not torch.is_tensor(loss) or loss.numel() != 1:
        raise Wrong(f"it returned {a(loss)}: return a tensor with one element", MISUSED)
    gradient = torch.autograd.grad(loss.sum(), logits, allow_unused=True)[0] if loss.requires_grad else None
    return {"loss": loss.item(), "gradient": torch.zeros_like(logits) if gradient is None else gradient}


@exercise(
    "21.w3", "Who is busy?", minutes=12, difficulty=2, timeout=15, answer="balance", own=balance,
    replaces=("zerocourse.parallel.experts.expert_balance:*",), trials=[Trial([(6, 4, 2), (9, 8, 1)], balanced, worlds=(2,), close=1e-5)],
    mistakes={
        "own counts": {"all_ranks": lambda counts, comm: counts},
        "shares of tokens": {"shares": lambda counts, chosen, comm: counts / (comm.world_size * len(chosen))},
        "shares of own pairs": {"shares": lambda counts, chosen, comm: counts / chosen.numel()},
        "not times E": {"times": lambda experts: 1},
        "summed": {"mean": lambda probabilities: probabilities.sum(0)},
        "constant": {"mean": lambda probabilities: probabilities.mean(0).detach()},
    })
def balance_of_ranks(chosen, probabilities, comm, *, all_ranks=lambda counts, comm: comm.all_reduce(counts), shares=None,
                     times=lambda experts: experts, mean=lambda probabilities: probabilities.mean(0)):
    """A scalar."""
    experts = probabilities.shape[1]
    counts = all_ranks(torch.bincount(chosen.flatten(), minlength=experts).float(), comm)
    busy = shares(counts, chosen, comm) if shares else counts / counts.sum()
    return times(experts) * (busy * mean(probabilities)).sum()
