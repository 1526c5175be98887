"""The check of 16.3: the loss of a vocabulary that is cut among the ranks, with a few numbers per token."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from .....layout.rankmap import Layout
from ....checks import MISUSED, Trial, When, Wrong, exercise
from ....checks.observers.stage_runs import WatchedComm
from ....checks.observers.wire import Wire
from ....checks.words import a

V = 7  # divisible by neither 2 nor 3, so that the ranks have different numbers of words


def loss_on_a_rank(answer, scale, ignored, smoothing):
    """The loss, and what was sent for it."""
    comm = WatchedComm()
    generator = torch.Generator().manual_seed(5)
    logits_NV = torch.randn(6, V, generator=generator) * scale
    targets_N = torch.tensor([0, 6, 3, 4, 2, 5])
    targets_N[ignored] = -100
    bounds = Layout.split(V, comm.world_size).bounds
    start, stop = bounds[comm.rank], bounds[comm.rank + 1]
    given = logits_NV[:, start:stop].clone(), targets_N.clone()
    with Wire() as wire:
        answered = answer(*given, start, V, smoothing, comm)
    per_token = numbers_per_token(wire.calls, len(targets_N), comm.world_size - 1)
    if not isinstance(answered, tuple) or len(answered) != 2 or not all(map(torch.is_tensor, answered)):
        raise Wrong(f"it returned {a(answered)}: return a tuple of two tensors, the loss and the gradient", MISUSED)
    loss, gradient_NV = answered
    if loss.numel() != 1 or gradient_NV.shape != given[0].shape:
        raise Wrong(f"the loss has the shape {tuple(loss.shape)} and the gradient {tuple(gradient_NV.shape)}: return one number, "
                    f"and as many as this rank has logits, {tuple(given[0].shape)}", MISUSED)
    whole_NV = logits_NV.clone().requires_grad_()
    F.cross_entropy(whole_NV, targets_N, label_smoothing=smoothing).backward()
    away = (gradient_NV - whole_NV.grad[:, start:stop]).abs().max().item()
    same = torch.equal(given[0], logits_NV[:, start:stop]) and torch.equal(given[1], targets_N)
    return {"loss": round(float(loss), 4), "gradient": round(away, 4), "changed": not same,
            "too much": per_token > (4.5 if smoothing else 3.5),   # .5: for a count of targets
            "_each": round(per_token, 1), "_wanted": F.cross_entropy(logits_NV, targets_N, label_smoothing=smoothing).item()}


def numbers_per_token(calls, tokens, peers):
    """What a rank gives to the others; our all-reduce sends everything to each of them."""
    return sum(elements / (peers if verb == "send" else 1) for verb, elements in calls if verb != "recv") / tokens


def gathered(logits_NV, targets_N, start, vocabulary, smoothing, comm):
    mine_NV = torch.zeros(len(logits_NV), vocabulary)
    mine_NV[:, start:start + logits_NV.shape[1]] = logits_NV
    dist.all_reduce(mine_NV)
    mine_NV.requires_grad_()
    loss = F.cross_entropy(mine_NV, targets_N, label_smoothing=smoothing)
    loss.backward()
    return loss.detach(), mine_NV.grad[:, start:start + logits_NV.shape[1]]


def own_words_alone(logits_NV, targets_N, start, vocabulary, smoothing, comm):
    class Alone:
        def all_reduce(self, values, op="sum"):
            return values
    return cut_loss(logits_NV, targets_N, start, vocabulary, smoothing, Alone())


def target_on_each_rank(rows_N, here_N, width):
    return rows_N.clamp(0, width - 1), torch.ones_like(here_N)


def without_start(rows_N, here_N, width, start):
    targets_N = rows_N + start
    here_N = (targets_N >= 0) & (targets_N < width)
    return targets_N.where(here_N, 0), here_N


@exercise(
    "16.3", "The loss of a cut vocabulary", minutes=45, difficulty=3, timeout=15,
    replaces=("zerocourse.parallel.tensor.vocabulary:*", "zerocourse.parallel.tensor.vocabulary:CrossEntropy.forward"),
    trials=[Trial([(1.0, [], 0.0)], loss_on_a_rank, worlds=(2, 3), close=2e-4),
            Trial([(400.0, [], 0.0), (1.0, [1, 4], 0.0), (1.0, [], 0.2), (30.0, [0], 0.3)], loss_on_a_rank, worlds=(2, 3),
                  close=2e-4)],
    mistakes={
        "no maximum": {"most": lambda most_N, comm: torch.zeros_like(most_N)},
        "own maximum": {"most": lambda most_N, comm: most_N},
        "own words": own_words_alone,
        "target on each rank": {"look": lambda rows_N, here_N, width, start: target_on_each_rank(rows_N, here_N, width)},
        "without start": {"look": without_start},
        "target of one rank": {"target": lambda target_N, comm: target_N},
        "all targets": {"number": lambda counts_N: len(counts_N)},
        "not counted are counted": {"counts": lambda targets_N: torch.ones_like(targets_N, dtype=torch.bool)},
        "own V": {"words": lambda vocabulary, width: width},
        "own mean": {"words": lambda vocabulary, width: width, "rest": lambda rest_N, comm: rest_N},
        "smoothing of one rank": {"rest": lambda rest_N, comm: rest_N},
        "no smoothing": {"smooth": lambda smoothing: 0.0},
        "the others alone": {"others": True},
        "twice the target": {"keep": lambda smoothing: 1.0},
        "gradient of what does not count": {"ignored": lambda counts_N: torch.ones_like(counts_N)},
        "gradient of the sum": {"share": lambda number: 1},
        "gradient of a target elsewhere": {"own": lambda here_N: torch.ones_like(here_N)},
        "gradient of a share of 1": {"taken": lambda smoothing: 1.0},
        "gradient without the others": {"spread": lambda smoothing: 0},
        "gathered": (gathered, When("too much")),
        "changed": {"shift": lambda logits_NV, most_N: logits_NV.sub_(most_N[:, None])},
    })
def cut_loss(logits_NV, targets_N, start, vocabulary, smoothing, comm, *,
             most=lambda most_N, comm: comm.all_reduce(most_N, "max"), words=lambda vocabulary, width: vocabulary,
             shift=lambda logits_NV, most_N: logits_NV - most_N[:, None], target=lambda target_N, comm: comm.all_reduce(target_N),
             look=lambda rows_N, here_N, width, start: (rows_N.where(here_N, 0), here_N), smooth=lambda smoothing: smoothing,
             rest=lambda rest_N, comm: comm.all_reduce(rest_N), keep=lambda smoothing: 1 - smoothing,
             number=lambda counts_N: counts_N.sum(), counts=lambda targets_N: targets_N != -100, taken=None,
             ignored=lambda counts_N: counts_N, share=lambda number: number, own=lambda here_N: here_N,
             spread=lambda smoothing: smoothing, others=False):
    """The mean loss, the same on every rank, and the gradient of this rank's logits."""
    if others:  # ε/(V − 1) for each other word: as if ε were larger, and the target had less of it
        return cut_loss(logits_NV, targets_N, start, vocabulary, smoothing * vocabulary / (vocabulary - 1), comm)
    counts_N, width = counts(targets_N), logits_NV.shape[1]
    shifted_NV = shift(logits_NV, most(logits_NV.amax(1), comm))
    exp_NV = shifted_NV.exp()
    sums_N = comm.all_reduce(exp_NV.sum(1))
    rows_N = targets_N - start
    rows_N, here_N = look(rows_N, (rows_N >= 0) & (rows_N < width), width, start)
    target_N = target(shifted_NV.gather(1, rows_N[:, None])[:, 0] * here_N, comm)
    loss_N = sums_N.log() - keep(smoothing) * target_N
    if smooth(smoothing):
        loss_N = loss_N - smoothing * rest(shifted_NV.sum(1), comm) / words(vocabulary, width)
    elif smoothing:
        loss_N = sums_N.log() - target_N
    gradient_NV = exp_NV / sums_N[:, None] - spread(smoothing) / words(vocabulary, width)
    gradient_NV.scatter_add_(1, rows_N[:, None], -(taken or keep)(smoothing) * own(here_N)[:, None].float())
    gradient_NV = gradient_NV * ignored(counts_N)[:, None] / share(number(counts_N))
    return loss_N.where(counts_N, 0).sum() / number(counts_N), gradient_NV
