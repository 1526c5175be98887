"""The check of 24.w3, which chapter 24 asks for itself: PPO's loss, which pushes a token only so far."""

import torch

from ....checks import MISUSED, Trial, Wrong, exercise
from ....checks.words import a


def clipped_loss(new, old, advantages, clip):
    """The loss of PPO, as a mean over tokens.

    new, old: (B, T), log-probabilities of the tokens, now and when they were drawn; only
    `new` has a gradient.   advantages: (B,), of the samples.
    The ratio of a token's probabilities times its advantage is its gain. It is compared
    with the same product in which the ratio is kept between 1 - clip and 1 + clip, and the
    smaller one counts. The loss is minus the mean of what counts.
    """
    ratio = (new - old).exp()
    gain = ratio * advantages[:, None]
    kept = ratio.clamp(1 - clip, 1 + clip) * advantages[:, None]
    return -torch.minimum(gain, kept).mean()


def pushed(answer, rows, tokens, clip):
    """The loss and where its gradient leads."""
    draw = torch.Generator().manual_seed(rows)
    old = torch.randn(rows, tokens, generator=draw) - 3
    new = (old + 0.4 * torch.randn(rows, tokens, generator=draw)).requires_grad_()
    loss = answer(new, old, torch.randn(rows, generator=draw), clip)
    if not torch.is_tensor(loss) or loss.numel() != 1 or not loss.requires_grad:
        raise Wrong(f"it returned {a(loss)}: return a tensor with one element, made from `new`", MISUSED)
    return {"loss": loss.item(), "gradient": torch.autograd.grad(loss.sum(), new)[0]}


@exercise(
    "24.w3", "Only so far", minutes=10, difficulty=2, answer="clipped_loss", own=clipped_loss, replaces=("zerocourse.rl.policy_loss:*",),
    trials=[Trial([(4, 3, 0.2), (6, 5, 0.1), (3, 8, 0.5)], pushed, close=1e-5)],
    mistakes={
        "never clipped": {"smaller": lambda gain, kept: gain},
        "always clipped": {"smaller": lambda gain, kept: kept},
        "the larger": {"smaller": torch.maximum},
        "uphill": {"sign": 1},
        "difference of logs": {"ratio_of": lambda new, old: new - old},
        "turned": {"ratio_of": lambda new, old: (old - new).exp()},
        "added up": {"mean": lambda values: values.sum()},
        "log-probabilities clipped": {"clamp": lambda ratio, clip: ratio.clamp(-clip, clip)},
    })
def ppo_loss(new, old, advantages, clip, *, smaller=torch.minimum, sign=-1, ratio_of=lambda new, old: (new - old).exp(),
             mean=lambda values: values.mean(), clamp=lambda ratio, clip: ratio.clamp(1 - clip, 1 + clip)):
    """A scalar."""
    ratio = ratio_of(new, old)
    return sign * mean(smaller(ratio * advantages[:, None], clamp(ratio, clip) * advantages[:, None]))
