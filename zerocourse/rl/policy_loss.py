"""How much a token is worth: advantages within a group, the clipped loss of PPO, and the distance to a reference.

Shapes as in `rollouts`: B samples, T places, and at place t the token behind it.
Sources: Schulman et al. 2017, arXiv 1707.06347, equation 7; Shao et al. 2024, arXiv 2402.03300, equations 3 and 4.
"""

import torch
from torch import Tensor, nn

from ..errors import BadInput
from .rollouts import Rollout

LENGTHS = ("tokens", "samples", "constant")


def log_probs(model: nn.Module, rollout: Rollout) -> Tensor:
    """(B, T): of each token behind a place, under the weights of now, and 0 where none was written.

    The temperature is the rollout's: at another one these would be the probabilities of tokens that nobody has drawn.
    """
    out = model(rollout.tokens_BS[:, :-1])
    logits_BTV = getattr(out, "logits", out).float() / rollout.temperature
    of_token_BT = logits_BTV.log_softmax(-1).gather(2, rollout.tokens_BS[:, 1:, None])[..., 0]
    return of_token_BT.masked_fill(~rollout.written_BT, 0.0)


def advantages(rewards_B: Tensor, samples: int, divide: bool = True) -> Tensor:
    """(B,): how much better a sample is than the mean of its group, the `samples` samples of one prompt that lie side by side.

    divide: by the group's standard deviation. Where all are equal there is nothing to learn: zeros. Raises BadInput for groups of one.
    """
    if samples < 2 or len(rewards_B) % samples:
        raise BadInput(f"{len(rewards_B)} rewards in groups of {samples}: a group has at least two samples, and none is cut")
    groups = rewards_B.float().view(-1, samples)
    better = groups - groups.mean(1, keepdim=True)
    return (better / (groups.std(1, keepdim=True) + 1e-4) if divide else better).flatten()


def policy_loss(new_BT: Tensor, old_BT: Tensor, advantages_B: Tensor, written_BT: Tensor, clip: float = 0.2, length: str = "tokens") -> Tensor:
    """A scalar. A token that has become likelier by more than `clip` gets no further push, and neither does one that has become
    less likely by more, in the direction in which it has gone.

    length: what is averaged, see `mean_over`.
    """
    ratio_BT = (new_BT - old_BT).exp()
    gain_BT = torch.minimum(ratio_BT * advantages_B[:, None], ratio_BT.clamp(1 - clip, 1 + clip) * advantages_B[:, None])
    return -mean_over(gain_BT, written_BT, length)


def divergence(new_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """(B, T): how far a token's probability is from that under the reference; never negative, and KL in the mean over what was drawn."""
    apart_BT = reference_BT - new_BT
    return apart_BT.exp() - apart_BT - 1


def mean_over(values_BT: Tensor, written_BT: Tensor, length: str = "tokens") -> Tensor:
    """"tokens": each token counts alike (DAPO).   "samples": each sample does, so tokens of a long one count less (GRPO).   "constant": the
    sum, divided by B · T, so that a token's weight depends on no length (Dr. GRPO). Raises BadInput for another."""
    values_BT = values_BT * written_BT
    if length == "tokens":
        return values_BT.sum() / written_BT.sum().clamp(min=1)
    if length == "samples":
        return (values_BT.sum(1) / written_BT.sum(1).clamp(min=1)).mean()
    if length == "constant":
        return values_BT.mean()
    raise BadInput(f"length is {length!r}: there are {', '.join(LENGTHS)}")
