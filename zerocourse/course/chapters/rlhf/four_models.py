"""The four models of PPO on real ranks: what the ledger counts of each, beside the formula.

A model that is only asked is frozen and has no optimizer, so `shard` gives it no master weights: 2 bytes for each parameter.
"""

from dataclasses import dataclass

import torch
from torch import nn

from ....comm import Comm
from ....formulas.models.rl_states import MODELS, asked_bytes
from ....formulas.states import ModelStates, model_states
from ....measure.ledger import Ledger
from ....rl import RewardModel, log_probs
from ....zero.extras import shard
from .bracket_runs import TASK, new_model

TRAINED, ASKED = ("actor", "critic"), ("reference", "reward")
OF_WAY = dict(zip(MODELS, ((*TRAINED, *ASKED), ("actor", "reference"), ("actor",)), strict=True))
"""Which of the four each way of `MODELS` has, where a rule takes the place of the reward model."""


@dataclass(frozen=True)
class HeldModel:
    """One model on one rank.   params: of the whole model.   padding: elements behind its buffers, so that the ranks divide them.
    counted: bytes by the ledger, just before the optimizers' step."""

    params: int
    padding: int
    counted: ModelStates


def models() -> dict[str, nn.Module]:
    """On this rank, whole. The actor and its reference write, and the critic and the reward model give a number."""
    torch.manual_seed(0)
    return {name: new_model() if name in ("actor", "reference") else RewardModel(new_model().config) for name in (*TRAINED, *ASKED)}


def held(stage: int) -> dict[str, HeldModel]:
    """What this rank holds of each model, in bf16, just before the second step of a training. Collective."""
    comm, whole, optimizers = Comm(), models(), {}
    params = {name: sum(param.numel() for param in model.parameters()) for name, model in whole.items()}
    for name, model in whole.items():
        if name in TRAINED:
            optimizers[name] = torch.optim.AdamW(model.parameters(), lr=1e-4)
        shard(model.requires_grad_(name in TRAINED), optimizers.get(name), stage, param_dtype=torch.bfloat16)
    ledgers = {name: Ledger(model, optimizers.get(name)) for name, model in whole.items()}
    draw = torch.Generator().manual_seed(comm.rank)
    for _ in range(2):  # states of the optimizers are there from the first step on
        written = TASK.taught(TASK.kinds(8, draw), 0.5, draw)
        with torch.no_grad():
            apart = log_probs(whole["reference"], written).mean()
            reward_B = whole["reward"](written).float()
        (log_probs(whole["actor"], written).mean() - apart).backward()
        (whole["critic"](written).float() - reward_B).square().mean().backward()
        now = {name: ledger.now() for name, ledger in ledgers.items()}
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
    return {name: HeldModel(params[name], sum(flat.layout.padded for flat in model.zero.flats) - params[name],
                       ModelStates(now[name].parameters, now[name].gradients, now[name].optimizer)) for name, model in whole.items()}


def formula(way: str, of: dict[str, HeldModel], stage: int, ranks: int) -> int:
    """Bytes of the models of a way, each by its own number of parameters, on the rank that holds most."""
    return sum(model_states(of[name].params, stage, ranks).total_bytes if name in TRAINED else asked_bytes(of[name].params, stage, ranks)
               for name in OF_WAY[way])


def counted(way: str, of: dict[str, HeldModel]) -> int:
    """The same by the ledger."""
    return sum(of[name].counted.total_bytes for name in OF_WAY[way])
