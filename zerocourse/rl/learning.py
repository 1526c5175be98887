"""Steps of learning: from a teacher's text, and from one's own that was rewarded. The same for a plain model and a sharded one.

Ranks have prompts of their own, and equally many. A group, the samples of one prompt, stays on its rank, so advantages need no message.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .policy_loss import divergence, log_probs, mean_over, policy_loss
from .rollouts import Rollout


@dataclass(frozen=True)
class Learned:
    """loss, divergence: of this rank's samples, the latter from the reference (0 without one).   norm: of the whole gradient."""

    loss: float
    divergence: float
    norm: float


def clipped_step(model: nn.Module, optimizer: Optimizer, loss: Tensor, most_norm: float) -> float:
    """Backward and update. Returns the norm of the gradient before it was clipped to `most_norm`."""
    loss.backward()
    stage = getattr(model, "zero", None)
    norm = nn.utils.clip_grad_norm_(model.parameters(), most_norm) if stage is None else stage.clip_grad_norm_(most_norm)
    optimizer.step()
    optimizer.zero_grad()
    return norm.item()


def imitate(model: nn.Module, optimizer: Optimizer, rollout: Rollout, most_norm: float = 1.0) -> Learned:
    """Supervised fine-tuning: make what somebody else has written likelier. Prompts are read, and not learned."""
    loss = -mean_over(log_probs(model, rollout), rollout.written_BT)
    return Learned(loss.item(), 0.0, clipped_step(model, optimizer, loss, most_norm))


def improve(model: nn.Module, optimizer: Optimizer, rollout: Rollout, advantages_B: Tensor, *, clip: float = 0.2, pull: float = 0.0,
            reference_BT: Tensor | None = None, epochs: int = 1, length: str = "tokens", most_norm: float = 1.0) -> Learned:
    """Make what was better than its group likelier, and what was worse less likely: `epochs` steps on one rollout. Returns the last.

    pull: how strongly the divergence from the reference counts.   reference_BT: `log_probs` of the reference.
    """
    learned = Learned(0.0, 0.0, 0.0)
    for _ in range(epochs):
        new_BT = log_probs(model, rollout)
        loss = policy_loss(new_BT, rollout.drawn_BT, advantages_B, rollout.written_BT, clip, length)
        apart = torch.zeros(())
        if reference_BT is not None:
            apart = mean_over(divergence(new_BT, reference_BT), rollout.written_BT, length)
            loss = loss + pull * apart
        learned = Learned(loss.item(), apart.item(), clipped_step(model, optimizer, loss, most_norm))
    return learned
