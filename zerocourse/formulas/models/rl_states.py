"""What reinforcement learning holds: models that are trained, and models that are only asked. No torch.

PPO trains two, the policy and a critic, and asks two, the reference and the reward model; all of one size P, they are four times P.
GRPO with a rule trains one and asks at most one. What is asked has no gradients and no optimizer, and stage 3 cuts its parameters.
Source: Ouyang et al. 2022, arXiv 2203.02155; the counts are those of `states`.
"""

from ..shares import known_stage, positive, share_of
from ..states import ZERO, Convention, model_states

MODELS = {"PPO": (2, 2), "GRPO": (1, 1), "GRPO without a reference": (1, 0)}
"""Of each way, how many models are trained and how many are only asked."""


def asked_bytes(params: int, stage: int, ranks: int, convention: Convention = ZERO) -> int:
    """Of one model that is only asked: its parameters, which stage 3 cuts. Bytes on the rank that holds most. Raises BadInput."""
    whole, share = positive("params", params), share_of(params, ranks)
    return convention.parameter * (share if known_stage(stage) == 3 else whole)


def rl_state_bytes(params: int, trained: int, asked: int, stage: int, ranks: int, convention: Convention = ZERO) -> int:
    """Bytes on the rank that holds most.   params: of each model. Raises BadInput for a number that is not possible."""
    positive("trained", trained)
    return trained * model_states(params, stage, ranks, convention).total_bytes + asked * asked_bytes(params, stage, ranks, convention)
