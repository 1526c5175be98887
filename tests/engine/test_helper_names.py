"""DeepSpeed's names beside the loop: leaf modules, zero_to_fp32, the accelerator, a loader without end, checkpointing, OnDevice."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from worlds import Net, net_rows

import zerocourse
from zerocourse.engine import initialize
from zerocourse.engine.bridge import recompute
from zerocourse.engine.bridge.torch_accelerator import ACCELERATOR, OnDevice
from zerocourse.engine.leaf_modules import units_with_leaves
from zerocourse.errors import BadInput
from zerocourse.offload.tiling import TiledLinear

THEIRS = Path(__file__).parent / "checkpoint" / "deepspeed_checkpoints"


class Experts(nn.Module):
    """Of two experts each rank uses the one that its rows ask for, and adds nothing of the other."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(5, 5) for _ in range(2))

    def forward(self, x):
        chosen = (x.sum(1) > 0).long()
        return sum(expert(x) * (chosen == number).unsqueeze(1) for number, expert in enumerate(self.experts))


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.blocks = nn.ModuleList(nn.Linear(5, 5) for _ in range(2))
        self.mixture = Experts()

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.mixture(x).square().mean()


def train_leaf(flagged: bool) -> tuple[list[str], dict]:
    model = Mixture()
    if flagged:
        assert zerocourse.set_z3_leaf_modules(model, ["Experts"]) == [model.mixture]
    engine = initialize(model, lambda params: torch.optim.SGD(params, lr=0.1), config={
        "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0, "zero_optimization": {"stage": 3}})[0]
    for step in range(2):
        engine.backward(engine(net_rows(step, engine.global_rank)))
        engine.step()
    return [unit.name for unit in engine.zero.units[1:]], engine.state_dict()


def test_a_leaf_is_a_unit_of_its_own(pool):
    names, state = pool(2).run(train_leaf, True)[0]
    usual, exact = pool(2).run(train_leaf, False)[0]
    assert usual == ["blocks.0", "blocks.1", "mixture.experts.0", "mixture.experts.1"]
    assert names == ["blocks.0", "blocks.1", "mixture"]
    for name, value in exact.items():
        torch.testing.assert_close(state[name], value)


def test_the_functions_of_leaves():
    model = Mixture()
    assert units_with_leaves(model) is None and zerocourse.get_z3_leaf_modules(model) == []
    found, missing = zerocourse.set_z3_leaf_modules_by_name(model, ["mixture", "none"], raise_if_not_found=False)
    assert found == [model.mixture] and missing == ["none"] and zerocourse.z3_leaf_module(model.mixture)
    assert zerocourse.z3_leaf_parameter(model.mixture.experts[0].weight) and not zerocourse.z3_leaf_parameter(model.blocks[0].weight)
    assert zerocourse.unset_z3_leaf_modules(model, [Experts]) == [model.mixture] and units_with_leaves(model) is None
    assert zerocourse.set_z3_leaf_modules_by_suffix(model, [".0"])[0] == [model.blocks[0], model.mixture.experts[0]]
    for mistake, words in ((lambda: zerocourse.set_z3_leaf_modules(model, [nn.Conv2d]), "no module of the classes Conv2d"),
                           (lambda: zerocourse.set_z3_leaf_modules(model, [3]), "it must hold classes"),
                           (lambda: zerocourse.set_z3_leaf_modules_by_name(model, ["x"]), "no module 'x'")):
        with pytest.raises(BadInput, match=words):
            mistake()
    zerocourse.set_z3_leaf_modules(model, [nn.ModuleList])
    with pytest.raises(BadInput, match="'blocks' is a ModuleList, which is never called"):
        units_with_leaves(model)


def save_bf16(folder: str) -> dict:
    """A checkpoint of a model in bf16 with a tied layer, and its fp32 weights."""
    model = Net()
    model.again = model.last
    engine = initialize(model, torch.optim.AdamW, config={"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
                                                          "zero_optimization": {"stage": 3}})[0]
    engine.backward(engine(net_rows(0, engine.global_rank).bfloat16()))
    engine.step()
    engine.save_checkpoint(folder)
    return zerocourse.fp32_state_dict(engine.module)


def test_zero_to_fp32_of_ours(pool, tmp_path):
    exact = pool(2).run(save_bf16, str(tmp_path))[0]
    state = zerocourse.get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    assert state.keys() == exact.keys() and all(torch.equal(state[name], exact[name]) for name in exact)
    assert state["again.weight"] is state["last.weight"]
    model = Net()
    model.again = model.last
    assert zerocourse.load_state_dict_from_zero_checkpoint(model, tmp_path, "global_step1") is model
    assert all(torch.equal(value, exact[name]) for name, value in model.state_dict().items())
    zerocourse.convert_zero_checkpoint_to_fp32_state_dict(tmp_path, tmp_path / "bin")
    assert torch.load(tmp_path / "bin" / "pytorch_model.bin").keys() == exact.keys()
    zerocourse.convert_zero_checkpoint_to_fp32_state_dict(tmp_path / "global_step1", tmp_path / "safe", safe_serialization=True)
    for name, value in load_file(tmp_path / "safe" / "model.safetensors").items():
        assert torch.equal(value, exact[name])
    with pytest.raises(BadInput, match="is not a checkpoint"):
        zerocourse.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "bin")
    with pytest.raises(BadInput, match="exclude_frozen_parameters"):
        zerocourse.get_fp32_state_dict_from_zero_checkpoint(tmp_path, exclude_frozen_parameters=True)


@pytest.mark.parametrize("name", ["stage1_fp32", "stage2_bf16", "stage3_fp32"])
def test_zero_to_fp32_of_deepspeeds(name):
    """As DeepSpeed's own function has made them."""
    state = zerocourse.get_fp32_state_dict_from_zero_checkpoint(THEIRS / name, "step3")
    expected = torch.load(THEIRS / name / "fp32.pt")
    assert state.keys() == expected.keys() and all(torch.equal(state[key], value) for key, value in expected.items())


def test_a_loader_without_end():
    loader = zerocourse.RepeatingLoader(torch.utils.data.DataLoader(range(5), batch_size=2))
    assert [next(loader).tolist() for _ in range(7)] == [[0, 1], [2, 3], [4], [0, 1], [2, 3], [4], [0, 1]]
    assert len(loader) == 3 and loader.batch_size == 2 and iter(loader) is loader


def test_the_accelerator_answers():
    here = ACCELERATOR
    assert (here.device_name(), here.current_device(), here.current_device_name(), here.device_count()) == ("cpu", 0, "cpu", 1)
    assert here.communication_backend_name() == "gloo" and here.is_available() and here.is_bf16_supported()
    for call in (lambda: here.set_device(0), here.synchronize, here.empty_cache, here.reset_peak_memory_stats, here.range_pop,
                 lambda: here.range_push("x"), lambda: here.Stream().synchronize(), lambda: here.Event().record()):
        assert call() is None
    with here.stream(here.Stream()), here.device(0):
        assert here.on_accelerator(torch.ones(1)) and not here.is_pinned(here.pin_memory(torch.ones(1)))
    here.manual_seed(3)
    state = here.get_rng_state()
    drawn = torch.rand(2)
    here.set_rng_state(state)
    assert torch.equal(drawn, torch.rand(2)) and here.initial_seed() == 3
    assert 0 < here.memory_allocated() <= here.max_memory_allocated() < here.total_memory() and here.available_memory() > 0
    with pytest.raises(AttributeError, match="has no 'nvlink' on the CPU"):
        here.nvlink


def test_modules_on_a_device():
    with OnDevice(dtype=torch.bfloat16, device="meta"):
        model = Net()
    assert all(param.is_meta and param.dtype is torch.bfloat16 for param in model.parameters())
    with OnDevice(dtype=torch.float64, device="cpu"):
        assert Net().last.weight.dtype is torch.float64
    with OnDevice(dtype=torch.float64, enabled=False):
        assert Net().last.weight.dtype is torch.float32


def test_checkpointing_by_deepspeeds_names():
    recompute.configure(None, num_checkpoints=2, partition_activations=False)
    assert recompute.is_configured()
    model, x, calls = Net(), net_rows(0, 0), []
    model.first.register_forward_hook(lambda *_: calls.append(1))
    recompute.checkpoint(model, x).backward()
    grads = [param.grad for param in model.parameters()]
    plain = Net()
    plain(x).backward()
    assert len(calls) == 2 and all(torch.equal(grad, param.grad) for grad, param in zip(grads, plain.parameters(), strict=True))
    with pytest.raises(BadInput, match="partition_activations=True"):
        recompute.configure(partition_activations=True)


def test_the_cache_of_partitions(pool):
    def held() -> list[int]:
        engine = initialize(Net(), torch.optim.AdamW, config={"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}})[0]
        for unit in engine.zero.units:
            engine.zero.unshard_unit(unit)
        before = engine.memory()["parameters_bytes"]
        engine.empty_partition_cache()
        return [before, engine.memory()["parameters_bytes"]]

    assert all(after < before for before, after in pool(2).run(held))


def test_tiled_linear_has_deepspeeds_arguments():
    assert TiledLinear(4, 6, bias=True, in_splits=2, out_splits=3)(torch.ones(1, 4)).shape == (1, 6)
