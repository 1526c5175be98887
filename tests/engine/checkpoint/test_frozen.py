"""Checkpoints and whole weights without frozen parameters, as of a base model under LoRA, and loading what is not all there."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from worlds import Block, Stack

from zerocourse import initialize, save_checkpoint, state_dict
from zerocourse.cli import main
from zerocourse.engine.checkpoint.folders.checkpoint_index import read_index
from zerocourse.errors import BadInput


class Adapted(Block):
    """A frozen block beside a trained one of rank 2, as LoRA makes it."""

    def __init__(self):
        super().__init__()
        self.requires_grad_(False)
        self.adapter = nn.Sequential(nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False))

    def forward(self, x):
        return super().forward(x) + self.adapter(x)


class Base(Stack):
    """Three adapted blocks between two frozen layers of one weight."""

    block = Adapted

    def __init__(self):
        super().__init__()
        self.first.requires_grad_(False)
        self.last.requires_grad_(False)
        self.last.weight = self.first.weight


def engine_of(stage: int, precision: dict, model: nn.Module):
    params = [param for param in model.parameters() if param.requires_grad]
    return initialize(model=model, model_parameters=params, config={
        "train_batch_size": 2 * torch.distributed.get_world_size(), "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1}}, **precision})[0]


def train(engine, steps: int) -> list[float]:
    losses = []
    for step in range(steps):
        x = torch.randn(2, 6, generator=torch.Generator().manual_seed(step + engine.global_steps), dtype=torch.float32)
        loss = engine(x.to(next(engine.module.parameters()).dtype)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def saved_and_resumed(folder: str, stage: int, precision: dict) -> None:
    engine = engine_of(stage, precision, Base())
    train(engine, 2)
    engine.save_checkpoint(folder, "whole")
    engine.save_checkpoint(folder, "adapters", exclude_frozen_parameters=True)
    said, frozen = read_index(Path(folder, "adapters")), {name for name, param in engine.named_parameters() if not param.requires_grad}
    assert len(said["about"]["parameters"]) == 6 and set(said["about"]["excluded"]) == frozen and said["about"]["aliases"] == {}
    assert not {f"model/{name}" for name in frozen} & said["tensors"].keys()
    state, other = state_dict(engine.module), engine_of(stage, precision, Base())
    adapters = state_dict(engine.module, exclude_frozen=True)
    assert adapters.keys() == {name for name in state if "adapter" in name}
    assert all(value.equal(state[name]) for name, value in adapters.items())
    with pytest.raises(BadInput, match="saved without frozen parameters, such as .first.weight.: load it with strict=False"):
        other.load_checkpoint(folder, "adapters")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what was left out on purpose is no surprise
        other.load_checkpoint(folder, "adapters", load_module_strict=False)
    assert all(value.equal(state[name]) for name, value in state_dict(other.module).items()), "base and adapters"
    assert other.global_steps == 2 and train(other, 3) == train(engine, 3)
    model = Stack()  # without adapters: the other names are the same
    model.last.weight = model.first.weight
    plain = engine_of(stage, precision, model)
    with pytest.warns(UserWarning, match="has what the model has not: 'blocks.0.adapter.0.weight'.* and 3 more; the rest was loaded"):
        plain.load_checkpoint(folder, "whole", load_module_strict=False, load_module_only=True)
    assert all(value.equal(state[name]) for name, value in state_dict(plain.module).items())
    with pytest.raises(BadInput, match="has what the model has not"):
        plain.load_checkpoint(folder, "whole", load_module_only=True)


@pytest.mark.parametrize("stage, precision", [(1, {}), (2, {"bf16": {"enabled": True}}), (3, {}), (3, {"bf16": {"enabled": True}})])
def test_a_checkpoint_without_frozen_parameters_is_resumed_over_their_values(pool, tmp_path, stage, precision):
    pool(2).run(saved_and_resumed, str(tmp_path), stage, precision)
    assert main(["checkpoint", "convert", str(tmp_path / "adapters"), str(tmp_path / "converted")]) == 0


def gathers(stage: int) -> list[int]:
    """Bytes of all-gathers for the whole state, and for that without frozen parameters, of a model of which half is frozen."""
    model = Stack()
    model.blocks[0].requires_grad_(False)
    model.blocks[1].requires_grad_(False)
    engine = engine_of(stage, {}, model)
    sent = []
    for exclude in (False, True):
        before = engine.communication()["sent_bytes"]
        state_dict(engine.module, exclude_frozen=exclude)
        sent.append(engine.communication()["sent_bytes"] - before)
    return sent


def test_a_frozen_unit_does_not_travel(pool):
    for everything, trained in pool(2).run(gathers, 3):
        assert 0 < trained < everything


def into_another_folder(folder: str) -> None:
    """As on a disk that not all ranks see. The engine's own save takes rank 0's folder; the function takes what it is given."""
    engine = engine_of(3, {}, Base())
    with pytest.raises(RuntimeError, match="adapters.partial, which rank 0 has made, is not there for this rank"):
        save_checkpoint(engine.module, engine.optimizer, Path(folder, str(engine.global_rank), "adapters"))


def test_ranks_that_save_into_different_folders_are_told(pool, tmp_path):
    pool(2).run(into_another_folder, str(tmp_path))
