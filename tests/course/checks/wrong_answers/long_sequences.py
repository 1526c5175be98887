"""Wrong answers of chapter 19."""

import math

import torch

from wrong_answers import wrong


@wrong("19.1", "everybody's keys")
def no_causality_between_ranks(q, k, v, rank, ranks, pass_on):
    blocks = []
    for step in range(ranks):
        scores = q @ k.T / math.sqrt(q.shape[1])
        if step == 0:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        blocks.append((scores, v))
        if step < ranks - 1:
            k, v = pass_on(k), pass_on(v)
    return torch.cat([s for s, _ in blocks], 1).softmax(-1) @ torch.cat([v for _, v in blocks])


@wrong("19.1", "the wrong owner")
def as_if_it_came_from_behind(q, k, v, rank, ranks, pass_on):
    scores = q @ k.T / math.sqrt(q.shape[1])
    all_scores, values = [scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)], [v]
    for step in range(1, ranks):
        k, v = pass_on(k), pass_on(v)
        if (rank + step) % ranks < rank:
            all_scores.append(q @ k.T / math.sqrt(q.shape[1]))
            values.append(v)
    return torch.cat(all_scores, 1).softmax(-1) @ torch.cat(values)


@wrong("19.1", "blocks kept")
def attends_when_all_are_there(q, k, v, rank, ranks, pass_on):
    keys, values = {rank: k}, {rank: v}
    for step in range(1, ranks):
        keys[(rank - step) % ranks] = k = pass_on(k)
        values[(rank - step) % ranks] = v = pass_on(v)
    k, v = (torch.cat([blocks[each] for each in range(rank + 1)]) for blocks in (keys, values))
    scores = q @ k.T / math.sqrt(q.shape[1])
    later = torch.arange(len(k)) > torch.arange(len(q))[:, None] + rank * len(q)
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ v



@wrong("19.2", "too many copies")
def as_many_as_queries(q, k, v, ranks, exchange):
    k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))

    def turned(x):
        return torch.cat(list(exchange(torch.stack(x.chunk(ranks, 1)))))

    q, k, v = map(turned, (q, k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[2])
    weights = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax(-1)
    out = torch.einsum("hqk,khd->qhd", weights, v)
    return torch.cat(list(exchange(torch.stack(out.chunk(ranks, 0)))), 1)


@wrong("19.3", "label of the cut")
def shifted_too_late(tokens, rank, ranks):
    tokens = tokens + [0] * (-len(tokens) % (2 * ranks))
    size = len(tokens) // (2 * ranks)
    positions = [*range(size * rank, size * (rank + 1)), *range(len(tokens) - size * (rank + 1), len(tokens) - size * rank)]
    mine = [tokens[at] for at in positions]
    return mine, mine[1:] + [-100], positions


@wrong("19.4", "no gradients")
def keys_and_values_twice(ranks, heads, kv_heads, width, tokens):
    each, kv = tokens // ranks * width, kv_heads
    ring = 4 * (ranks - 1) * each * kv
    if heads % ranks:
        return "ring", ring
    while kv % ranks:
        kv += kv_heads
    turned = 4 * (heads + kv) * each * (ranks - 1) // ranks
    return ("ring", ring) if ring <= turned else ("Ulysses", turned)


@wrong("19.4", "a tie")
def ulysses_unless_it_is_more(ranks, heads, kv_heads, width, tokens):
    each = tokens // ranks * width
    ring = 6 * (ranks - 1) * each * kv_heads
    copies = math.lcm(kv_heads, ranks)
    turned = 4 * (heads + copies) * each * (ranks - 1) // ranks
    return ("ring", ring) if heads % ranks or ring < turned else ("Ulysses", turned)



@wrong("19.5", "mean of means")
def as_torch_does(logits, targets, comm):
    if (targets == -100).all():
        return logits.sum() * 0
    return torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100)



@wrong("19.1", "blocks kept")
def clones_of_all_blocks(q, k, v, rank, ranks, pass_on):
    keys, values = {rank: k}, {rank: v}
    for step in range(1, ranks):
        k, v = pass_on(k), pass_on(v)
        keys[(rank - step) % ranks], values[(rank - step) % ranks] = k.clone(), v.clone()
    k, v = (torch.cat([some[r] for r in range(rank + 1)]) for some in (keys, values))
    mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(rank * len(q))
    return (q @ k.T / math.sqrt(q.shape[1])).masked_fill(~mask, -math.inf).softmax(-1) @ v


@wrong("19.2", "too few copies")
def copies_for_few_heads_only(q, k, v, ranks, exchange):
    times = max(1, ranks // k.shape[1])
    k, v = (each.repeat_interleave(times, 1) for each in (k, v))
    q, k, v = (exchange(torch.stack(each.chunk(ranks, 1))).flatten(0, 1).movedim(0, 1) for each in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).movedim(0, 1)
    return torch.cat(list(exchange(out.unflatten(0, (ranks, -1)))), 1)


@wrong("19.5", "more than there are")
def divided_by_a_target_a_rank(logits, targets, comm):
    count = comm.all_reduce((targets != -100).sum())
    own = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
    return own * comm.world_size / max(int(count), comm.world_size)


# 19.w1 --------------------------------------------------------------------------------------------------------------

@wrong("19.w1", "overflow")
class AsTheFormulaSays:
    def join(out, sums, more_out, more_sums):
        one, other = sums.exp(), more_sums.exp()
        share = one / (one + other)
        return share[:, None] * out + (1 - share)[:, None] * more_out, (one + other).log()


@wrong("19.w1", "mean")
class HalfAndHalf:
    def join(out, sums, more_out, more_sums):
        return (out + more_out) / 2, torch.logaddexp(sums, more_sums)


@wrong("19.w1", "largest")
class TheLouderOne:
    def join(out, sums, more_out, more_sums):
        share = torch.sigmoid(sums - more_sums)[:, None]
        return more_out + share * (out - more_out), torch.where(sums > more_sums, sums, more_sums)


@wrong("19.w1", "exchanged")
class TheOtherSigmoid:
    def join(out, sums, more_out, more_sums):
        share = torch.sigmoid(more_sums - sums)[:, None]
        return share * out + (1 - share) * more_out, torch.stack([sums, more_sums]).logsumexp(0)


# 19.w2 --------------------------------------------------------------------------------------------------------------

def sent(rows, comm):
    received = torch.empty_like(rows)
    comm.all_to_all(rows.contiguous(), received, "rows").wait()
    return received


@wrong("19.w2", "every Nth head")
class DealsHeads:
    def to_heads(x, comm):
        rows = torch.stack([x[:, rank::comm.world_size] for rank in range(comm.world_size)])
        return torch.cat(list(sent(rows, comm)))


@wrong("19.w2", "tokens mixed")
class StacksTokens:
    def to_heads(x, comm):
        return torch.stack(list(sent(torch.stack(x.chunk(comm.world_size, 1)), comm)), 1).flatten(0, 1)


@wrong("19.w2", "not exchanged")
class Reshapes:
    def to_heads(x, comm):
        return torch.cat(x.chunk(comm.world_size, 1))


@wrong("19.w2", "back to front")
class FromTheLast:
    def to_heads(x, comm):
        return torch.cat(list(sent(torch.stack(x.chunk(comm.world_size, 1)[::-1]), comm)))
