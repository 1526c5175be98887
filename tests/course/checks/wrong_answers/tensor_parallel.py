"""Wrong answers of chapter 16."""

import torch
import torch.nn.functional as F

from wrong_answers import wrong

from zerocourse.parallel.tensor.regions import all_gather, reduce_scatter


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


@wrong("16.6", "half of it")
def an_all_reduce_is_one(tokens, width, t, flops, rate, latency):
    compute = 72 * tokens * width**2 / (t * flops)
    step = (t - 1) * (2 * tokens * width / t / rate + latency)
    gather = (t - 1) * (24 * width**2 / t / rate + latency)
    tensor, zero3 = compute + 4 * step, max(compute, 3 * gather)
    return {"tensor": tensor, "zero3": zero3, "faster": "tensor" if tensor < zero3 else "zero3"}


@wrong("16.6", "latency once")
def a_latency_each(tokens, width, t, flops, rate, latency):
    def seconds(n):
        return 2 * n * (t - 1) / t / rate + (latency if t > 1 else 0)
    compute = 72 * tokens * width * width / t / flops
    found = {"tensor": compute + 8 * seconds(tokens * width), "zero3": max(compute, 3 * seconds(12 * width * width))}
    return found | {"faster": min(("zero3", "tensor"), key=found.get)}


@wrong("16.1", "bias on one rank")
def the_last_one_adds_it(x, up, up_bias, down, down_bias, rank, ranks, f, g):
    n = up.shape[0] // ranks
    own = slice(rank * n, (rank + 1) * n)
    return g(F.linear(F.gelu(F.linear(f(x), up[own], up_bias[own])), down[:, own], down_bias if rank == ranks - 1 else None))


@wrong("16.2", "keys too near")
def as_if_the_part_were_all(n_embd, n_head, rank, ranks):
    if n_head % ranks:
        raise ValueError("half a head")
    n = n_embd // ranks
    return [part * n + rank * n + i for part in range(3) for i in range(n)]


@wrong("16.5", "reduced once")
def reduces_at_the_end(tokens, width, accumulation, t, n):
    tensor = 8 * tokens * width * (t - 1) // t
    zero3 = 12 * width**2 * (2 * accumulation + 1) * (n - 1) // n
    return {"tensor": tensor, "zero3": zero3, "less": "tensor" if tensor < zero3 else "zero3"}


# 16.w1 --------------------------------------------------------------------------------------------------------------

def hooked(values, comm):
    """Another right f: a hook on the tensor."""
    out = values.view_as(values)
    out.register_hook(lambda gradient: comm.all_reduce(gradient.clone()))
    return out


@wrong("16.w1", "g adds the gradients")
class SumsBothWays:
    copy_in = hooked

    def reduce_out(values, comm):
        class Sum(torch.autograd.Function):
            @staticmethod
            def forward(ctx, terms):
                return comm.all_reduce(terms * 1)

            @staticmethod
            def backward(ctx, gradient):
                return comm.all_reduce(gradient * 1)
        return Sum.apply(values)


@wrong("16.w1", "f does nothing")
class EverybodyHasIt:
    def copy_in(values, comm):
        return values * 1


@wrong("16.w1", "cut off")
class SumsWithoutAutograd:
    copy_in = hooked

    def reduce_out(values, comm):
        with torch.no_grad():
            return comm.all_reduce(values.clone()).requires_grad_()


@wrong("16.w1", "a mean at g")
class MeansWell:
    copy_in = hooked

    def reduce_out(values, comm):
        total = comm.all_reduce(values.detach().clone())
        return values - values.detach() + total / comm.world_size


# 16.w2 --------------------------------------------------------------------------------------------------------------

def both_ways(forward, backward):
    def apply(values, comm):
        class Both(torch.autograd.Function):
            @staticmethod
            def forward(ctx, values):
                return forward(values, comm)

            @staticmethod
            def backward(ctx, gradient):
                return backward(gradient, comm)
        return Both.apply(values)
    return apply


def gathers_tokens(values, comm):
    return all_gather(values.contiguous(), comm, "tokens")


def sums_tokens(values, comm):
    return reduce_scatter(values.contiguous(), comm, "tokens")


@wrong("16.w2", "own gradient")
class SplitsTheGradient:
    gather_in = both_ways(gathers_tokens, lambda gradient, comm: gradient.chunk(comm.world_size, 1)[comm.rank].clone())


@wrong("16.w2", "own term")
class SplitsTheTerm:
    scatter_out = both_ways(lambda terms, comm: terms.chunk(comm.world_size, 1)[comm.rank].clone(), gathers_tokens)


@wrong("16.w2", "a mean")
class MeanOfTerms:
    scatter_out = both_ways(lambda terms, comm: sums_tokens(terms / comm.world_size, comm), gathers_tokens)


@wrong("16.w2", "times t")
class ScalesBack:
    scatter_out = both_ways(sums_tokens, lambda gradient, comm: gathers_tokens(gradient, comm).mul_(comm.world_size))
