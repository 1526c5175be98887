"""Wrong answers of chapter 24."""

import math

import torch
from wrong_answers import wrong


@wrong("24.1", "asked ones whole")
def frozen_models_stay(params, trained, asked, stage, ranks):
    own = params / ranks
    held = {0: 16 * params, 1: 4 * params + 12 * own, 2: 2 * params + 14 * own, 3: 16 * own}[stage]
    return trained * held + asked * 2 * params


@wrong("24.2", "one late")
def from_the_prompt_on(tokens, prompts, end):
    result = []
    for row, begin in zip(tokens, prompts, strict=True):
        stop = next((place for place in range(begin, len(row)) if row[place] == end), len(row) - 1)
        result.append([begin <= place < stop for place in range(len(row) - 1)])
    return result


@wrong("24.2", "zeros as padding")
def stops_at_a_zero(tokens, prompts, end):
    result = []
    for row, begin in zip(tokens, prompts, strict=True):
        stop = begin
        while stop < len(row) and row[stop] not in (end, 0):
            stop += 1
        result.append([begin - 1 <= place < stop for place in range(len(row) - 1)])
    return result


@wrong("24.3", "not of the samples")
def mean_of_each(lengths, most):
    return {"tokens": [1 / sum(lengths) for _ in lengths], "samples": [1 / each for each in lengths], "constant": [1 / most / len(lengths) for _ in lengths]}


@wrong("24.4", "equally many")
def fair_shares(chances, budget):
    return [budget // len(chances) for _ in chances]


@wrong("24.5", "times the pull")
def the_pull_as_a_factor(reference, rewards, pull):
    weights = [chance * math.exp(pull * reward) for chance, reward in zip(reference, rewards, strict=True)]
    total = sum(weights)
    return [weight / total for weight in weights]


@wrong("24.6", "never clipped")
def plain_policy_gradient(table, reward, samples, steps, epochs, rate, draw):
    for _ in range(steps):
        actions = torch.multinomial(torch.softmax(table, 1), samples, replacement=True, generator=draw)
        rewards = torch.tensor([[reward(number, action) for action in row] for number, row in enumerate(actions.tolist())])
        scores = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        before = torch.log_softmax(table, 1).gather(1, actions)
        for _ in range(epochs):
            leaf = table.clone().requires_grad_()
            ratio = torch.exp(torch.log_softmax(leaf, 1).gather(1, actions) - before)
            (-(ratio * scores).mean()).backward()
            table = table - rate * leaf.grad
    return table


# 24.w1 --------------------------------------------------------------------------------------------------------------

@wrong("24.w1", "of itself")
def says_what_it_reads(logits, tokens):
    return torch.log_softmax(logits[1:], 1)[range(len(tokens) - 1), tokens[1:]]


@wrong("24.w1", "probabilities")
def forgets_the_logarithm(logits, tokens):
    return torch.softmax(logits[:-1], 1)[range(len(tokens) - 1), tokens[1:]]


@wrong("24.w1", "logits")
def raw_scores(logits, tokens):
    return logits[range(len(tokens) - 1), tokens[1:]]


@wrong("24.w1", "added up")
def of_the_whole_text(logits, tokens):
    return -torch.nn.functional.cross_entropy(logits[:-1], tokens[1:], reduction="sum")


# 24.w2 --------------------------------------------------------------------------------------------------------------

@wrong("24.w2", "of all")
def against_everybody(rewards, samples):
    return ((rewards - rewards.mean()).view(-1, samples) / (rewards.view(-1, samples).std(1, keepdim=True) + 1e-4)).view(-1)


@wrong("24.w2", "not divided")
def only_centred(rewards, samples):
    groups = rewards.reshape(-1, samples)
    return (groups - groups.mean(dim=1)[:, None]).reshape(-1)


@wrong("24.w2", "the reward alone")
def scaled_rewards(rewards, samples):
    groups = rewards.reshape(-1, samples)
    return (groups / (groups.std(dim=1)[:, None] + 1e-4)).reshape(-1)


@wrong("24.w2", "every so-many")
def groups_across(rewards, samples):
    groups = rewards.reshape(samples, -1)
    return ((groups - groups.mean(0)) / (groups.std(0) + 1e-4)).reshape(-1)


# 24.w3 --------------------------------------------------------------------------------------------------------------

@wrong("24.w3", "never clipped")
def importance_weights(new, old, advantages, clip):
    return -(torch.exp(new - old) * advantages.unsqueeze(1)).mean()


@wrong("24.w3", "always clipped")
def clamp_alone(new, old, advantages, clip):
    return -(torch.exp(new - old).clip(1 - clip, 1 + clip) * advantages.unsqueeze(1)).mean()


@wrong("24.w3", "uphill")
def a_gain_is_no_loss(new, old, advantages, clip):
    ratio, scale = torch.exp(new - old), advantages.unsqueeze(1)
    return torch.min(ratio * scale, ratio.clip(1 - clip, 1 + clip) * scale).mean()


@wrong("24.w3", "the larger")
def optimist(new, old, advantages, clip):
    ratio, scale = torch.exp(new - old), advantages.unsqueeze(1)
    return -torch.max(ratio * scale, ratio.clip(1 - clip, 1 + clip) * scale).mean()
