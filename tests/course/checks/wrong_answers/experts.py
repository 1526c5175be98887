"""Wrong answers of chapter 21."""

from itertools import accumulate

import torch
from wrong_answers import wrong


@wrong("21.1", "tokens")
def a_message_for_each_rank(chosen, experts):
    ranks = len(chosen)
    here = experts // ranks
    return [[sum(any(expert // here == other for expert in token) for token in tokens) for other in range(ranks)] for tokens in chosen]


@wrong("21.1", "every Nth")
def dealt_out(chosen, experts):
    ranks, table = len(chosen), []
    for tokens in chosen:
        homes = [expert % ranks for token in tokens for expert in token]
        table.append([homes.count(other) for other in range(ranks)])
    return table


@wrong("21.2", "sorted again")
def takes_for_puts(x, chosen, weights, experts):
    flat = chosen.flatten()
    order = torch.argsort(flat, stable=True)
    rows, which = x[order // chosen.shape[1]], flat[order]
    made = torch.stack([experts[int(expert)](row) for row, expert in zip(rows, which, strict=True)])[order]
    return (made.view(*chosen.shape, -1) * weights.unsqueeze(-1)).sum(1)


@wrong("21.2", "not weighed")
def plain_mean(x, chosen, weights, experts):
    return torch.stack([torch.stack([experts[expert](row) for expert in some]).mean(0) for row, some in zip(x, chosen.tolist(), strict=True)])


@wrong("21.2", "written over")
def adds_at_an_index(x, chosen, weights, experts):
    out = torch.zeros_like(x)
    tokens = torch.arange(len(x)).repeat_interleave(chosen.shape[1])
    made = torch.cat([experts[expert](x[token][None]) for token, expert in zip(tokens.tolist(), chosen.flatten().tolist(), strict=True)])
    order = chosen.flatten().argsort(stable=True)
    out[tokens[order]] += (made * weights.flatten()[:, None])[order]
    return out



@wrong("21.3", "token by token")
def whoever_comes(chosen, capacity):
    busy, kept = {}, []
    for token in chosen:
        kept.append([])
        for expert in token:
            kept[-1].append(busy.get(expert, 0) < capacity)
            busy[expert] = busy.get(expert, 0) + 1
    return kept


@wrong("21.4", "to the emptiest")
def heaviest_first(loads, ranks):
    homes, weights, room = {}, [0] * ranks, [len(loads) // ranks] * ranks
    for load, expert in sorted(((load, expert) for expert, load in enumerate(loads)), key=lambda each: -each[0]):
        rank = min(filter(lambda each: room[each], range(ranks)), key=weights.__getitem__)
        homes[expert], weights[rank], room[rank] = rank, weights[rank] + load, room[rank] - 1
    return [homes[expert] for expert in range(len(loads))]


@wrong("21.5", "there and back")
def forward_alone(tokens, width, inner, matrices, experts, k, ranks):
    elsewhere = 1 - 1 / ranks
    return 2 * k * tokens * width * elsewhere, 3 * experts * matrices * width * inner * elsewhere


@wrong("21.6", "as they came")
def forgets_the_second_sort(x, chosen, weights, experts, apply, comm):
    ranks, k = comm.world_size, chosen.shape[1]
    numbers = chosen.reshape(-1).argsort(stable=True)
    table = torch.bincount(chosen.reshape(-1), minlength=experts).reshape(ranks, experts // ranks)
    theirs = torch.zeros_like(table)
    comm.all_to_all(table, theirs, "table").wait()

    def send(rows, out, back):
        edges, places = [0, *accumulate(out)], [0, *accumulate(back)]
        result = rows.new_zeros(places[-1], rows.shape[1])
        me = comm.rank
        result[places[me]:places[me + 1]] = rows[edges[me]:edges[me + 1]]
        to = {peer: rows[edges[peer]:edges[peer + 1]] for peer in comm.peers if out[peer]}
        got = {peer: result[places[peer]:places[peer + 1]] for peer in comm.peers if back[peer]}
        if to or got:
            comm.exchange(to, got, "rows").wait()
        return result

    there = send(x[numbers // k], table.sum(1).tolist(), theirs.sum(1).tolist())
    parts = there.split(theirs.sum(0).tolist())
    made = torch.cat([apply(part, number) for number, part in enumerate(parts)])
    home = send(made, theirs.sum(1).tolist(), table.sum(1).tolist())
    placed = torch.zeros_like(home)
    placed[numbers] = home
    return (placed.reshape(len(x), k, -1) * weights[:, :, None]).sum(1)


# 21.w1 --------------------------------------------------------------------------------------------------------------

@wrong("21.w1", "shares of all")
def as_topk_says(logits, k):
    found = torch.softmax(logits, dim=1).topk(k)
    return found.indices, found.values


@wrong("21.w1", "all alike")
def a_plain_vote(logits, k):
    experts = logits.argsort(dim=1, descending=True)[:, :k]
    return experts, torch.ones(len(logits), k) / k


@wrong("21.w1", "softmax twice")
def normalised_by_softmax(logits, k):
    values, experts = torch.topk(logits.softmax(1), k)
    return experts, torch.softmax(values, 1)


@wrong("21.w1", "over the tokens")
def along_the_tokens(logits, k):
    values, experts = torch.topk(logits.softmax(0), k)
    return experts, values / values.sum(1, keepdim=True)


# 21.w2 --------------------------------------------------------------------------------------------------------------

@wrong("21.w2", "tokens")
def says_whose(chosen, experts):
    flat = chosen.reshape(-1)
    order = sorted(range(len(flat)), key=lambda number: int(flat[number]))
    return torch.tensor(order) // chosen.shape[1], torch.bincount(flat, minlength=experts)


@wrong("21.w2", "experts without pairs")
def as_many_as_seen(chosen, experts):
    flat = chosen.reshape(-1)
    return torch.sort(flat, stable=True).indices, torch.bincount(flat)


@wrong("21.w2", "where each goes")
def ranks_of_pairs(chosen, experts):
    flat = chosen.reshape(-1)
    order = torch.sort(flat, stable=True).indices
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return place, torch.bincount(flat, minlength=experts)


@wrong("21.w2", "the sorted experts")
def values_of_the_sort(chosen, experts):
    return chosen.reshape(-1).sort().values, torch.bincount(chosen.reshape(-1), minlength=experts)


# 21.w3 --------------------------------------------------------------------------------------------------------------

@wrong("21.w3", "own counts")
def never_asks(chosen, probabilities, comm):
    count = probabilities.shape[1]
    shares = torch.nn.functional.one_hot(chosen, count).float().mean((0, 1))
    return count * torch.dot(shares, probabilities.mean(0))


@wrong("21.w3", "shares of tokens")
def share_of_the_tokens(chosen, probabilities, comm):
    count = probabilities.shape[1]
    taken = comm.all_reduce(torch.nn.functional.one_hot(chosen, count).float().sum((0, 1)))
    return count * torch.dot(taken / (len(chosen) * comm.world_size), probabilities.mean(0))


@wrong("21.w3", "not times E")
def a_bare_product(chosen, probabilities, comm):
    taken = comm.all_reduce(torch.nn.functional.one_hot(chosen, probabilities.shape[1]).float().sum((0, 1)))
    return torch.dot(taken / taken.sum(), probabilities.mean(0))


@wrong("21.w3", "summed")
def sum_of_probabilities(chosen, probabilities, comm):
    count = probabilities.shape[1]
    taken = comm.all_reduce(torch.bincount(chosen.reshape(-1), minlength=count).float())
    return count * torch.dot(taken / taken.sum(), probabilities.sum(0))
