"""The check of 24.6: a whole GRPO, on a policy that is a table of logits."""

from numbers import Integral

import torch

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a

RUNS = {"one step": (3, 4, 6, 1, 1, 0.5), "several epochs": (3, 4, 6, 4, 3, 2.0), "many steps": (4, 5, 8, 30, 1, 1.0), "far": (2, 3, 4, 5, 6, 8.0),
        "far, many actions": (2, 5, 8, 3, 6, 20.0)}
CLIP = 0.2


def rewarded_action(prompt, action):
    """One action of each prompt is right, and one is half right."""
    return 1.0 if action == prompt % 3 else 0.5 if action == (prompt + 1) % 3 else 0.0


def learned_table(answer, run):
    prompts, actions, samples, steps, epochs, rate = RUNS[run]
    start = torch.randn(prompts, actions, generator=torch.Generator().manual_seed(prompts)) * 0.5
    asked = []

    def reward(prompt, action):
        if not (isinstance(prompt, Integral) and isinstance(action, Integral)):
            raise Wrong(f"`reward` was asked for {a(prompt)} and {a(action)}: a prompt and an action are ints", MISUSED)
        asked.append((int(prompt), int(action)))
        return rewarded_action(int(prompt), int(action))

    given = start.clone()
    returned = answer(given, reward, samples, steps, epochs, rate, torch.Generator().manual_seed(1))
    if not torch.is_tensor(returned) or returned.shape != start.shape:
        raise Wrong(f"it returned {a(returned)}: return the table, of shape {tuple(start.shape)}", MISUSED)
    return {"changed": not torch.equal(given, start), "asked": len(asked), "table": returned.detach()}


@exercise(
    "24.6", "GRPO, whole", minutes=60, difficulty=3, answer="grpo", replaces=("zerocourse.rl.policy_loss:*", "zerocourse.rl.learning:*"),
    trials=[Trial([(run,) for run in RUNS], learned_table, close=1e-4)],
    mistakes={
        "drawn again": {"again": True},
        "old ones move": {"frozen": False},
        "mean of all": {"base": lambda rewards: rewards.mean()},
        "no base": {"base": lambda rewards: torch.zeros(1)},
        "not divided": {"spread": lambda rewards: torch.ones(1)},
        "never clipped": {"clip": 1e9},
        "clipped alone": {"least": lambda plain, clipped: clipped},
        "one epoch": {"of": lambda epochs: 1},
        "downhill": {"sign": 1},
    })
def grpo_on_table(table, reward, samples, steps, epochs, rate, draw, *, again=False, frozen=True, base=lambda rewards: rewards.mean(1, keepdim=True),
                  spread=lambda rewards: rewards.std(1, keepdim=True) + 1e-4, clip=CLIP, of=lambda epochs: epochs, sign=-1,
                  least=torch.minimum):
    """The table after learning."""
    for _ in range(steps):
        actions = torch.multinomial(table.softmax(-1), samples, replacement=True, generator=draw)
        rewards = torch.tensor([[reward(prompt, int(action)) for action in row] for prompt, row in enumerate(actions)])
        better = (rewards - base(rewards)) / spread(rewards)
        old = table.log_softmax(-1).gather(1, actions)
        for _ in range(of(epochs)):
            if again:
                actions = torch.multinomial(table.softmax(-1), samples, replacement=True, generator=draw)
            table = table.detach().requires_grad_()
            new = table.log_softmax(-1).gather(1, actions)
            ratio = (new - (old if frozen else new.detach())).exp()
            gain = least(ratio * better, ratio.clamp(1 - clip, 1 + clip) * better)
            (gradient,) = torch.autograd.grad(sign * gain.mean(), table)
            table = (table - rate * gradient).detach()
    return table
