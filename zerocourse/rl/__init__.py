"""Reinforcement learning of a language model: it writes, a rule or a model rewards what it wrote, and it learns from that.

    sampler = Sampler(model, room=2048, draw=torch.Generator().manual_seed(0))
    rollout = sampler(prompts, samples=8, most_new=5)                    # by the server, on the trainer's own weights
    rewards = task.reward(rollout)
    improve(model, optimizer, rollout, advantages(rewards, 8))           # GRPO; any stage of ZeRO

rollouts says what was written and how likely each token was, policy_loss how much a token is worth, learning makes steps of it,
tasks are rules that can be checked, and preferences train a reward model on pairs.
Sources: Ouyang et al. 2022, arXiv 2203.02155; Shao et al. 2024, arXiv 2402.03300 (GRPO).
"""

from .learning import imitate, improve
from .policy_loss import advantages, divergence, log_probs, mean_over, policy_loss
from .preferences import RewardModel, preference_loss
from .rollouts import Rollout, Sampler
from .tasks import Brackets, Vowels

__all__ = ["Brackets", "RewardModel", "Rollout", "Sampler", "Vowels", "advantages", "divergence", "imitate", "improve", "log_probs", "mean_over",
           "policy_loss", "preference_loss"]
