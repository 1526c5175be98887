"""Several backwards before one step, and backwards that the script calls itself: what one process gives, at every stage."""

import gc
from functools import cache, partial

import pytest
import torch
from torch import nn
from worlds import Net, net_rows

from zerocourse.engine import initialize
from zerocourse.errors import BadInput

STAGES = (0, 1, 2, 3)
LOSSES = ((0, 1.0), (100, 0.5))  # of a micro-batch: which rows, and the factor on the loss
STEPS, CLIP, LR = 3, 0.5, 0.2


def sgd(params) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=LR, momentum=0.9)


def make(stage: int, gas: int = 1, optimizer=sgd, **more):
    zero = {"stage": stage} | more.pop("zero", {})
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": gas, "gradient_clipping": CLIP,
              "zero_optimization": zero, **more}
    return initialize(Net(), optimizer, config=config)[0]


def loss(engine, number: int, factor: float = 1.0) -> torch.Tensor:
    dtype = next(engine.parameters()).dtype
    return engine(net_rows(number, engine.global_rank).to(dtype)) * factor


@cache
def by_hand(world_size: int, gas: int, same_rows: bool = False) -> tuple[dict, float]:
    """The unsharded model on the sum of all losses: its state, and the last norm."""
    model = Net()
    optimizer = sgd(model.parameters())
    for step in range(STEPS):
        for micro in range(gas):
            for number, factor in LOSSES:
                for rank in range(world_size):
                    rows = net_rows(step * gas + micro + (0 if same_rows else number), rank)
                    (model(rows) * factor / gas / world_size).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict(), norm.item()


def one_by_one(engine, number: int) -> None:
    for more, factor in LOSSES:
        engine.backward(loss(engine, number + more, factor))


def forwards_first(engine, number: int) -> None:
    for each in [loss(engine, number + more, factor) for more, factor in LOSSES]:
        engine.backward(each)


def by_the_script(engine, number: int) -> None:
    for more, factor in LOSSES:
        engine.scale(loss(engine, number + more, factor)).backward()


def one_of_each(engine, number: int) -> None:
    (first, factor), (second, other) = LOSSES
    engine.backward(loss(engine, number + first, factor))
    engine.scale(loss(engine, number + second, other)).backward()


def local(engine, number: int) -> None:
    with engine.no_sync():
        one_by_one(engine, number)


def through_one_graph(engine, number: int) -> None:
    (_, factor), (_, other) = LOSSES
    once = loss(engine, number)
    engine.backward(once * factor, retain_graph=True)
    engine.backward(once * other)


WAYS = (one_by_one, forwards_first, by_the_script, one_of_each, local, through_one_graph)


def train(stage: int, gas: int, way, **more) -> dict:
    engine = make(stage, gas, **more)
    for number in range(STEPS * gas):
        way(engine, number)
        engine.step()
    return {"state": {name: value.float() for name, value in engine.state_dict().items()},
            "norm": engine.get_global_grad_norm(), "counts": (engine.global_steps, engine.micro_steps)}


def train_all(stage: int, runs: list[tuple]) -> list[dict]:
    return [train(stage, gas, way, **more) for gas, way, more in runs]


def check(pool, world_size: int, stage: int, runs: list[tuple], tolerance: float) -> None:
    of_ranks = pool(world_size).run(train_all, stage, runs)
    for rank, of_rank in enumerate(of_ranks):
        for (gas, way, more), found in zip(runs, of_rank, strict=True):
            state, norm = by_hand(world_size, gas, way is through_one_graph)
            what = f"rank {rank}, {way.__name__}, {gas} micro-batches, {more}"
            largest = max(value.abs().max() for value in state.values())
            for name, value in state.items():
                gap = (found["state"][name] - value).abs().max() / largest
                assert gap <= tolerance, f"{what}: {name} is off by {gap:.1e}"
            assert found["norm"] == pytest.approx(norm, rel=100 * tolerance if tolerance > 1e-5 else 1e-5), what
            assert found["counts"] == (STEPS, STEPS * gas), what


@pytest.mark.parametrize("stage", STAGES)
def test_several_backwards_are_one_on_their_sum(pool, stage):
    check(pool, 2, stage, [(gas, way, {}) for gas in (1, 3) for way in WAYS], 1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_the_same_in_half_precision(pool, stage):
    dtypes = {"bf16": {"enabled": True}}, {"fp16": {"enabled": True, "initial_scale_power": 8}}
    check(pool, 2, stage, [(3, way, dtype) for way in (one_by_one, one_of_each, local) for dtype in dtypes], 4e-3)


@pytest.mark.parametrize("stage", STAGES[1:])
def test_the_same_with_offload(pool, stage, tmp_path):
    tiers = [{"offload_optimizer": {"device": "cpu"}}, {"offload_optimizer": {"device": "cpu", "ratio": 0.3}},
             {"offload_optimizer": {"device": "nvme", "nvme_path": str(tmp_path)}}]
    if stage == 3:
        tiers.append({"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}})
    check(pool, 2, stage, [(gas, way, {"zero": tier}) for tier in tiers for gas, way in ((1, one_by_one), (3, one_of_each))], 1e-6)


def test_the_same_where_nodes_hold_replicas(pool):
    check(pool, 4, 3, [(2, one_by_one, {"zero": {"zero_hpz_partition_size": 2}})], 1e-6)


def bytes_of(stage: int, way) -> list[int]:
    engine, sent = make(stage), []
    for number in range(3):
        before = engine.communication()["sent_bytes"]
        way(engine, number)
        engine.step()
        sent.append(engine.communication()["sent_bytes"] - before)
    return sent


@pytest.mark.parametrize("stage", (0, 1))
def test_from_the_second_window_on_the_sum_is_reduced_once(pool, stage):
    once = pool(2).run(bytes_of, stage, lambda engine, number: engine.backward(loss(engine, number)))[0]
    twice = pool(2).run(bytes_of, stage, one_by_one)[0]
    assert twice[0] > once[0] and twice[1:] == once[1:]


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(4, 5)

    def forward(self, noise):
        return self.layer(noise)


def noise(step: int, rank: int) -> torch.Tensor:
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(7 * step + rank))


def gan(stage: int, half: dict) -> tuple[dict, dict]:
    """The loop of DeepSpeed's example: two losses for the discriminator, and the generator's loss through both models."""
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": CLIP, "zero_optimization": {"stage": stage}, **half}
    critic, generator = (initialize(model, sgd, config=config)[0] for model in (Net(), Generator()))
    dtype = next(critic.parameters()).dtype
    for step in range(STEPS):
        critic.zero_grad()
        critic.backward(critic(net_rows(step, critic.global_rank).to(dtype)))
        fake = generator(noise(step, critic.global_rank).to(dtype))
        critic.backward(critic(fake.detach()) * 0.5)
        critic.step()
        generator.zero_grad()
        generator.backward(critic(fake))
        generator.step()
    return critic.state_dict(), generator.state_dict()


def gan_by_hand(world_size: int) -> tuple[dict, dict]:
    critic, generator = Net(), Generator()
    of_critic, of_generator = sgd(critic.parameters()), sgd(generator.parameters())
    for step in range(STEPS):
        fakes = [generator(noise(step, rank)) for rank in range(world_size)]
        of_critic.zero_grad()
        for rank, fake in enumerate(fakes):
            ((critic(net_rows(step, rank)) + critic(fake.detach()) * 0.5) / world_size).backward()
        nn.utils.clip_grad_norm_(critic.parameters(), CLIP)
        of_critic.step()
        of_generator.zero_grad()
        for fake in fakes:
            (critic(fake) / world_size).backward()
        nn.utils.clip_grad_norm_(generator.parameters(), CLIP)
        of_generator.step()
    return critic.state_dict(), generator.state_dict()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("half, tolerance", [({}, 1e-6), ({"fp16": {"enabled": True, "initial_scale_power": 8}}, 4e-3)])
def test_a_gan(pool, stage, half, tolerance):
    for found in pool(2).run(gan, stage, half):
        for state, expected in zip(found, gan_by_hand(2), strict=True):
            for name, value in expected.items():
                assert (state[name].float() - value).abs().max() <= tolerance, name


def boundaries_by_the_script(stage: int) -> dict:
    """One `step` for a window, as set_gradient_accumulation_boundary allows it; the second window is short."""
    engine, number = make(stage, gas=3), 0
    for window in (3, 2):
        engine.set_gradient_accumulation_boundary(False)
        for micro in range(window):
            if micro == window - 1:
                engine.set_gradient_accumulation_boundary(True)
            engine.backward(loss(engine, number))
            number += 1
        engine.step()
    return {"state": engine.state_dict(), "counts": (engine.global_steps, engine.micro_steps)}


@pytest.mark.parametrize("stage", STAGES)
def test_a_script_that_sets_the_boundary_calls_step_once(pool, stage):
    model = Net()
    optimizer = sgd(model.parameters())
    for window in (range(3), range(3, 5)):
        for number in window:
            (sum(model(net_rows(number, rank)) for rank in range(2)) / 2 / len(window)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
    for found in pool(2).run(boundaries_by_the_script, stage):
        assert found["counts"] == (2, 5)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(found["state"][name], value, rtol=1e-5, atol=1e-6)


def second_backward_fails(stage: int, by_script: bool) -> bool:
    """A window whose second backward raises on both ranks begins anew."""
    def differentiate(each):
        engine.scale(each).backward() if by_script else engine.backward(each)

    engine = make(stage)
    engine.backward(loss(engine, 50))
    rows = net_rows(51, engine.global_rank).requires_grad_()
    rows.register_hook(lambda gradient: 1 / 0)  # which comes after those of the parameters
    broken = engine(rows)
    with pytest.raises(ZeroDivisionError):
        differentiate(broken)
    with pytest.raises(BadInput, match="no new gradients"):
        engine.step()
    twin = make(stage)
    for each in (engine, twin):
        each.backward(loss(each, 0))
        each.step()
    return all(torch.equal(one, other) for one, other in zip(engine.state_dict().values(), twin.state_dict().values(), strict=True))


@pytest.mark.parametrize("by_script", (False, True))
@pytest.mark.parametrize("stage", (1, 3))
def test_after_a_failed_second_backward_the_window_begins_anew(pool, stage, by_script):
    assert pool(2).run(second_backward_fails, stage, by_script) == [True, True]


@pytest.fixture
def fp16():
    return partial(make, 2, fp16={"enabled": True, "initial_scale_power": 8})


def test_fp16_needs_the_scale(fp16):
    engine = fp16()
    loss(engine, 0).backward()
    with pytest.raises(BadInput, match=r"engine.scale\(loss\).backward\(\)"):
        engine.step()
    engine.scale(loss(engine, 0)).backward()  # and the window has begun anew
    engine.step()
    assert engine.global_steps == 1


def test_a_loss_is_scaled_once(fp16):
    engine = fp16()
    with pytest.raises(BadInput, match="has the loss scale already"):
        engine.backward(engine.scale(loss(engine, 0)))


def test_scale_wants_a_loss():
    engine = make(2)
    with pytest.raises(BadInput, match="engine.scale needs the loss"):
        engine.scale(0.5)
    once = loss(engine, 0)
    assert engine.scale(once) is once


def test_autograd_grad_is_no_backward_of_the_window():
    """A gradient penalty's inner derivative brings the parameters nothing."""
    engine = make(2)
    rows = net_rows(0, 0).requires_grad_()
    torch.autograd.grad(engine(rows), rows)
    with pytest.raises(BadInput, match="no new gradients"):
        engine.step()


def outlived() -> list[torch.Tensor]:
    """Two backwards through a model whose engine is gone, the second with the gradients of both ranks added up."""
    model = torch.nn.Linear(3, 1, bias=False)
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 1}}
    module = initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), config=config)[0].module
    gc.collect()
    module(torch.ones(1, 3)).sum().backward()
    return module.zero.grad_norm()


def test_a_model_may_outlive_its_engine(pool):
    assert [each.item() for each in pool(2).run(outlived)] == pytest.approx([3**0.5] * 2)
