"""The check of 14.4: find the bug in the gradient that goes down to the host."""

import torch

from ....checks import Trial, Wrong, exercise

RANKS = 3


def gone_down(answer, micro_batches):
    """One step on a simulated rank 0 of three."""
    whole = torch.arange(1.0, RANKS * micro_batches * 2 + 1).view(RANKS, micro_batches, 2) ** 2 / 7  # so that rounding shows
    grads, seen = list(whole[0].clone()), []

    def mean_over_ranks(mine):
        """Each rank has done what rank 0 has: the same combination of its own gradients, which are found from rank 0's."""
        if mine.shape != grads[0].shape:
            raise Wrong(f"it hands in a tensor of the shape {list(mine.shape)}, and a gradient has {list(grads[0].shape)}: hand in one "
                        "of that shape, so that no more is sent")
        seen.append(mine)
        return answer_of_all(mine, whole)

    got = answer(grads, mean_over_ranks)
    return {"gradient": got, "reduced": len(seen), "kept": [each.tolist() for each in grads]}


def answer_of_all(mine, whole):
    """The mean over ranks of what every rank hands in. mine is Σ c_i g_i with one row of coefficients, solved from rank 0's."""
    mine = torch.as_tensor(mine).double()
    own = whole[0].double()  # (micro, 2): the coefficients are those of least effort among 0, 1/G and 1
    count = len(own)
    choices = torch.cartesian_prod(*[torch.tensor([0.0, 1.0 / count, 1.0], dtype=torch.float64)] * count).view(-1, count)
    errors = (choices @ own - mine).abs().sum(1)
    coefficients = choices[errors.argmin()]
    rounded = mine - coefficients @ own  # what it has added to such a combination, which every rank adds
    return (torch.einsum("i,rij->j", coefficients, whole.double()) / RANKS + rounded).float()


@exercise(
    "14.4", "Find the bug: the last micro-batch", minutes=20, difficulty=2,
    trials=[Trial([(2,), (3,), (1,)], gone_down, close=1e-4)],
    mistakes={
        "the bug": {"after": True},
        "first only": {"taken": lambda grads: grads[:1]},
        "last only": {"taken": lambda grads: grads[-1:]},
        "without the last": {"taken": lambda grads: grads[:-1] or grads},
        "not divided": {"scale": lambda count: 1},
        "not reduced": {"reduces": False},
        "each reduced": {"each": True},
        "in place": {"in_place": True},
    })
def gradient_for_host(grads, mean_over_ranks, *, after=False, taken=list, scale=len, reduces=True, each=False, in_place=False):
    """The mean over micro-batches and ranks."""
    some = taken(grads)
    if after and len(some) > 1:
        return (mean_over_ranks(torch.stack(some[:-1]).sum(0)) + some[-1]) / len(grads)
    if each:
        return sum(mean_over_ranks(one) for one in some) / len(grads)
    total = torch.stack(some).sum(0)
    if in_place:
        some[0].copy_(total)
    return (mean_over_ranks(total) if reduces else total) / (1 if scale(grads) == 1 else len(grads))
