"""A reward model: from pairs of answers, of which somebody liked one better, it learns a number for every answer.

Source: Bradley and Terry 1952; Ouyang et al. 2022, arXiv 2203.02155, equation 1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..formulas.gpt2_config import GPTConfig
from ..models.gpt2 import GPT
from .rollouts import Rollout


class RewardModel(nn.Module):
    """Our GPT with one number in place of the vocabulary, read behind the last token that was written."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.body = GPT(config)
        self.body.lm_head = nn.Linear(config.n_embd, 1, bias=False)

    def forward(self, rollout: Rollout) -> Tensor:
        """(B,). What stands behind the answer does not count, because nothing before it sees it."""
        scores_BS = self.body(rollout.tokens_BS)[..., 0]
        places_T = torch.arange(rollout.written_BT.shape[1], device=scores_BS.device)
        last_B = (rollout.written_BT * places_T).argmax(1) + 1
        return scores_BS.gather(1, last_B[:, None])[:, 0]


def preference_loss(better_B: Tensor, worse_B: Tensor) -> Tensor:
    """A scalar: -log σ(better - worse). Only differences count, so rewards are known up to a constant of each prompt."""
    return -F.logsigmoid(better_B - worse_B).mean()
