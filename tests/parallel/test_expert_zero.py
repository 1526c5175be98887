"""ZeRO beside experts equals one process, at every stage, and its checkpoints know experts by their numbers in the whole model."""

import re

import pytest
import test_experts as experts
import torch

from zerocourse import shard
from zerocourse.comm import Comm
from zerocourse.engine.checkpoint import load_checkpoint, save_checkpoint
from zerocourse.errors import BadInput
from zerocourse.launch import RankError
from zerocourse.layout.mesh import Mesh
from zerocourse.measure.ledger import Ledger
from zerocourse.offload import HostOffload
from zerocourse.parallel.experts import expert_groups, expert_parallel
from zerocourse.parallel.mesh_comms import MeshComms
from zerocourse.zero.whole.consolidate import load_state_dict, state_dict

STEPS = 3


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def sharded(ranks, ep, stage, kind="ours", **options):
    comms = MeshComms(Mesh({"dp": ranks // ep, "ep": ep}), timeout=20)
    model = expert_parallel(experts.built(kind), comms.along("ep"))
    model, optimizer = shard(model, optimizer_of(model), stage, comm=expert_groups(comms), **options)
    return comms, model, optimizer


def one_process(kind="ours", rows=4, steps=STEPS):
    """Losses and norms of a plain training, and the weights at the end."""
    model, losses, norms = experts.built(kind), [], []
    optimizer = optimizer_of(model)
    for _ in range(steps):
        loss = experts.loss_of(model, experts.samples(rows))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms, model.state_dict()


def trained(model, optimizer, comms, steps=STEPS, rows=4):
    everyone, losses, norms = comms.make("dp", "ep"), [], []
    for _ in range(steps):
        loss = experts.loss_of(model, experts.samples(rows).chunk(everyone.world_size)[everyone.rank], everyone)
        loss.backward()
        norms.append(model.zero.clip_grad_norm_(0.5).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(everyone.all_reduce(loss.detach().double()).item() / everyone.world_size)
    return losses, norms


def on_ranks(ranks, ep, stage, kind, options):
    comms, model, optimizer = sharded(ranks, ep, stage, kind, **options)
    return *trained(model, optimizer, comms), state_dict(model), Ledger(model, optimizer).now().optimizer


@pytest.mark.parametrize("ranks, ep, stage, kind, options", (
    *((4, 2, stage, "ours", {}) for stage in range(4)), (2, 2, 1, "ours", {}), (2, 2, 0, "ours", {}), (4, 4, 3, "ours", {}), (2, 1, 2, "ours", {}),
    (4, 2, 2, "ours", {"offload": True}), (2, 2, 3, "mixtral", {}), (4, 2, 3, "qwen3", {})))
def test_equals_one_process(pool, ranks, ep, stage, kind, options):
    losses, norms, weights = one_process(kind)
    results = pool(ranks).run(on_ranks, ranks, ep, stage, kind, options | ({"offload": HostOffload()} if options else {}))
    for ours, our_norms, state, _ in results:
        assert ours == pytest.approx(losses, rel=1e-6)
        assert our_norms == pytest.approx(norms, rel=1e-5)
        assert state.keys() == weights.keys()
        for name, value in state.items():
            assert (value - weights[name]).abs().max() < (1e-6 if kind == "ours" else 1e-4), name


def test_the_states_of_all_ranks_are_those_of_one(pool):
    """Whatever ep is: AdamW has 16 bytes for each parameter in fp64, and each element has one rank."""
    wanted = 16 * sum(param.numel() for param in experts.built("ours").parameters())
    for ranks, ep in ((2, 1), (2, 2), (4, 2), (4, 4)):
        held = [held for *_, held in pool(ranks).run(on_ranks, ranks, ep, 1, "ours", {})]
        assert wanted <= sum(held) < wanted + 16 * 100 * ranks, "slices are padded to 16 bytes at most"


def test_under_the_rules_of_nccl(strict_pool):
    test_equals_one_process(strict_pool, 4, 2, 3, "ours", {})


def save(ranks, ep, stage, path):
    comms, model, optimizer = sharded(ranks, ep, stage)
    trained(model, optimizer, comms)
    save_checkpoint(model, optimizer, path)


def load(ranks, ep, stage, path):
    comms, model, optimizer = sharded(ranks, ep, stage)
    load_checkpoint(model, optimizer, path)
    return trained(model, optimizer, comms), state_dict(model)


def test_checkpoints_know_experts_by_their_numbers(pool, tmp_path):
    pool(4).run(save, 4, 2, 2, tmp_path / "checkpoint")
    losses, norms, weights = one_process(steps=2 * STEPS)
    for ranks, ep, stage in ((4, 4, 3), (2, 1, 1), (2, 2, 0)):
        for (ours, our_norms), state in pool(ranks).run(load, ranks, ep, stage, tmp_path / "checkpoint"):
            assert ours == pytest.approx(losses[STEPS:], rel=1e-6)
            assert our_norms == pytest.approx(norms[STEPS:], rel=1e-5)
            assert all((value - weights[name]).abs().max() < 1e-6 for name, value in state.items())


def loaded_whole(ranks, ep, stage):
    torch.manual_seed(7)
    state = experts.Small().double().state_dict()
    _, model, _ = sharded(ranks, ep, stage)
    load_state_dict(model, state)
    with pytest.raises(BadInput, match=re.escape("(8, 16, 32) in the model")):
        load_state_dict(model, state | {"mixtures.0.experts.down": torch.zeros(4, 16, 32)})
    now = state_dict(model, rank_0_only=True)
    return [name for name, value in now.items() if not torch.equal(value, state[name])], len(now)


@pytest.mark.parametrize("stage", (0, 3))
def test_whole_weights_have_the_experts_of_all_ranks(pool, stage):
    assert pool(4).run(loaded_whole, 4, 2, stage) == [([], 9), *[([], 0)] * 3]


def refused(how):
    comms = MeshComms(Mesh({"dp": 1, "ep": 2}), timeout=20)
    if how == "meta":
        with torch.device("meta"):
            model = experts.Small()
        expert_parallel(model, comms.along("ep"))
    model = expert_parallel(experts.built("ours"), comms.along("ep"))
    if how == "no groups":
        shard(model, optimizer_of(model), 1)
    if how == "one axis":
        expert_groups(MeshComms(Mesh({"ep": 2}), timeout=20))
    if how == "rank map":
        shard(model, optimizer_of(model), 1, "greedy", comm=expert_groups(comms))
    if how == "delays":
        shard(model, optimizer_of(model), 1, offload=HostOffload(delay_after=1), comm=expert_groups(comms))


@pytest.mark.parametrize("how, words", (
    ("meta", "mixtures.0.experts.up is on the meta device: every rank would draw the same experts"),
    ("no groups", "'mixtures.0.experts.up' has the experts of this rank alone: say comm=expert_groups(comms)"),
    ("one axis", "has no axis of ranks with the same experts"), ("rank map", "leave out replicate and rank_map"),
    ("delays", "leave out delay_after")))
def test_what_would_be_wrong_is_refused(pool, how, words):
    with pytest.raises(RankError, match=re.escape(words)):
        pool(2).run(refused, how)


def test_without_peers_nothing_is_cut():
    model = expert_parallel(experts.built("ours"), Comm())
    shard(model, optimizer_of(model), 3)
    assert state_dict(model)["mixtures.0.experts.up"].shape == (8, 32, 16)
