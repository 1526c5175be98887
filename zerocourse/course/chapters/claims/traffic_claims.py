"""Claims about what ranks send, counted by the communicator of simulated ranks, which run the package's own stages."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ....comm.simulated import SimulatedComm
from ....formulas.volumes import passes
from ....init.deferred import deferred_init
from ....layout.balance import Balance
from ....layout.rankmap import owners
from ....models.gpt2 import CONFIGS, GPT
from ....simulation.one_rank import step
from ....zero.shard import shard
from .claim import FALSE, ONLY_IF, TRUE, Claim, Evidence, Judgement
from .simulated_steps import MODEL, sent_passes

GROUP = "traffic"
RANKS = 4


# -- 2Ψ and 3Ψ ---------------------------------------------------------------------------------------------------------

def volumes() -> Evidence:
    stages = (1, 2, 3)
    return {"claimed": {1: 2, 2: 2, 3: 3}, "one_micro_batch": {stage: sent_passes(stage, RANKS, 1) for stage in stages},
            "two_micro_batches": {stage: sent_passes(stage, RANKS, 2) for stage in stages},
            "DeepSpeeds_defaults": {stage: passes(stage, 1, "deepspeed").total for stage in stages}}


def judge_volumes(e: Evidence) -> Judgement:
    def holds(measured: dict) -> bool:
        return all(abs(measured[stage] - claimed) < 0.01 for stage, claimed in e["claimed"].items())

    settles = ("{one_micro_batch[2]:.0f}Ψ and {one_micro_batch[3]:.0f}Ψ with one micro-batch, "
               "{two_micro_batches[2]:.0f}Ψ and {two_micro_batches[3]:.0f}Ψ with two")
    if not holds(e["one_micro_batch"]):
        return Judgement(FALSE, settles)
    if holds(e["two_micro_batches"]) and holds(e["DeepSpeeds_defaults"]):
        return Judgement(TRUE, settles)
    return Judgement(ONLY_IF, settles, "a step has one micro-batch and gradients are reduce-scattered, not all-reduced")


# -- param_id % world_size ---------------------------------------------------------------------------------------------

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
    return {"sent_by_rank": {rank: sent_under("round_robin", rank, 2) for rank in (0, 1)},
            "sent_with_flat_slices": {rank: sent_under(None, rank, 2) for rank in (0, 1)},
            "imbalance": {ranks: balances(ranks)["round_robin"].imbalance for ranks in (2, 8)},
            "matrices_on_each_rank": [sum(len(shape) > 1 and owner[name] == rank for name, shape in xl.shapes.items())
                                      for rank in (0, 1)],
            "imbalance_of_flat_slices": {ranks: balances(ranks)["flat"].imbalance for ranks in (2, 8)}}


def judge_modulo(e: Evidence) -> Judgement:
    settles = "the fullest rank has {imbalance[2]:.2f} times the mean on two ranks, {imbalance[8]:.2f} times on eight"
    if not any(e["sent_by_rank"].values()):
        return Judgement(TRUE, "nothing is sent")
    return Judgement(ONLY_IF, settles, "the map itself is meant: no message is needed to know who owns what")


CLAIMS = (
    Claim("2Ψ and 3Ψ", GROUP, "traffic", "ZeRO-1 and ZeRO-2 send 2Ψ elements per rank and step, as data parallel "
          "training does, and ZeRO-3 sends 3Ψ.", volumes, judge_volumes,
          "It is the count of the ZeRO paper, and it is exact for its step.",
          "Micro-batches: ZeRO-2 and ZeRO-3 communicate in each of them. And a library that all-reduces: with "
          "DeepSpeed's defaults ZeRO-2 sends "
          "{DeepSpeeds_defaults[2]}Ψ.", "Rajbhandari et al. 2020, arXiv 1910.02054, section 7"),
    Claim("param_id % N", GROUP, "traffic", "Sharding by `param_id % world_size` needs no communication.", modulo,
          judge_modulo,
          "Every rank computes the same map for itself. But the gradients and parameters still travel, "
          "{sent_by_rank[0]:.1f}Ψ per rank, as with flat slices.",
          "Tensors of equal sizes: then the map is even as well. In GPT-2 XL they are not: of two ranks one gets "
          "{matrices_on_each_rank[0]} matrices, the other {matrices_on_each_rank[1]}."),
)
