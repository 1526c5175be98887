"""Claims about what ranks send, counted by the communicator of simulated ranks, which run the package's own stages."""

import torch

from ....comm.simulated import SimulatedComm
from ....comm.torch_private import FakeTensorMode
from ....formulas.volumes import passes
from ....init.deferred import deferred_init
from ....layout.rankmap import owners
from ....measure.drawn.balance import Balance
from ....models.gpt2 import CONFIGS, GPT
from ....simulation.one_rank import step
from ....zero.extras import shard
from .claim import Evidence, judges
from .simulated_steps import MODEL, sent_passes

RANKS = 4


def volumes() -> Evidence:
    stages = (1, 2, 3)
    return {"claimed": {1: 2, 2: 2, 3: 3}, "one_micro_batch": {stage: sent_passes(stage, RANKS, 1) for stage in stages},
            "two_micro_batches": {stage: sent_passes(stage, RANKS, 2) for stage in stages},
            "DeepSpeeds_defaults": {stage: passes(stage, 1, "deepspeed").total for stage in stages}}


@judges("2Ψ and 3Ψ", volumes)
def exact(e):
    """With one micro-batch, and otherwise."""
    one, two, deepspeed = (all(abs(e[way][stage] - claimed) < 0.01 for stage, claimed in e["claimed"].items())
                           for way in ("one_micro_batch", "two_micro_batches", "DeepSpeeds_defaults"))
    return [one, one and two and deepspeed]


def sent_under(rank_map: str | None, rank: int, ranks: int) -> float:
    """Elements that a rank sends in a step of stage 1, for each parameter of the model."""
    with FakeTensorMode():
        model = GPT(CONFIGS[MODEL])
        optimizer, comm = torch.optim.AdamW(model.parameters()), SimulatedComm(rank, ranks)
        shard(model, optimizer, 1, comm=comm, rank_map=rank_map)
        step(model, optimizer, lambda model, tokens_BT: model(tokens_BT, tokens_BT),
             torch.zeros(1, 8, dtype=torch.int64), 1)
    return sum(comm.elements.values()) / CONFIGS[MODEL].params


def balances(ranks: int) -> dict[str, Balance]:
    """Rank maps on GPT-2 XL, with the same scale."""
    with deferred_init():
        shapes = {name: param.shape for name, param in GPT(CONFIGS["gpt2-xl"]).named_parameters()}
    widest = max(Balance.build(shapes, ranks, "round_robin").elements)
    return {name or "flat": Balance.build(shapes, ranks, name, widest) for name in ("round_robin", None)}


def modulo() -> Evidence:
    xl = balances(2)["round_robin"]
    owner = owners("round_robin", xl.shapes, 2)
    return {"sent_by_rank_in_Ψ": {rank: sent_under("round_robin", rank, 2) for rank in (0, 1)},
            "sent_with_flat_slices": {rank: sent_under(None, rank, 2) for rank in (0, 1)},
            "imbalance": {ranks: balances(ranks)["round_robin"].imbalance for ranks in (2, 8)},
            "matrices_on_each_rank": [sum(len(shape) > 1 and owner[name] == rank for name, shape in xl.shapes.items())
                                      for rank in (0, 1)],
            "imbalance_of_flat_slices": {ranks: balances(ranks)["flat"].imbalance for ranks in (2, 8)}}


@judges("param_id % N", modulo)
def silent(e):
    """To know the map, and to train with it."""
    return [True, not any(e["sent_by_rank_in_Ψ"].values())]
