"""A small GPT that learns to close brackets: from a teacher, and then from a rule. And the same rule, misunderstood."""

import copy

import torch

from ....comm import Comm
from ....models.gpt2 import GPT, GPTConfig
from ....rl import Brackets, Rollout, Sampler, Vowels, advantages, imitate, improve, log_probs
from ....zero.extras import shard

TASK, GROUP, PROMPTS, ROOM = Brackets(), 8, 16, 8192  # samples of a prompt, prompts of a step, and tokens of the cache


def new_model(seed: int = 0) -> GPT:
    """Of 0.12 million parameters, which have seen nothing."""
    torch.manual_seed(seed)
    return GPT(GPTConfig(2, 4, 64, block_size=24, vocab_size=128, tied=False))


def taught_model(wrong: float = 0.75, steps: int = 150) -> GPT:
    """After a teacher who is wrong in this part of what it writes."""
    model, draw = new_model(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(steps):
        imitate(model, optimizer, TASK.taught(TASK.kinds(128, draw), wrong, draw))
    return model


def right_answers(model: GPT, temperature: float = 1.0, count: int = 400) -> float:
    """The share of right answers to prompts that were held out.   temperature: near 0 the likeliest token is taken."""
    kinds = TASK.kinds(count, torch.Generator().manual_seed(99), held_out=True)
    written = Sampler(model, ROOM, torch.Generator().manual_seed(5), temperature)(TASK.prompts(kinds), 1, TASK.depth)
    return TASK.reward(written).mean().item()


def rewarded(start: GPT, steps: int, pull: float = 0.0) -> tuple[GPT, list[float]]:
    """A copy of the model after GRPO with the rule of `Brackets`, and the mean reward of each step. `start` is the reference, too."""
    model, draw, rewards = copy.deepcopy(start), torch.Generator().manual_seed(1), []
    optimizer, sampler = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, betas=(0.9, 0.95)), Sampler(model, ROOM, draw)
    for _ in range(steps):
        rollout = sampler(TASK.prompts(TASK.kinds(PROMPTS, draw)), GROUP, TASK.depth)
        reward = TASK.reward(rollout)
        with torch.no_grad():
            reference = log_probs(start, rollout) if pull else None
        improve(model, optimizer, rollout, advantages(reward, GROUP), pull=pull, reference_BT=reference)
        rewards.append(reward.mean().item())
    return model, rewards


def after_vowels(steps: int = 60, length: int = 12) -> tuple[list[float], list[str]]:
    """From random weights, with the share of vowels as reward: the rewards, and three texts in the end."""
    model, draw, rewards = new_model(), torch.Generator().manual_seed(0), []
    optimizer, sampler = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0), Sampler(model, ROOM, draw)
    for _ in range(steps):
        rollout = sampler([[10]], 64, length)
        reward = Vowels().reward(rollout)
        improve(model, optimizer, rollout, advantages(reward, 64))
        rewards.append(reward.mean().item())
    return rewards, [bytes(rollout.answer(row)).decode(errors="replace") for row in range(3)]


def sent_for(tokens: int, once: bool) -> tuple[int, int]:
    """On a rank of a job at stage 3: elements that it sends to write so many tokens, and parameters of the model. Collective.

    once: gathered for the whole rollout; False: by every forward, as a loop without a cache does.
    """
    comm, model = Comm(), new_model()
    params = sum(param.numel() for param in model.parameters())
    shard(model, torch.optim.AdamW(model.parameters()), 3)
    before, prompt = sum(model.zero.comm.elements.values()), [40, 91, 61]
    if once:
        Sampler(model, ROOM, torch.Generator().manual_seed(comm.rank))([prompt], 1, tokens)
    else:
        with torch.no_grad():
            for _ in range(tokens):
                prompt.append(int(model(torch.tensor([prompt]))[0, -1].argmax()))
    return sum(model.zero.comm.elements.values()) - before, params


def one_group(model: GPT, seed: int = 12) -> tuple[str, list[tuple[str, float]], Rollout]:
    """A prompt, and of its samples the answers and rewards."""
    draw = torch.Generator().manual_seed(seed)
    (prompt,) = TASK.prompts(TASK.kinds(1, draw))
    rollout = Sampler(model, ROOM, draw)([prompt], GROUP, TASK.depth)
    answers = [bytes(rollout.answer(row)).decode(errors="replace") for row in range(GROUP)]
    return bytes(prompt).decode(), list(zip(answers, TASK.reward(rollout).tolist(), strict=True)), rollout
