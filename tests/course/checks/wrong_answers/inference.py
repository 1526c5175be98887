"""Wrong answers of chapter 23."""

import torch
from wrong_answers import wrong


@wrong("23.1", "weights for each")
def each_reads_the_weights(weights, token, tokens, card, bandwidth):
    request = token * tokens
    count = max(0, int((card - weights) // request))
    return (count, count * bandwidth / (count * weights + count * request)) if count else (0, 0.0)


@wrong("23.2", "given while shared")
class ForgetsOwners:
    def __init__(self, blocks):
        self.unused = set(range(blocks))

    def take(self):
        return self.unused.pop() if self.unused else None

    def share(self, blocks):
        pass

    def give(self, blocks):
        self.unused.update(blocks)


@wrong("23.3", "from p")
def draws_from_the_model(p, q, guess, number):
    ratio = (p[guess] / q[guess]).item()
    return (True, None) if ratio >= 1 or number < ratio else (False, p)


@wrong("23.4", "cost forgotten")
def the_more_the_better(right, cost):
    best, most = 0, 0.0
    for guesses in range(17):
        tokens = sum(right**each for each in range(guesses + 1))
        if tokens > most:
            best, most = guesses, tokens
    return best


@wrong("23.5", "in their order")
def first_come(requests, budget):
    rows = []
    for number, (computed, tokens) in enumerate(requests):
        count = min(budget, tokens - computed)
        if count > 0:
            rows.append((number, computed, computed + count))
            budget -= count
    return rows


@wrong("23.6", "one at a time")
def queue(step, prompts, new, blocks, size, budget):
    results = []
    for prompt in prompts:
        tokens, computed = list(prompt), 0
        while len(tokens) < len(prompt) + new:
            end = min(len(tokens), computed + budget)
            said = step([(tokens[computed:end], computed, list(range(end)))])
            computed = end
            if end == len(tokens):
                tokens.append(said[0])
        results.append(tokens)
    return results


# 23.w1 --------------------------------------------------------------------------------------------------------------

@wrong("23.w1", "without itself")
def sees_the_past(q, k, v, keys, values, length):
    weights = torch.einsum("hd,htd->ht", q, keys[:, :length]).softmax(-1)
    keys[:, length], values[:, length] = k, v
    return torch.einsum("ht,htd->hd", weights, values[:, :length])


@wrong("23.w1", "everything")
def sees_all_places(q, k, v, keys, values, length):
    keys[:, length], values[:, length] = k, v
    return torch.einsum("ht,htd->hd", torch.einsum("hd,htd->ht", q, keys).softmax(-1), values)


@wrong("23.w1", "not written")
def makes_a_copy(q, k, v, keys, values, length):
    keys, values = keys.clone(), values.clone()
    shares = torch.einsum("hd,htd->ht", q, keys[:, : length + 1]).softmax(-1)
    return torch.einsum("ht,htd->hd", shares, values[:, : length + 1])


@wrong("23.w1", "over the heads")
def softmax_of_heads(q, k, v, keys, values, length):
    keys[:, length], values[:, length] = k, v
    shares = torch.einsum("hd,htd->ht", q, keys[:, : length + 1]).softmax(0)
    return torch.einsum("ht,htd->hd", shares, values[:, : length + 1])


# 23.w2 --------------------------------------------------------------------------------------------------------------

@wrong("23.w2", "as if in order")
def plain_places(table, start, end, size):
    return list(range(start, end))


@wrong("23.w2", "block as slot")
def adds_the_block(table, start, end, size):
    return [table[number // size] + number % size for number in range(start, end)]


@wrong("23.w2", "first block")
def neighbours(table, start, end, size):
    return [table[0] * size + number for number in range(start, end)]


@wrong("23.w2", "from the start")
def counts_from_nought(table, start, end, size):
    return [table[number // size] * size + number % size for number in range(end - start)]


# 23.w3 --------------------------------------------------------------------------------------------------------------

@wrong("23.w3", "right ones alone")
def only_what_was_guessed(guesses, rows, choose):
    found = []
    for guess, row in zip(guesses, rows, strict=False):
        if choose(row) != guess:
            return found
        found.append(guess)
    return [*found, choose(rows[len(guesses)])]


@wrong("23.w3", "no extra one")
def as_many_as_guesses(guesses, rows, choose):
    found = []
    for guess, row in zip(guesses or [None], rows, strict=False):
        found.append(choose(row))
        if found[-1] != guess:
            break
    return found


@wrong("23.w3", "all of them")
def every_row(guesses, rows, choose):
    return [choose(row) for row in rows]


@wrong("23.w3", "one token")
def never_looks_further(guesses, rows, choose):
    return [choose(rows[0])]
