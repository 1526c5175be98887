"""Wrong answers of chapter 22."""

import math

import torch
import torch.nn.functional as F
from wrong_answers import wrong

try:
    import triton.language as tl
except ImportError:
    tl = None


@wrong("22.1", "added")
def sums_both(kernels, peak, bandwidth):
    seconds, waiting = 0, []
    for name, operations, nbytes in kernels:
        seconds += operations / peak + nbytes / bandwidth
        if nbytes / bandwidth > operations / peak:
            waiting.append(name)
    return seconds, waiting


@wrong("22.2", "pieces")
def counts_instructions(loads, stores, elements, size):
    return (loads[size] if size in loads else 0), (stores[size] if size in stores else 0)


@wrong("22.3", "own maximum")
def maximum_of_each_block(load, C, BLOCK):
    most, total = -math.inf, 0.0
    for start in range(0, C, BLOCK):
        columns = torch.arange(start, start + BLOCK)
        x = load(columns, columns < C, -math.inf)
        new = max(most, float(x.max()))
        total = total * math.exp(most - new) + float(torch.exp(x - new).sum())
        most = new
    result = torch.empty(C)
    for start in range(0, C, BLOCK):
        columns = torch.arange(start, start + BLOCK)
        x = load(columns, columns < C, -math.inf)
        there = columns[columns < C]
        result[there] = (torch.exp(x - x.max()) / total)[: len(there)]
    return result


@wrong("22.3", "a low number")
def as_low_as_ten_thousand(load, C, BLOCK):
    blocks = [start + torch.arange(BLOCK) for start in range(0, C, BLOCK)]
    most, total = -math.inf, 0.0
    for columns in blocks:
        x = load(columns, columns < C, -1e4)
        new = max(most, x.max().item())
        total, most = total * math.exp(most - new) + (x - new).exp().sum(), new
    return torch.cat([(load(columns, columns < C, -1e4) - most).exp() / total for columns in blocks])[:C]



@wrong("22.4", "a power of two")
def doubles_while_it_fits(tokens, width, vocabulary, room):
    if 4 * vocabulary > room:
        return None
    chunk = 1
    while 4 * vocabulary * 2 * chunk <= room and chunk < tokens:
        chunk *= 2
    return min(chunk, tokens)


@wrong("22.4", "divides")
def equal_chunks(tokens, width, vocabulary, room):
    return max((chunk for chunk in range(1, tokens + 1) if tokens % chunk == 0 and 4 * vocabulary * chunk <= room), default=None)



@wrong("22.5", "not aligned")
def only_even(numel, ranks, multiple):
    step = math.ceil(numel / ranks)
    return [(min(numel, rank * step), min(numel, rank * step + step)) for rank in range(ranks)]


@wrong("22.6", "the last one's")
def counter_of_the_last(names, history):
    steps, used = {name: 0 for name in names}, []
    for with_gradient in history:
        last = 0
        for name in with_gradient:
            steps[name] += 1
            last = steps[name]
        used.append(dict.fromkeys(with_gradient, last))
    return used


@wrong("22.7", "no projection")
def as_if_the_root_were_constant(dy, x, weight, eps, programs):
    root = torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    sums = torch.zeros(programs, x.shape[1])
    for row in range(len(x)):
        sums[row % programs] += dy[row] * x[row] / root[row]
    return dy * weight / root, sums


@wrong("22.7", "misused")
def by_torch_itself(dy, x, weight, eps, programs):
    x = x.clone().requires_grad_()
    normed = x * (x.square().mean(1, keepdim=True) + eps).rsqrt()
    (normed * weight).backward(dy)
    products = dy * normed.detach()
    return x.grad, torch.stack([products[each::programs].sum(0) for each in range(programs)])



@wrong("22.8", "all keys")
def masks_what_it_reads(load, T, block):
    out, lse = [], []
    for start in range(0, T, block):
        stop = min(T, start + block)
        q = load("q", start, stop)
        scores, values = [], []
        for first in range(0, T, block):
            last = min(T, first + block)
            scores.append(q @ load("k", first, last).t() / q.shape[1] ** 0.5)
            values.append(load("v", first, last))
        scores = torch.cat(scores, 1)
        for row in range(start, stop):
            scores[row - start, row + 1 :] = -math.inf
        out.append(scores.softmax(1) @ torch.cat(values))
        lse.append(scores.logsumexp(1))
    return torch.cat(out), torch.cat(lse)


@wrong("22.8", "all scores")
def joins_the_row(load, T, block):
    out, lse = [], []
    for start in range(0, T, block):
        stop = min(T, start + block)
        q, parts = load("q", start, stop), []
        for first in range(0, stop, block):
            last = min(stop, first + block)
            scores = q @ load("k", first, last).t() / q.shape[1] ** 0.5
            parts.append((scores.masked_fill(torch.arange(first, last) > torch.arange(start, stop)[:, None], -math.inf), load("v", first, last)))
        scores, values = (torch.cat(each, dim) for each, dim in zip(zip(*parts, strict=True), (1, 0), strict=True))
        out.append(scores.softmax(1) @ values)
        lse.append(scores.logsumexp(1))
    return torch.cat(out), torch.cat(lse)



# 22.w1 --------------------------------------------------------------------------------------------------------------

@wrong("22.w1", "no mask")
def trusts_the_size(p_ptr, g_ptr, m_ptr, n, lr, momentum, BLOCK):
    where = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g, m = tl.load(g_ptr + where), tl.load(m_ptr + where)
    m = m * momentum + g
    tl.store(m_ptr + where, m)
    tl.store(p_ptr + where, tl.load(p_ptr + where) - lr * m)


@wrong("22.w1", "first block")
def every_program_alike(p_ptr, g_ptr, m_ptr, n, lr, momentum, BLOCK):
    where = tl.arange(0, BLOCK)
    inside = where < n
    m = tl.load(m_ptr + where, mask=inside, other=0.0) * momentum + tl.load(g_ptr + where, mask=inside, other=0.0)
    tl.store(m_ptr + where, m, mask=inside)
    tl.store(p_ptr + where, tl.load(p_ptr + where, mask=inside, other=0.0) - m * lr, mask=inside)


@wrong("22.w1", "momentum not kept")
def steps_only(p_ptr, g_ptr, m_ptr, n, lr, momentum, BLOCK):
    where = BLOCK * tl.program_id(0) + tl.arange(0, BLOCK)
    inside = where < n
    m = tl.load(m_ptr + where, mask=inside) * momentum + tl.load(g_ptr + where, mask=inside)
    tl.store(p_ptr + where, tl.load(p_ptr + where, mask=inside) - m * lr, mask=inside)


@wrong("22.w1", "one element a program")
def blocks_overlap(p_ptr, g_ptr, m_ptr, n, lr, momentum, BLOCK):
    where = tl.program_id(0) + tl.arange(0, BLOCK)
    inside = where < n
    m = tl.load(m_ptr + where, mask=inside) * momentum + tl.load(g_ptr + where, mask=inside)
    tl.store(m_ptr + where, m, mask=inside)
    tl.store(p_ptr + where, tl.load(p_ptr + where, mask=inside) - m * lr, mask=inside)


# 22.w2 --------------------------------------------------------------------------------------------------------------

def by_autograd(x, weight, targets, chunk, share):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    total = 0.0
    for begin in range(0, len(x), chunk):
        part = x[begin : begin + chunk]
        loss = F.cross_entropy(part @ weight.t(), targets[begin : begin + chunk], reduction="sum") / share(len(part), len(x))
        loss.backward()
        total += loss.item()
    return total, x.grad, weight.grad


@wrong("22.w2", "mean of a chunk")
def each_chunk_its_mean(x, weight, targets, chunk):
    return by_autograd(x, weight, targets, chunk, lambda rows, tokens: rows)


@wrong("22.w2", "mean of means")
def chunks_count_alike(x, weight, targets, chunk):
    return by_autograd(x, weight, targets, chunk, lambda rows, tokens: rows * math.ceil(tokens / chunk))


@wrong("22.w2", "all at once")
def logits_first(x, weight, targets, chunk):
    return by_autograd(x, weight, targets, len(x), lambda rows, tokens: tokens)


@wrong("22.w2", "rest left out")
def whole_chunks(x, weight, targets, chunk):
    tokens = len(x) // chunk * chunk
    loss, dx, dweight = by_autograd(x[:tokens], weight, targets[:tokens], chunk, lambda rows, _: rows * (tokens // chunk))
    left = tokens / len(x)
    return loss * left, torch.cat([dx * left, torch.zeros(len(x) - tokens, x.shape[1])]), dweight * left


# 22.w3 --------------------------------------------------------------------------------------------------------------

@wrong("22.w3", "no maximum")
def plain_exponentials(q, pieces):
    total, out = 0.0, torch.zeros(len(q))
    for k, v in pieces:
        weights = torch.exp(k @ q)
        total, out = total + weights.sum(), out + weights @ v
    return out / total, torch.log(total)


@wrong("22.w3", "every piece alike")
def mean_of_pieces(q, pieces):
    outs, sums = [], []
    for k, v in pieces:
        scores = (k * q).sum(1)
        outs.append(torch.softmax(scores, 0) @ v)
        sums.append(torch.logsumexp(scores, 0))
    return sum(outs) / len(outs), torch.logsumexp(torch.stack(sums), 0)


@wrong("22.w3", "out not scaled")
def sums_are_scaled_alone(q, pieces):
    largest, total, out = -math.inf, 0.0, 0
    for k, v in pieces:
        scores = k @ q
        new = max(largest, scores.max().item())
        total = total * math.exp(largest - new) + torch.exp(scores - new).sum()
        out, largest = out + torch.exp(scores - new) @ v, new
    return out / total, largest + torch.log(total)


@wrong("22.w3", "pieces kept")
def waits_for_all(q, pieces):
    keys, values = map(torch.cat, zip(*pieces, strict=True))
    scores = keys @ q
    return scores.softmax(0) @ values, scores.logsumexp(0)
