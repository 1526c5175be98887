"""The check of 24.w2, which chapter 24 asks for itself: how much better an answer is than the others of its group."""

import torch

from ....checks import Trial, exercise


def better(rewards, samples):
    """How much better each answer is than its group, in standard deviations of the group.

    rewards: (B,), the `samples` answers to one prompt side by side.
    Returns (B,). Where all answers of a group are worth the same: zeros. (Add 1e-4 to the
    standard deviation, and use `torch.std` as it is.)
    """
    groups = rewards.view(-1, samples)
    apart = groups - groups.mean(1, keepdim=True)
    return (apart / (groups.std(1, keepdim=True) + 1e-4)).flatten()


CASES = [([1.0, 0, 0, 0, 0, 1, 1, 1], 4), ([1.0, 1, 0, 0, 1, 0], 2), ([0.0, 0, 0, 5, 5, 5, 1, 2, 3], 3), ([0.2, 0.9, 0.4, 0.7], 4)]


def compared(answer, rewards, samples):
    return {"advantages": answer(torch.tensor(rewards), samples)}


@exercise(
    "24.w2", "Better than the others", minutes=8, difficulty=1, answer="better", own=better, replaces=("zerocourse.rl.policy_loss:*",),
    trials=[Trial(CASES, compared, close=1e-4)],
    mistakes={
        "of all": {"mean": lambda groups: groups.mean()},
        "not divided": {"spread": lambda groups: torch.ones(1)},
        "all prompts' spread": {"spread": lambda groups: groups.std() + 1e-4},
        "variance": {"spread": lambda groups: groups.var(1, keepdim=True) + 1e-4},
        "every so-many": {"cut": lambda rewards, samples: rewards.view(samples, -1).T, "join": lambda values: values.T.flatten()},
        "the reward alone": {"mean": lambda groups: torch.zeros(1)},
    })
def group_advantages(rewards, samples, *, mean=lambda groups: groups.mean(1, keepdim=True), spread=lambda groups: groups.std(1, keepdim=True) + 1e-4,
                     cut=lambda rewards, samples: rewards.view(-1, samples), join=lambda values: values.flatten()):
    """(B,)."""
    groups = cut(rewards, samples)
    return join((groups - mean(groups)) / spread(groups))
