"""Wrong answers of chapter 16."""

import torch
import torch.nn.functional as F

from wrong_answers import wrong


@wrong("16.1", "bias t times")
def two_linear_layers(x, up, up_bias, down, down_bias, rank, ranks, f, g):
    up, up_bias, down = up.chunk(ranks)[rank], up_bias.chunk(ranks)[rank], down.chunk(ranks, dim=1)[rank]
    return g(F.linear(F.gelu(F.linear(f(x), up, up_bias)), down, down_bias))


@wrong("16.1", "no f")
def nothing_at_the_entrance(x, up, up_bias, down, down_bias, rank, ranks, f, g):
    n = up.shape[0] // ranks
    hidden = F.gelu(x @ up[rank * n:rank * n + n].T + up_bias[rank * n:rank * n + n])
    return g(hidden @ down[:, rank * n:rank * n + n].T) + down_bias


@wrong("16.2", "one piece")
def equal_pieces(n_embd, n_head, rank, ranks):
    each = 3 * n_embd // ranks
    return [rank * each + i for i in range(each)]


@wrong("16.2", "through a head")
def thirds_without_a_question(n_embd, n_head, rank, ranks):
    rows = []
    for start in (0, n_embd, 2 * n_embd):
        rows += range(start + n_embd // ranks * rank, start + n_embd // ranks * (rank + 1))
    return rows


@wrong("16.3", "own mean")
def with_a_mean_of_its_own(logits_NV, targets_N, start, vocabulary, smoothing, comm):
    highest = comm.all_reduce(logits_NV.max(dim=1).values, "max")
    total = comm.all_reduce((logits_NV - highest[:, None]).exp().sum(dim=1))
    log_p = logits_NV - highest[:, None] - total.log()[:, None]
    picked = torch.zeros(len(targets_N))
    for n, word in enumerate(targets_N.tolist()):
        if start <= word < start + logits_NV.shape[1]:
            picked[n] = log_p[n, word - start]
    loss = -(1 - smoothing) * comm.all_reduce(picked) - smoothing * log_p.mean(dim=1)
    counted = targets_N != -100
    gradient = log_p.exp() - smoothing / logits_NV.shape[1]
    for n, word in enumerate(targets_N.tolist()):
        if start <= word < start + logits_NV.shape[1]:
            gradient[n, word - start] -= 1 - smoothing
    return loss[counted].mean(), gradient * counted[:, None] / counted.sum()


@wrong("16.3", "gathered")
def with_all_logits(logits_NV, targets_N, start, vocabulary, smoothing, comm):
    every = torch.zeros(len(targets_N), vocabulary)
    every[:, start:start + logits_NV.shape[1]] += logits_NV
    every = comm.all_reduce(every).requires_grad_()
    loss = F.cross_entropy(every, targets_N, label_smoothing=smoothing)
    gradient, = torch.autograd.grad(loss, every)
    return loss.detach(), gradient[:, start:start + logits_NV.shape[1]]


@wrong("16.4", "row biases are cut")
def by_kind_alone(kinds, rank, ranks, kv_heads):
    same = max(ranks // kv_heads, 1)
    here = {"columns": True, "rows": True, "vocabulary": True, "whole": rank == 0, "kv": rank % same == 0}
    return {name for name in kinds if here[kinds[name]]}


@wrong("16.4", "kv on each")
def without_copies(kinds, rank, ranks, kv_heads):
    whole = [name for name in kinds if kinds[name] == "whole" or (kinds[name] == "rows" and "bias" in name)]
    return [name for name in kinds if rank == 0 or name not in whole]


@wrong("16.5", "micro-batches multiply both")
def for_each_micro_batch(tokens, width, accumulation, t, n):
    tensor = accumulation * 8 * tokens * width * (t - 1) // t
    zero = accumulation * 36 * width * width * (n - 1) // n
    return {"tensor": tensor, "zero3": zero, "less": "tensor" if tensor < zero else "zero3"}


@wrong("16.5", "24")
def gathers_once(tokens, width, accumulation, t, n):
    tensor, zero = 8 * tokens * width * (t - 1) // t, 2 * 12 * accumulation * width**2 * (n - 1) // n
    return {"tensor": tensor, "zero3": zero, "less": "zero3" if zero <= tensor else "tensor"}


@wrong("16.6", "norms alone")
def what_the_norm_has(block, x_BtC, y_BtC, comm, lr):
    loss = ((block(x_BtC) - y_BtC) ** 2).mean() / comm.world_size
    loss.backward()
    for param in block.norm.parameters():
        comm.all_reduce(param.grad)
    with torch.no_grad():
        for param in block.parameters():
            param.sub_(lr * param.grad)
            param.grad = None
    return comm.all_reduce(loss.detach())


@wrong("16.6", "mean")
def makes_them_equal_afterwards(block, x_BtC, y_BtC, comm, lr):
    loss = ((block(x_BtC) - y_BtC) ** 2).mean() / comm.world_size
    loss.backward()
    with torch.no_grad():
        for name, param in block.named_parameters():
            param -= lr * param.grad
            param.grad = None
            if name.startswith("norm") or name == "down.bias":
                param.copy_(comm.all_reduce(param.clone()) / comm.world_size)
    return comm.all_reduce(loss.detach())
