"""Keys of a config that change what an engine does beside the training itself, each seen to do it."""

import csv
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from worlds import Net, net_rows

import zerocourse
from zerocourse.errors import BadInput


def sgd(params) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)


def engine_of(optimizer=sgd, model: type = Net, stage: int = 2, zero: dict | None = None, data=None, **keys):
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.0, "zero_optimization": {"stage": stage} | (zero or {})} | keys
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return zerocourse.initialize(model(), optimizer, training_data=data, config=config)


def train(engine, steps: int) -> dict[str, torch.Tensor]:
    for step in range(steps):
        engine.backward(engine(net_rows(step, engine.global_rank)))
        engine.step()
    return engine.state_dict()


# -- how gradients are summed -----------------------------------------------------------------------------------------

def summed(stage: int) -> list[dict]:
    return [train(engine_of(stage=stage, gradient_allreduce_op=op, optimizer=lambda params, lr=lr: torch.optim.SGD(params, lr=lr))[0], 2)
            for op, lr in (("sum", 0.1), ("mean", 0.2))]


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_sum_of_gradients_is_their_mean_times_the_ranks(pool, stage):
    for by_sum, by_mean in pool(2).run(summed, stage):
        assert all(torch.equal(value, by_mean[name]) for name, value in by_sum.items())


# -- the last batch of an epoch ---------------------------------------------------------------------------------------

def seen_in_an_epoch() -> list[list[int]]:
    return [[int(number) for batch in engine_of(data=torch.arange(7), **keys)[2] for number in batch]
            for keys in ({}, {"dataloader_drop_last": True}, {"dataloader_drop_last": False})]


def test_a_loader_leaves_the_last_samples_out_or_fills_them_up(pool):
    default, dropped, filled = ([number for rank in ranks for number in rank] for ranks in zip(*pool(2).run(seen_in_an_epoch), strict=True))
    assert len(set(default)) == len(default) == 4 and default == dropped
    assert len(filled) == 8 and set(filled) == set(range(7))


# -- tags -------------------------------------------------------------------------------------------------------------

def different_tags(folder: str, validation: str) -> tuple[list[str], list[str]]:
    engine, *_ = engine_of(checkpoint={"tag_validation": validation})
    train(engine, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine.save_checkpoint(folder, tag=f"of_{engine.global_rank}")
    return sorted(path.name for path in Path(folder).iterdir() if path.is_dir()), [str(each.message) for each in caught]


def test_rank_0s_tag_counts_where_the_config_allows_it(pool, tmp_path):
    for validation, said in (("Ignore", []), ("warn", ["the ranks gave save_checkpoint different tags, and rank 0's counts: 'of_0', 'of_1'"])):
        folder = tmp_path / validation
        assert pool(2).run(different_tags, str(folder), validation) == [(["of_0"], said)] * 2


def different_folders(folder: str) -> tuple[list[str], list[str]]:
    engine, *_ = engine_of()
    train(engine, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine.save_checkpoint(f"{folder}/{engine.global_rank}", tag="one")
    said = [str(each.message) for each in caught]
    assert engine.load_checkpoint(f"{folder}/0")[0].endswith("one")
    return sorted(path.name for path in Path(folder).glob("*/*") if path.is_dir()), said


def test_rank_0s_folder_counts_where_each_rank_made_its_own(pool, tmp_path):
    said = f"the ranks gave save_checkpoint different folders, and all write into rank 0's, {tmp_path}/0"
    assert pool(2).run(different_folders, str(tmp_path)) == [(["one"], [said])] * 2


# -- monitors ---------------------------------------------------------------------------------------------------------

def monitored(folder: str) -> list[float]:
    """The losses of a training with two micro-batches a step."""
    engine, *_ = engine_of(gradient_accumulation_steps=2, fp16={"enabled": True, "auto_cast": True, "initial_scale_power": 4},
                           csv_monitor={"enabled": True, "output_path": folder, "job_name": "mine"})
    losses = []
    for number in range(4):
        losses.append(float(engine.backward(engine(net_rows(number, engine.global_rank)))))
        engine.step()
    return losses


def test_csv_files_have_a_line_for_each_step(pool, tmp_path):
    losses = pool(2).run(monitored, str(tmp_path))[0]
    tables = {path.stem: list(csv.reader(path.open())) for path in (tmp_path / "mine").iterdir()}
    assert tables.keys() == {f"Train_Samples_{name}" for name in ("train_loss", "lr", "loss_scale")}
    assert tables["Train_Samples_lr"] == [["step", "lr"], ["8", "0.1"], ["16", "0.1"]]
    assert tables["Train_Samples_loss_scale"] == [["step", "loss_scale"], ["8", "16.0"], ["16", "16.0"]]
    found = [float(value) for _, value in tables["Train_Samples_train_loss"][1:]]
    assert found == pytest.approx([sum(losses[:2]), sum(losses[2:])])


def test_a_monitor_that_cannot_write_or_is_not_installed_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    config = {"train_batch_size": 1, "csv_monitor": {"enabled": True, "output_path": str(tmp_path / "file")}}
    with pytest.raises(BadInput, match="csv_monitor cannot write into .*file.*set csv_monitor.output_path to another folder"):
        zerocourse.initialize(nn.Linear(2, 2), config=config)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.warns(UserWarning, match="tensorboard is enabled in the config and not installed"):
        zerocourse.initialize(nn.Linear(2, 2), config={"train_batch_size": 1, "tensorboard": {"enabled": True, "output_path": str(tmp_path)}})


# -- leaf modules -----------------------------------------------------------------------------------------------------

class Experts(nn.Module):
    """Two layers, each with two experts: a unit is a layer, unless leaves are named."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(5, 5) for _ in range(2))

        def forward(self, x):
            return sum(expert(x) for expert in self.experts)

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(self.Layer() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def leaves() -> list[list[str]]:
    found = []
    for leaf in ({}, {"classes": ["torch.nn.modules.linear.Linear"]}, {"names": ["layers.1.experts.0"]}, {"name_suffixes": "0.experts.1"}):
        engine, *_ = engine_of(model=Experts, stage=3, zero={"leaf_module": leaf})
        found.append(sorted(unit.name for unit in engine.zero.units))
    with pytest.warns(UserWarning, match="leaf_module: Experts has no module 'nowhere'"):
        zerocourse.initialize(Experts(), sgd, config={"train_micro_batch_size_per_gpu": 1, "zero_optimization": {
            "stage": 3, "leaf_module": {"names": ["nowhere"]}}})
    return found


def test_the_config_names_leaf_modules(pool):
    usual = ["layers.0", "layers.1", "root"]
    assert pool(2).run(leaves) == [[usual, sorted(["root", *(f"layers.{layer}.experts.{expert}" for layer in range(2) for expert in range(2))]),
                                    sorted([*usual, "layers.1.experts.0"]), sorted([*usual, "layers.0.experts.1"])]] * 2


# -- inference with parameters that lie elsewhere (ZeRO-Inference) --------------------------------------------------------

def infers(device: str, folder: str, half: bool) -> tuple[bool, dict]:
    offload = {"device": device} | ({"nvme_path": folder} if device == "nvme" else {})
    engine, optimizer, *_ = engine_of(None, stage=3, zero={"offload_param": offload}, bf16={"enabled": half})
    assert optimizer is None
    whole, dtype = Net(), torch.bfloat16 if half else torch.float32
    rows = net_rows(0, dist.get_rank()).to(dtype)
    with torch.no_grad():
        equal = all(torch.equal(engine.eval()(rows), whole.to(dtype).eval()(rows)) for _ in range(2))
    return equal, engine.memory()


@pytest.mark.parametrize("device, half", [("cpu", False), ("cpu", True), ("nvme", True)])
def test_parameters_are_offloaded_without_an_optimizer(pool, tmp_path, device, half):
    for equal, memory in pool(2).run(infers, device, str(tmp_path), half):
        assert equal and memory["parameters_bytes"] == 0 and memory["host_bytes" if device == "cpu" else "disk_bytes"] > 0
