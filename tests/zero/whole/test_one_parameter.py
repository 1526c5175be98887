"""safe_get_* and safe_set_*: what they return and write is what one process has, at every stage, in half precision, offloaded."""

import pytest
import torch
from torch import nn
from worlds import Net, net_rows

import zerocourse
from zerocourse.engine import initialize
from zerocourse.errors import BadInput
from zerocourse.zero.whole import one_parameter as one
from zerocourse.zero.whole.fp32_weights import fp32_state_dict

STAGES, CLIP, GAS = (0, 1, 2, 3), 0.4, 2
VALUE_OF, GRADIENT_OF, STATE_OF = "blocks.0.0.weight", "last.weight", "first.bias"
HALF = {"bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True, "initial_scale_power": 4}}}


def adamw(params) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-2, eps=1e-3)


def make(stage: int, more: dict, zero: dict):
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": GAS, "gradient_clipping": CLIP,
              "zero_optimization": {"stage": stage} | zero, **more}
    return initialize(Net(), adamw, config=config)[0]


def new_value(shape) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def by_functions(stage: int, more: dict, zero: dict) -> dict:
    engine = make(stage, more, zero)
    params, seen = dict(engine.named_parameters()), {}
    dtype, scale = params[VALUE_OF].dtype, engine.loss_scale()
    for step in range(3):
        if step == 1:
            one.safe_set_full_fp32_param(params[VALUE_OF], new_value(params[VALUE_OF].shape))
            state = one.safe_get_full_optimizer_state(params[STATE_OF], "exp_avg_sq")
            one.safe_set_full_optimizer_state(params[STATE_OF], state * 4, "exp_avg_sq")
        for micro in range(GAS):
            engine.backward(engine(net_rows(step * GAS + micro, engine.global_rank).to(dtype)))
            if step == 2:
                seen[f"gradient {micro}"] = one.safe_get_full_grad(params[GRADIENT_OF]) / scale
            if step == 2 and micro == GAS - 1:
                one.safe_update_full_grad_vectorized([params[GRADIENT_OF]], lambda gradient, param: gradient * 3)
            engine.step()
    for name, param in params.items():
        seen[f"value {name}"] = one.safe_get_full_fp32_param(param)
        for key in ("exp_avg", "exp_avg_sq"):
            seen[f"{key} {name}"] = one.safe_get_full_optimizer_state(param, key)
    local = [(one.safe_get_local_fp32_param(param), one.safe_get_local_optimizer_state(param, "exp_avg")) for param in params.values()]
    seen["elements"] = sum(value.numel() for value, _ in local)
    seen["local norm"] = sum(value.square().sum().item() for value, _ in local)
    seen["local avg"] = sum(0.0 if state is None else state.square().sum().item() for _, state in local)
    exact = fp32_state_dict(engine.module)
    assert all(torch.equal(exact[name], seen[f"value {name}"]) for name in params)
    model = engine.state_dict()
    assert all(torch.equal(model[name], seen[f"value {name}"].to(dtype)) for name in params)
    seen["norm"] = engine.get_global_grad_norm()
    return seen


def by_hand(world_size: int) -> dict:
    model, seen = Net(), {}
    optimizer, params = adamw(model.parameters()), dict(model.named_parameters())
    for step in range(3):
        if step == 1:
            params[VALUE_OF].data.copy_(new_value(params[VALUE_OF].shape))
            optimizer.state[params[STATE_OF]]["exp_avg_sq"] *= 4
        for micro in range(GAS):
            for rank in range(world_size):
                (model(net_rows(step * GAS + micro, rank)) / GAS / world_size).backward()
            if step == 2:
                seen[f"gradient {micro}"] = params[GRADIENT_OF].grad.clone()
        if step == 2:
            params[GRADIENT_OF].grad *= 3
        seen["norm"] = nn.utils.clip_grad_norm_(params.values(), CLIP).item()
        optimizer.step()
        optimizer.zero_grad()
    for name, param in params.items():
        seen[f"value {name}"] = param.detach()
        seen |= {f"{key} {name}": optimizer.state[param][key] for key in ("exp_avg", "exp_avg_sq")}
    return seen


def check(pool, stage: int, more: dict, zero: dict, tolerance: float) -> None:
    expected, found = by_hand(2), pool(2).run(by_functions, stage, more, zero)
    for of_rank in found:
        assert of_rank["norm"] == pytest.approx(expected["norm"], rel=max(1e-5, 2 * tolerance))
        for name, value in expected.items():
            if name != "norm":
                gap = (of_rank[name].float() - value).abs().max() / value.abs().max()
                assert gap <= tolerance, f"{name} is off by {gap:.1e}"
    copies = 1 if stage else 2
    values, averages = ([value for name, value in found[0].items() if name.startswith(kind)] for kind in ("value ", "exp_avg "))
    assert sum(of_rank["elements"] for of_rank in found) == copies * sum(value.numel() for value in values)
    for kind, tensors in (("local norm", values), ("local avg", averages)):
        assert sum(of_rank[kind] for of_rank in found) == pytest.approx(copies * sum(each.square().sum().item() for each in tensors))


@pytest.mark.parametrize("stage", STAGES)
def test_as_on_one_process(pool, stage):
    check(pool, stage, {}, {}, 1e-5)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("stage", STAGES)
def test_as_on_one_process_in_half_precision(pool, stage, dtype):
    check(pool, stage, HALF[dtype], {}, 0.05)


@pytest.mark.parametrize("stage, tier", [(1, "cpu"), (2, "nvme"), (3, "cpu"), (3, "nvme"), (2, "ratio"), (3, "param cpu"), (3, "param nvme")])
def test_as_on_one_process_with_offload(pool, tmp_path, stage, tier):
    place = {"device": tier.split()[-1], "nvme_path": str(tmp_path)} if tier != "ratio" else {"device": "cpu", "ratio": 0.4}
    check(pool, stage, {}, {"offload_optimizer": place} | ({"offload_param": place} if "param" in tier else {}), 1e-5)


def local_writes(stage: int) -> tuple[dict, dict]:
    engine = make(stage, {}, {})
    for micro in range(GAS):
        engine.backward(engine(net_rows(micro, engine.global_rank)))
        engine.step()
    param = dict(engine.named_parameters())[VALUE_OF]
    if stage == 3:
        one.safe_set_local_fp32_param(param, one.safe_get_local_fp32_param(param) * 2)
    else:
        with pytest.raises(BadInput, match="safe_set_full_fp32_param"):
            one.safe_set_local_fp32_param(param, one.safe_get_local_fp32_param(param) * 2)
    state = one.safe_get_local_optimizer_state(param, "exp_avg")
    one.safe_set_local_optimizer_state(param, state + 1, "exp_avg")
    for micro in range(GAS):
        engine.backward(engine(net_rows(micro, engine.global_rank)))
        if micro < GAS - 1:
            engine.step()
    before = one.safe_get_full_grad(param)
    one.safe_set_local_grad(param, one.safe_get_local_grad(param) * 5)
    return (one.safe_get_full_fp32_param(param), one.safe_get_full_optimizer_state(param, "exp_avg"), before,
            one.safe_get_full_grad(param), engine.state_dict()[VALUE_OF])


@pytest.mark.parametrize("stage", (1, 2, 3))
def test_each_rank_writes_its_part(pool, stage):
    model = Net()
    optimizer, param = adamw(model.parameters()), dict(model.named_parameters())[VALUE_OF]
    for micro in range(GAS):
        for rank in range(2):
            (model(net_rows(micro, rank)) / GAS / 2).backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    for value, average, before, gradient, shown in pool(2).run(local_writes, stage):
        expected = param.detach() * (2 if stage == 3 else 1)
        torch.testing.assert_close(value, expected)
        assert torch.equal(shown, value)
        torch.testing.assert_close(average, optimizer.state[param]["exp_avg"] + 1)
        torch.testing.assert_close(gradient, before * 5)


def what_is_not_there() -> list[str]:
    engine = make(2, {}, {})
    param, said = dict(engine.named_parameters())[VALUE_OF], []
    assert one.safe_get_full_grad(param) is None and one.safe_get_local_grad(param) is None
    assert one.safe_get_full_optimizer_state(param, "exp_avg") is None and one.safe_get_local_optimizer_state(param, "exp_avg") is None
    assert one.safe_get_full_fp32_param(nn.Parameter(torch.ones(2))) is None
    for mistake in (lambda: one.safe_set_full_grad(param, torch.zeros(7, 7)),
                    lambda: one.safe_set_full_fp32_param(param, torch.zeros(3)),
                    lambda: one.safe_set_full_fp32_param(nn.Parameter(torch.ones(2)), torch.ones(2))):
        with pytest.raises(BadInput) as caught:
            mistake()
        said.append(str(caught.value))
    for micro in range(GAS):
        engine.backward(engine(net_rows(micro, engine.global_rank)))
        engine.step()
    with pytest.raises(BadInput) as caught:
        one.safe_get_full_optimizer_state(param, "momentum")
    return [*said, str(caught.value)]


def test_what_is_not_there_says_so(pool):
    for said in pool(2).run(what_is_not_there):
        for sentence, words in zip(said, ("no gradient of 'blocks.0.0.weight'", "(3,): it must be a tensor (7, 7)", "no fp32 value of this",
                                          "no state 'momentum'"), strict=True):
            assert words in sentence and "\n" not in sentence


def frozen_and_tied() -> bool:
    """A frozen parameter has a value and no gradient; the master weights of a model go by all of their names."""
    model = Net()
    model.first.weight.requires_grad_(False)
    model.again = model.last
    engine = initialize(model, adamw, config={"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
                                              "zero_optimization": {"stage": 3}})[0]
    engine.backward(engine(net_rows(0, engine.global_rank).bfloat16()))
    assert one.safe_get_full_grad(model.first.weight) is None
    assert torch.equal(one.safe_get_full_fp32_param(model.first.weight), Net().first.weight)
    engine.step()
    state = zerocourse.fp32_state_dict(engine.module)
    assert state["again.weight"] is state["last.weight"] and state["last.weight"].dtype is torch.float32
    assert not torch.equal(state["last.weight"], state["last.weight"].bfloat16().float())
    alone = zerocourse.fp32_state_dict(engine.module, rank_0_only=True)
    return (alone == {}) == (engine.global_rank != 0)


def test_frozen_and_tied_parameters(pool):
    assert pool(2).run(frozen_and_tied) == [True, True]
