"""Checkpoints: bitwise the same training afterwards, at any number of ranks, stage, map and precision; whole or not there."""

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from worlds import Block, Stack, add, add_ranks, adamw, rows, sgd

from zerocourse import load_checkpoint, save_checkpoint, shard, state_dict
from zerocourse.errors import BadInput

EACH = 2  # steps between two checkpoints


class Counting(Block):
    """A block with statistics that the forward changes, and a frozen weight."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.scale = nn.Parameter(torch.full((6,), 0.5), requires_grad=False)

    def forward(self, x):
        if self.training:
            self.calls += 1
        return super().forward(x) * self.scale + x


class Tied(Stack):
    """A first and a last layer of one weight, an unused parameter, and one without elements."""

    block = Counting

    def __init__(self):
        super().__init__()
        self.last.weight = self.first.weight
        self.unused, self.empty = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(0))


def groups(model: nn.Module) -> list[dict]:
    """Two groups, of which one does not decay."""
    params = [param for param in model.parameters() if param.requires_grad]
    return [{"params": [param for param in params if param.dim() > 1]},
            {"params": [param for param in params if param.dim() <= 1], "weight_decay": 0.0}]


OPTIMIZERS = {"adamw": adamw, "momentum": partial(sgd, lr=0.003)}
# (ranks, stage, rank map) one after the other; each continues from the checkpoint of the one before.
TRAVELS = [(2, 3, None), (3, 1, "greedy"), (1, 0, None), (3, 2, None), (2, 0, None), (2, 1, "round_robin"), (3, 3, None)]


def leg(number: int, folder: str, optimizer: str, dtype: torch.dtype | None) -> dict:
    """One leg of the journey: load what the one before saved, train, save."""
    _, stage, rank_map = TRAVELS[number]
    torch.manual_seed(100 + number)
    model = Tied()
    with torch.no_grad():
        for param in model.parameters():
            param.normal_()  # of no use: the checkpoint has other values
    if number == 0:
        model = Tied()
    model, optimizer = shard(model, OPTIMIZERS[optimizer](groups(model)), stage, rank_map, param_dtype=dtype)
    extra = load_checkpoint(model, optimizer, f"{folder}/{number - 1}") if number else None
    losses = []
    for step in range(EACH):
        x = rows(number * EACH + step, 0, model.zero.comm.rank).to(dtype or torch.float32)
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
    save_checkpoint(model, optimizer, f"{folder}/{number}", extra={"leg": number})
    return {"losses": losses, "state": state_dict(model), "extra": extra}


def unbroken(optimizer: str, dtype: torch.dtype | None) -> list[dict]:
    """The unsharded model that goes all the way, on the same ranks' data, without ever being saved."""
    model = Tied()
    params = dict(model.named_parameters())
    masters = {name: nn.Parameter(param.detach().clone(), param.requires_grad) for name, param in params.items()} if dtype else params
    trained = [master for master in masters.values() if master.requires_grad]
    stepping = OPTIMIZERS[optimizer]([{"params": [each for each in trained if each.dim() > 1]},
                                      {"params": [each for each in trained if each.dim() <= 1], "weight_decay": 0.0}])
    model.to(dtype)
    legs = []
    for number, (ranks, _, _) in enumerate(TRAVELS):
        losses = []
        for step in range(EACH):
            of_ranks, grads = [], []
            calls = [block.calls.clone() for block in model.blocks]
            for rank in range(ranks):
                for block, before in zip(model.blocks, calls, strict=True):
                    block.calls.copy_(before)
                model.zero_grad()
                loss = model(rows(number * EACH + step, 0, rank).to(dtype or torch.float32)).float().square().mean()
                loss.backward()
                of_ranks.append(loss.item())
                grads.append({name: None if param.grad is None else param.grad * (1 / ranks) for name, param in params.items()})
            for name, master in masters.items():
                total = (add_ranks if dtype else add)([grad[name] for grad in grads])
                master.grad = None if total is None else total.to(master.dtype)
            stepping.step()
            for name, master in masters.items():
                params[name].data.copy_(master.data)
            for group in stepping.param_groups:
                group["lr"] *= 0.9
            losses.append(of_ranks)
        legs.append({"losses": losses, "state": {name: each.clone() for name, each in model.state_dict().items()}})
    return legs


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_goes_on_bitwise_at_any_number_of_ranks_stage_and_map(pool, tmp_path, optimizer, dtype):
    for number, exact in enumerate(unbroken(optimizer, dtype)):
        for rank, got in enumerate(pool(TRAVELS[number][0]).run(leg, number, str(tmp_path), optimizer, dtype)):
            what = f"leg {number} {TRAVELS[number]}, rank {rank}"
            assert got["extra"] == ({"leg": number - 1} if number else None)
            assert got["losses"] == [of_ranks[rank] for of_ranks in exact["losses"]], what
            for name, value in exact["state"].items():
                assert torch.equal(got["state"][name], value), f"{what}: {name}"
        assert sorted(each.name for each in tmp_path.iterdir()) == [str(each) for each in range(number + 1)], "nothing is left over"
