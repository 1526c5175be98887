"""Mixtures of experts, and expert parallelism: each rank has some of the experts, and tokens travel to theirs and back.

    model = AutoModelForCausalLM.from_config(config)          # Mixtral or a Qwen MoE: experts are 3-D parameters
    expert_parallel(model, comms.along("ep"))                 # in place; the ranks of "ep" have different samples

routing says which experts a token takes, token_exchange moves the rows, layer is our own mixture, expert_balance the loss that keeps its
experts busy, cut_experts cuts a model's experts, expert_groups lets ZeRO cut what is left of the states.
"""

from .cut_experts import ExpertPlan, expert_parallel
from .expert_balance import balance_loss
from .expert_groups import expert_groups
from .layer import Experts, GatedExperts, MixtureOfExperts, mixture_llama
from .routing import Routing, route

__all__ = ["ExpertPlan", "Experts", "GatedExperts", "MixtureOfExperts", "Routing", "balance_loss", "expert_groups", "expert_parallel",
           "mixture_llama", "route"]
