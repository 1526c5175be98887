"""What a config makes: optimizers with DeepSpeed's defaults, schedules with its numbers, in the loop as by hand."""

import copy
import math
import re
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from worlds import Net, net_rows

from zerocourse.comm import bootstrap
from zerocourse.engine import initialize
from zerocourse.engine.config import Config
from zerocourse.engine.updates.lion import Lion
from zerocourse.engine.updates.optimizers import build_optimizer, choose_optimizer, choose_scheduler
from zerocourse.engine.updates.schedules import SCHEDULES
from zerocourse.errors import BadInput


def config(**sections) -> Config:
    return Config.load({"train_batch_size": 8, **sections}, 1)


def section(name: str, **params) -> dict:
    return {"type": name, "params": params}


# --- optimizers ---

@pytest.mark.parametrize("asked, kind, defaults", [
    (section("Adam", lr=0.5), torch.optim.AdamW, {"lr": 0.5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}),
    (section("Adam", adam_w_mode=False, weight_decay=0.1), torch.optim.Adam, {"lr": 1e-3, "weight_decay": 0.1}),
    (section("adamw", betas=[0.5, 0.75]), torch.optim.AdamW, {"betas": (0.5, 0.75), "weight_decay": 0.0}),
    (section("Lion", lr=0.25), Lion, {"lr": 0.25, "betas": (0.9, 0.999), "weight_decay": 0.0}),
    (section("SGD", momentum=0.5, nesterov=True), torch.optim.SGD, {"lr": 1e-3, "momentum": 0.5, "nesterov": True}),
])
def test_the_optimizer_of_a_section(asked, kind, defaults):
    optimizer = build_optimizer(config(optimizer=asked), nn.Linear(2, 2).parameters())
    assert type(optimizer) is kind and optimizer.defaults | defaults == optimizer.defaults


@pytest.mark.parametrize("place, offload, fused", [("cpu", None, None), ("cuda", None, True), ("cpu", "cpu", True)])
def test_adam_is_torchs_fused_one_where_that_is_fast(monkeypatch, place, offload, fused):
    monkeypatch.setattr(bootstrap, "device", lambda: torch.device(place))
    zero = {"stage": 2} | ({"offload_optimizer": {"device": offload}} if offload else {})
    for kind in ("Adam", "AdamW"):
        optimizer = build_optimizer(config(optimizer=section(kind), zero_optimization=zero), nn.Linear(2, 2).parameters())
        assert optimizer.defaults["fused"] is fused
    build_optimizer(config(optimizer=section("SGD")), nn.Linear(2, 2).parameters())


def test_the_settings_of_a_parameter_group_stay():
    layer = nn.Linear(2, 2)
    groups = [{"params": [layer.weight], "weight_decay": 0.5}, {"params": [layer.bias], "lr": 7.0}]
    first, second = build_optimizer(config(optimizer=section("AdamW", lr=1)), groups).param_groups
    assert (first["weight_decay"], first["lr"], second["weight_decay"], second["lr"]) == (0.5, 1, 0.0, 7.0)


def test_what_initialize_is_given_wins_with_a_warning():
    model = nn.Linear(2, 2)
    both = config(optimizer=section("Adam"), scheduler=section("WarmupLR"))
    sgd = torch.optim.SGD(model.parameters(), lr=1)
    with pytest.warns(UserWarning, match="given an optimizer, so the config's section optimizer changes nothing"):
        assert choose_optimizer(both, sgd, model, None) is sgd
    with pytest.warns(UserWarning, match="given lr_scheduler, so the config's section scheduler changes nothing"):
        assert type(choose_scheduler(both, lambda it: torch.optim.lr_scheduler.StepLR(it, 1), sgd)).__name__ == "StepLR"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_optimizer(config(), sgd, model, None) is sgd
        assert choose_optimizer(config(), None, model, None) is None and choose_scheduler(config(), None, sgd) is None
        assert choose_optimizer(both, None, model, [model.bias]).param_groups[0]["params"] == [model.bias]
    with pytest.raises(BadInput, match="scheduler.type is 'WarmupLR', and there is no optimizer"):
        choose_scheduler(both, None, None)
    with pytest.raises(BadInput, match="optimizer is a str: it must be a torch optimizer, or a function"):
        choose_optimizer(config(), "Adam", model, None)


def test_lion_by_hand():
    """Two steps of Algorithm 2, in numbers that floats have exactly."""
    weight = nn.Parameter(torch.tensor([2.0, -4.0, 8.0]))
    optimizer = Lion([weight, nn.Parameter(torch.ones(1))], lr=0.5, betas=(0.5, 0.75), weight_decay=0.25)
    weight.grad = torch.tensor([3.0, -1.0, 0.0])
    optimizer.step()  # average 0: the direction is the gradient's sign; decay 2 - 0.25
    assert weight.tolist() == [1.25, -3.0, 7.0] and optimizer.state[weight]["exp_avg"].tolist() == [0.75, -0.25, 0.0]
    weight.grad = torch.tensor([-0.5, 1.0, -4.0])
    loss = optimizer.step(lambda: torch.tensor(7.0))  # 0.375 - 0.25 is above 0; -0.125 + 0.5, too
    assert weight.tolist() == [1.25 * 0.875 - 0.5, -3.0 * 0.875 - 0.5, 7.0 * 0.875 + 0.5] and loss == 7
    assert optimizer.state[weight]["exp_avg"].tolist() == [0.5625 - 0.125, -0.1875 + 0.25, -1.0]
    assert list(optimizer.state) == [weight], "a parameter without a gradient has no state"


# --- schedules ---

ROOT = math.sqrt(0.5)
BY_HAND = [  # the rate before the first step, and after each
    ("WarmupLR", {"warmup_min_lr": 0.1, "warmup_max_lr": 0.5, "warmup_num_steps": 4, "warmup_type": "linear"},
     [0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5]),
    ("WarmupLR", {"warmup_num_steps": 4}, [0, 0, 0.5, math.log(3) / math.log(4), 1, 1, 1]),  # to the optimizer's rate
    ("WarmupLR", {"warmup_num_steps": 1}, [0, 0, 1, 1]),  # never less than 2 steps
    ("WarmupDecayLR", {"warmup_max_lr": 2.0, "warmup_num_steps": 2, "total_num_steps": 6, "warmup_type": "linear"},
     [0, 0, 1, 2, 1.5, 1, 0.5, 0, 0]),
    ("WarmupCosineLR", {"warmup_num_steps": 2, "total_num_steps": 6, "warmup_type": "linear", "cos_min_ratio": 0.1},
     [0, 0, 0.5, 0.1 + 0.45 * (1 + ROOT), 0.55, 0.1 + 0.45 * (1 - ROOT), 0.1, 0.1]),
    ("WarmupCosineLR", {"warmup_num_steps": 2, "total_num_steps": 3, "warmup_min_ratio": 0.5, "warmup_type": "linear"},
     [0, 0.5, 0.75, 0.0001, 0.0001]),
    ("OneCycle", {"cycle_min_lr": 0.5, "cycle_max_lr": 1.5, "cycle_first_step_size": 4, "cycle_second_step_size": 2,
                  "decay_step_size": 2, "decay_lr_rate": 0.5}, [0.5, 0.75, 1.0, 1.25, 1.5, 1.0, 0.5, 0.4, 0.5 / 1.5]),
    ("OneCycle", {"cycle_min_lr": 0, "cycle_max_lr": 1, "cycle_first_step_size": 4, "cycle_first_stair_count": 2,
                  "cycle_second_stair_count": 0}, [0, 0, 0.5, 0.5, 1, 0.75, 0.5, 0.25, 0, 0]),
    ("LRRangeTest", {"lr_range_test_min_lr": 0.1, "lr_range_test_step_size": 2, "lr_range_test_step_rate": 3.0},
     [0.1, 0.25, 0.4, 0.55, 0.7]),
    ("LRRangeTest", {"lr_range_test_min_lr": 0.1, "lr_range_test_step_size": 2, "lr_range_test_staircase": True},
     [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]),
]


def adam(lr: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.Adam([nn.Parameter(torch.ones(1))], lr=lr)


@pytest.mark.parametrize("name, params, rates", BY_HAND)
def test_a_schedule_by_hand(name, params, rates):
    optimizer = adam()
    params = config(scheduler=section(name, **params)).scheduler.params.model_dump()
    schedule, found = SCHEDULES[name](optimizer, **params), []
    for _ in rates:
        found.append(optimizer.param_groups[0]["lr"])
        assert found[-1] == schedule.get_last_lr()[0] == schedule.get_lr()[0]
        schedule.step()
    assert found == pytest.approx(rates, abs=1e-12)
    resumed = SCHEDULES[name](adam(), **params)
    resumed.load_state_dict({"last_batch_iteration": len(rates) - 3})
    resumed.step()
    assert resumed.get_last_lr() == [found[-1]] and resumed.state_dict() == {"last_batch_iteration": len(rates) - 2}


def test_one_cycle_moves_the_betas():
    optimizer, betas = adam(), []
    schedule = SCHEDULES["OneCycle"](optimizer, 0.0, 1.0, cycle_first_step_size=2, decay_step_size=4,
                                     decay_mom_rate=0.1)
    for _ in range(7):
        betas.append(optimizer.param_groups[0]["betas"])
        schedule.step()
    assert [beta2 for _, beta2 in betas] == [0.99] * 7
    assert [beta for beta, _ in betas] == pytest.approx([0.8, 0.85, 0.8, 0.85, 0.9, 0.9 * 1.025, 0.9 * 1.05])
    sgd = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1, momentum=0.5)
    SCHEDULES["OneCycle"](sgd, 0.0, 1.0).step()
    assert sgd.param_groups[0]["momentum"] == 0.5 and "betas" not in sgd.param_groups[0]


def test_one_rate_for_each_parameter_group():
    optimizer = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in (1.0, 2.0)])
    schedule = SCHEDULES["WarmupLR"](optimizer, warmup_min_lr=[0.5, 0.0], warmup_num_steps=2, warmup_type="linear")
    schedule.step(1)
    assert schedule.get_last_lr() == [0.75, 1.0]
    with pytest.raises(BadInput, match="warmup_max_lr is a list of 3 rates: the optimizer has 2 parameter groups"):
        SCHEDULES["WarmupLR"](optimizer, warmup_max_lr=[1.0, 2.0, 3.0])


@pytest.mark.parametrize("kind, params, said", [
    ("WarmupLR", {"warmup_num_steps": 0}, "WarmupLR: warmup_num_steps is 0: it must be an integer of at least 1"),
    ("WarmupLR", {"warmup_num_steps": -5}, "warmup_num_steps is -5"),
    ("WarmupLR", {"warmup_num_steps": None}, "warmup_num_steps is None: it must be an integer"),
    ("WarmupLR", {"warmup_type": "cosine"}, "warmup_type is 'cosine': it must be one of 'log', 'linear'"),
    ("WarmupLR", {"warmup_min_lr": -1.0}, "warmup_min_lr is -1.0: it must be a number of at least 0"),
    ("WarmupLR", {"warmup_max_lr": [0.1, 0.2]}, "warmup_max_lr is a list of 2 rates: the optimizer has 1 parameter groups"),
    ("WarmupDecayLR", {}, "total_num_steps is missing"),
    ("WarmupDecayLR", {"total_num_steps": 9, "warmup_num_steps": 1.5}, "WarmupDecayLR: warmup_num_steps is 1.5"),
    ("WarmupCosineLR", {"total_num_steps": -1}, "WarmupCosineLR: total_num_steps is -1"),
    ("OneCycle", {"cycle_min_lr": (0.1, 0.1), "cycle_max_lr": (0.2, 0.2, 0.2)}, "cycle_min_lr has 2 rates and cycle_max_lr has 3"),
    ("OneCycle", {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2, "cycle_first_step_size": 0}, "cycle_first_step_size is 0"),
    ("LRRangeTest", {"lr_range_test_step_size": 0}, "LRRangeTest: lr_range_test_step_size is 0"),
])
def test_a_schedule_that_cannot_be_is_refused(kind, params, said):
    with pytest.raises(BadInput, match=re.escape(said)):
        SCHEDULES[kind](torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), **params)


def test_a_schedule_needs_an_optimizer_and_can_be_copied():
    with pytest.raises(BadInput, match="WarmupLR needs a torch optimizer, not a Linear"):
        SCHEDULES["WarmupLR"](nn.Linear(1, 1))
    schedule = SCHEDULES["WarmupLR"](torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1), 0.0, 0.2, 10)
    assert copy.deepcopy(schedule).get_lr() == schedule.get_lr()


def test_deepspeeds_own_give_the_same_where_it_is_installed():
    upstream = pytest.importorskip("deepspeed.runtime.lr_schedules")
    for name, params, rates in BY_HAND:
        ours, theirs = adam(), adam()
        pair = SCHEDULES[name](ours, **params), getattr(upstream, name)(theirs, **params)
        for _ in range(3 * len(rates)):
            assert [(group["lr"], group["betas"]) for group in ours.param_groups] == [
                (group["lr"], group["betas"]) for group in theirs.param_groups], (name, params)
            for schedule in pair:
                schedule.step()


# --- the loop ---

SECTIONS = {  # a config's sections, and what they mean in torch: an optimizer, and the rate of each step
    "Adam, WarmupLR": (
        {"optimizer": section("Adam", lr=0.05, weight_decay=0.1),
         "scheduler": section("WarmupLR", warmup_min_lr=0.01, warmup_max_lr=0.05, warmup_num_steps=4,
                              warmup_type="linear")},
        lambda params: torch.optim.AdamW(params, weight_decay=0.1), [0.01, 0.01, 0.02, 0.03, 0.04]),
    "SGD, WarmupDecayLR": (
        {"optimizer": section("SGD", momentum=0.9, weight_decay=0.01),
         "scheduler": section("WarmupDecayLR", total_num_steps=4, warmup_max_lr=0.2, warmup_num_steps=2)},
        lambda params: torch.optim.SGD(params, momentum=0.9, weight_decay=0.01), [0, 0, 0.2, 0.2, 0.1]),
    "Lion": ({"optimizer": section("Lion", lr=0.01, weight_decay=0.1)},
             lambda params: Lion(params, weight_decay=0.1), [0.01] * 5),
    "Adam, L2": ({"optimizer": section("Adam", lr=0.02, adam_w_mode=False, weight_decay=0.1)},
                 lambda params: torch.optim.Adam(params, weight_decay=0.1), [0.02] * 5),
}


def by_config(stages: tuple[int, ...], sections: dict) -> list[dict]:
    found = []
    for stage in stages:
        engine, optimizer, _, scheduler = initialize(Net(), config={
            "train_batch_size": 2 * dist.get_world_size(), "gradient_clipping": 0,
            "zero_optimization": {"stage": stage}, **sections})
        assert engine.optimizer is optimizer and engine.lr_scheduler is scheduler
        rates = []
        for step in range(5):
            rates.append(optimizer.param_groups[0]["lr"])
            engine.backward(engine(net_rows(step, engine.global_rank)))
            engine.step()
        found.append({"rates": rates, "optimizer_bytes": engine.memory()["optimizer_bytes"],
                      "state": engine.state_dict()})
    return found


@pytest.mark.parametrize("which", SECTIONS)
def test_the_loop_of_a_config_equals_plain_torch(pool, which):
    sections, make, rates = SECTIONS[which]
    model = Net()
    optimizer = make(model.parameters())
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        model(torch.cat([net_rows(step, rank) for rank in range(2)])).backward()
        optimizer.step()
        optimizer.zero_grad()
    kept = {"Adam, WarmupLR": 2, "Adam, L2": 2}.get(which, 1) * 4 * sum(param.numel() for param in model.parameters())
    for of_rank in pool(2).run(by_config, (0, 1, 3), sections):
        for stage, found in zip((0, 1, 3), of_rank, strict=True):
            assert found["rates"] == pytest.approx(rates)
            assert kept <= found["optimizer_bytes"] * (2 if stage else 1) < kept + 500, "with padding and step counters"
            for name, value in model.state_dict().items():
                assert (found["state"][name] - value).abs().max() <= 2e-6 * value.abs().max(), (stage, name)
