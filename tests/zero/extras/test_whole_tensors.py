"""Optimizers that look at whole tensors, Adafactor, Lamb and Muon: with whole tensors on each rank they are exact at every stage."""

from functools import partial

import pytest
import torch
from torch import nn
from transformers.optimization import Adafactor as TransformersAdafactor
from worlds import Net, check_same_state, net_rows

import zerocourse
from zerocourse.engine import initialize
from zerocourse.errors import BadInput

STAGES, STEPS = (0, 1, 2, 3), 4


class Lamb(torch.optim.Optimizer):
    """The shortest that is one: Adam's direction, scaled by the ratio of two norms over the whole tensor."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state |= {"exp_avg": torch.zeros_like(param), "exp_avg_sq": torch.zeros_like(param)}
                state["exp_avg"].lerp_(param.grad, 0.1)
                state["exp_avg_sq"].lerp_(param.grad.square(), 0.01)
                direction = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-6)
                param.sub_(direction * group["lr"] * param.norm() / direction.norm())


class Matrices(nn.Module):
    """Muon takes matrices alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.blocks = nn.ModuleList(nn.Linear(5, 5, bias=False) for _ in range(3))
        self.last = nn.Linear(5, 2, bias=False)

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.last(x).float().square().mean()


KINDS = {"adafactor": (Net, partial(torch.optim.Adafactor, lr=1e-2)), "lamb": (Net, Lamb),
         "muon": (Matrices, partial(torch.optim.Muon, lr=1e-2, weight_decay=0.01)),
         "transformers": (Net, partial(TransformersAdafactor, lr=1e-2, relative_step=False, scale_parameter=True, warmup_init=False))}


def train(kind: str, stage: int, steps: int = STEPS, load: str | None = None, save: str | None = None, **more) -> dict:
    make, optimizer = KINDS[kind]
    model = make()
    zero = {"stage": stage} | more.pop("zero", {})
    engine = initialize(model, optimizer(model.parameters()), config={
        "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5, "zero_optimization": zero, **more})[0]
    if load:
        engine.load_checkpoint(load)
    for step in range(engine.global_steps, engine.global_steps + steps):
        rows = net_rows(step, engine.global_rank).to(next(model.parameters()).dtype)
        engine.backward(engine(rows))
        engine.step()
    if save:
        engine.save_checkpoint(save)
    return {name: value.float() for name, value in engine.state_dict().items()}


def by_hand(kind: str, world_size: int) -> dict:
    make, optimizer = KINDS[kind]
    model = make()
    optimizer = optimizer(model.parameters())
    for step in range(STEPS):
        for rank in range(world_size):
            (model(net_rows(step, rank)) / world_size).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def near(state: dict, expected: dict, tolerance: float) -> None:
    for name, value in expected.items():
        assert (state[name] - value).abs().max() <= tolerance * value.abs().max(), name


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_one_process(pool, kind, stage):
    for state in pool(2).run(train, kind, stage):
        near(state, by_hand(kind, 2), 1e-2 if kind == "muon" else 1e-5)  # Muon orthogonalises in bf16


@pytest.mark.parametrize("stage", (1, 3))
def test_muon_is_bitwise_that_of_stage_0(pool, stage):
    check_same_state(pool(2).run(train, "muon", stage)[0], pool(2).run(train, "muon", 0)[0], "muon")


@pytest.mark.parametrize("more", [{"bf16": {"enabled": True}}, {"zero": {"offload_optimizer": {"device": "cpu"}}}])
@pytest.mark.parametrize("kind", ("adafactor", "muon"))
def test_in_half_precision_and_offloaded(pool, kind, more):
    near(pool(2).run(train, kind, 2, **more)[0], by_hand(kind, 2), 2e-2 if "bf16" in more or kind == "muon" else 1e-5)


@pytest.mark.parametrize("kind", ("adafactor", "muon"))
def test_a_checkpoint_travels(pool, tmp_path, kind):
    """Saved on two ranks at stage 2, loaded on three at stage 3 and on one at stage 1."""
    folder = str(tmp_path)
    pool(2).run(train, kind, 2, 2, None, folder)
    for ranks, stage in ((2, 2), (3, 3), (1, 1)):
        states = pool(ranks).run(train, kind, stage, 0, folder)
        check_same_state(states[0], pool(2).run(train, kind, 2, 2)[0], ranks)
    check_same_state(pool(2).run(train, kind, 3, 2, folder)[0], pool(2).run(train, kind, 2)[0], "and goes on")


def refused(folder: str) -> list[str]:
    nvme, said = {"device": "nvme", "nvme_path": folder}, []
    for attempt in (lambda model: zerocourse.shard(model, torch.optim.Adafactor(model.parameters()), 2),
                    lambda model: zerocourse.shard(model, torch.optim.LBFGS(model.parameters()), 2, rank_map="greedy"),
                    lambda model: train("adafactor", 2, zero={"offload_optimizer": {"device": "cpu", "ratio": 0.5}}),
                    lambda model: train("adafactor", 2, zero={"offload_optimizer": nvme})):
        with pytest.raises(BadInput) as caught:
            attempt(Net())
        said.append(str(caught.value))
    return said


def test_what_would_be_cut_is_refused(pool, tmp_path):
    for said in pool(2).run(refused, str(tmp_path)):
        for sentence, words in zip(said, ('rank_map="greedy"', "LBFGS looks at more than a rank has", "leave the offload's ratio at 1",
                                          "offload to the host"), strict=True):
            assert words in sentence and "\n" not in sentence
