"""Checkpoints: bitwise the same training afterwards, at any number of ranks, stage, map and precision; whole or not there."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from worlds import Block, Stack, adamw, add, add_ranks, rows, sgd

from zerocourse import initialize, load_checkpoint, save_checkpoint, shard, state_dict
from zerocourse.cli import main
from zerocourse.engine.checkpoint.content import Content
from zerocourse.engine.checkpoint.deepspeed_checkpoint import STUBS, DeepSpeedCheckpoint
from zerocourse.engine.checkpoint.folders import checkpoint_folder as folders
from zerocourse.engine.checkpoint.folders.checkpoint_folder import to_read
from zerocourse.engine.checkpoint.folders.checkpoint_index import damage, read_index
from zerocourse.engine.checkpoint.saving import CheckpointError
from zerocourse.engine.checkpoint.source import Source
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
        for name, entry in read_index(tmp_path / str(number))["tensors"].items():
            written = sum(math.prod(chunk["sizes"]) for chunk in entry["chunks"])
            assert written == math.prod(entry["size"]), f"leg {number}: {name}: each element is written by one rank"


# -- in the background -----------------------------------------------------------------------------------------------

def prepared(stage: int = 3, make=adamw) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A Stack that has been trained for one step."""
    model = Stack()
    model, optimizer = shard(model, make(model.parameters()), stage)
    train_on(model, optimizer, 0)
    return model, optimizer


def train_on(model, optimizer, step: int) -> float:
    loss = model(rows(step, 0, model.zero.comm.rank)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def in_the_background(folder: str) -> tuple[dict, dict]:
    """Save, train on while it is written, and wait; then two saves one after the other, without a word between."""
    model, optimizer = prepared()
    before = state_dict(model)
    trained, write = threading.Event(), Content.write
    with mock.patch.object(Content, "write", lambda content, where: trained.wait(20) and write(content, where)):
        saving = save_checkpoint(model, optimizer, f"{folder}/a", asynchronous=True)
        for step in range(1, 4):
            train_on(model, optimizer, step)
        trained.set()  # nothing is written before
        assert saving.wait() == Path(folder, "a")
    save_checkpoint(model, optimizer, f"{folder}/b", asynchronous=True)
    save_checkpoint(model, optimizer, f"{folder}/b", asynchronous=True)
    load_checkpoint(model, optimizer, f"{folder}/a")
    return before, state_dict(model)


def test_a_save_in_the_background_has_what_was_there_when_it_began(pool, tmp_path):
    for before, after in pool(2).run(in_the_background, str(tmp_path)):
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "b"]


def one_rank_cannot_write(folder: str, asynchronous: bool) -> str:
    model, optimizer = prepared()
    for name in "ab":
        save_checkpoint(model, optimizer, f"{folder}/{name}", extra="good")

    def full(content, where):
        Path(where, f"__{content.rank}_0.distcp").write_text("half")
        try:
            raise OSError(28, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 704")  # as torch puts it when it closes its file

    with mock.patch.object(Content, "write", full) if dist.get_rank() == 1 else nullcontext(), pytest.raises(CheckpointError) as caught:
        save_checkpoint(model, optimizer, f"{folder}/a", asynchronous=asynchronous).wait()
    assert sorted(os.listdir(folder)) == ["a", "b"], "nothing of it is left"
    train_on(model, optimizer, 1)
    assert load_checkpoint(model, optimizer, f"{folder}/a") == "good"
    save_checkpoint(model, optimizer, f"{folder}/a", extra="better")
    assert load_checkpoint(model, optimizer, f"{folder}/a") == "better"
    return str(caught.value)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_when_one_rank_cannot_write_all_hear_it_and_the_last_checkpoint_stays(pool, tmp_path, asynchronous):
    for said in pool(2).run(one_rank_cannot_write, str(tmp_path), asynchronous):
        assert said.startswith(f"the checkpoint {tmp_path}/a was not saved: rank 1: there is no space left in {tmp_path}: of the "
                               "checkpoint this rank writes 2.23 kB, and ")
        assert said.endswith(" are free; remove what is not needed there, such as the older b, or save to another disk")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "b"]


# -- killed ----------------------------------------------------------------------------------------------------------

KILLS = int(os.environ.get("ZEROCOURSE_TEST_KILLS", 5))
SAVES_UNTIL_KILLED = """
import os, sys, torch
from zerocourse import save_checkpoint, shard
model = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))
model, optimizer = shard(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), 1)
for flat in model.zero.flats:
    for part in flat.shard_params.values():
        optimizer.state[part]["momentum_buffer"] = torch.zeros_like(part)
path = sys.argv[1]
for line in sys.stdin:  # each is a number to begin with
    child = os.fork()
    number = int(line)
    while child == 0:
        number += 1
        for flat in model.zero.flats:
            flat.full.fill_(number)
            for state in optimizer.state.values():
                state["momentum_buffer"].fill_(number)
        save_checkpoint(model, optimizer, path, extra=number, asynchronous=number % 2 == 1).wait()
        os.write(1, b"%d\\n" % number)
    os.write(1, b"child %d\\n" % child)
    os.waitpid(child, 0)
    os.write(1, b"over\\n")
"""


def test_a_save_that_is_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    path, number, moments = tmp_path / "c", 0, random.Random(KILLS)
    child = subprocess.Popen([sys.executable, "-c", SAVES_UNTIL_KILLED, str(path)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    model = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
    model, optimizer = shard(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), 3)
    leftovers = set()
    for kill in range(KILLS):
        print(number, file=child.stdin, flush=True)
        pid, done, seconds = None, number, moments.uniform(0, 0.1)
        while True:
            line = child.stdout.readline().split()
            assert line, "the child ended"
            if line[0] == "child":
                pid = int(line[1])
            elif line[0] == "over":
                break
            else:
                done = int(line[0])
            if pid is not None and done > number and seconds is not None:  # one save is whole, so there is a last good one
                time.sleep(seconds)
                os.kill(pid, signal.SIGKILL)
                seconds = None
        leftovers |= {each.name for each in tmp_path.iterdir()}
        number = load_checkpoint(model, optimizer, path)
        assert number in (done, done + 1), f"kill {kill}: the last save that ended was {done}, and {number} is there"
        assert not list(damage(to_read(path), read_index(to_read(path))))
        for value in state_dict(model).values():
            assert (value == number).all()
        for state in optimizer.state.values():
            assert (state["momentum_buffer"] == number).all()
    child.stdin.close()
    child.wait()
    assert leftovers <= {"c", "c.partial", "c.replaced", "c.lock"}
    save_checkpoint(model, optimizer, path)
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("moment", ["sync", "rename first", "rename second", "remove"])
def test_killed_between_any_two_steps_of_the_renaming(tmp_path, moment):
    """The windows that a random moment rarely hits."""
    model, optimizer = prepared(1)
    path, names = tmp_path / "c", {"sync": (folders, "sync"), "remove": (folders.shutil, "rmtree")}
    save_checkpoint(model, optimizer, path, extra="old")
    real, calls = Path.rename, []

    def rename(here, there):
        calls.extend([here] * here.is_dir())
        if here.is_dir() and len(calls) == 1 + moment.endswith("second"):
            raise KeyboardInterrupt
        return real(here, there)

    def killed(*_, **__):
        raise KeyboardInterrupt

    with (mock.patch.object(Path, "rename", rename) if "rename" in moment else mock.patch.object(*names[moment], killed),
          pytest.raises(KeyboardInterrupt)):
        if moment == "sync":
            with mock.patch.object(folders, "write_whole", lambda file, text: file.write_text(text)):
                save_checkpoint(model, optimizer, path, extra="new")
        else:
            save_checkpoint(model, optimizer, path, extra="new")
    assert load_checkpoint(model, optimizer, path) == ("old" if moment in ("sync", "rename first") else "new")
    save_checkpoint(model, optimizer, path, extra="newer")
    assert load_checkpoint(model, optimizer, path) == "newer"
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


# -- refused ---------------------------------------------------------------------------------------------------------

class Other(Stack):
    def __init__(self):
        super().__init__()
        self.added, self.blocks[0].up = nn.Linear(2, 2), nn.Linear(6, 8)


def torn(path: Path) -> None:
    shutil.move(path, path.with_name("c.partial"))
    (path.with_name("c.partial") / "index.json").unlink()


def shortened(path: Path) -> None:
    with (path / "__0_0.distcp").open("r+b") as file:
        file.truncate(1000)


class Unsafe:
    pass


@pytest.mark.parametrize("spoil, words", [
    (torn, ["c is not a checkpoint", "c.partial is what a save that never ended has left", "beside it: good"]),
    (shutil.rmtree, ["c is not a checkpoint", "no such folder"]),
    (lambda path: (path / "index.json").unlink(), ["c is not a checkpoint", "it has no index.json"]),
    (lambda path: (path / "index.json").write_text("{"), ["index.json is damaged"]),
    (shortened, ["c is damaged", "__0_0.distcp has 1,000 bytes"]),
    (lambda path: (path / "__0_0.distcp").unlink(), ["c is damaged", "__0_0.distcp is missing"]),
])
def test_what_is_no_whole_checkpoint_is_named(tmp_path, spoil, words):
    model, optimizer = prepared(1)
    for name in ("good", "c"):
        save_checkpoint(model, optimizer, tmp_path / name)
    spoil(tmp_path / "c")
    before = state_dict(model)
    with pytest.raises(BadInput) as caught:
        load_checkpoint(model, optimizer, tmp_path / "c")
    assert all(word in str(caught.value) for word in words), caught.value
    assert all(torch.equal(value, before[name]) for name, value in state_dict(model).items()), "nothing has changed"


@pytest.mark.parametrize("make, words", [
    (lambda: shard(Other(), None, 1), ["of another model", "lacks 'added.weight', 'added.bias'"]),
    (lambda: shard(nn.Linear(6, 6), None, 1), ["lacks 'weight', 'bias'"]),
    (lambda: prepared(1, sgd), ["the states of AdamW", "the optimizer is SGD"]),
    (lambda: prepared(1, lambda params: adamw([{"params": [each]} for each in params])), ["1 parameter groups, and this one 16"]),
    (lambda: prepared(1, lambda params: adamw(list(params)[1:])), ["'first.weight' is in parameter group 0", "in no parameter group"]),
])
def test_another_model_or_optimizer_is_refused_by_name(tmp_path, make, words):
    save_checkpoint(*prepared(3), tmp_path / "c")
    with pytest.raises(BadInput) as caught:
        load_checkpoint(*make(), tmp_path / "c")
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_model_with_other_shapes_is_refused(tmp_path):
    save_checkpoint(*prepared(3), tmp_path / "c")
    model = Stack()
    model.blocks[1].up = nn.Linear(6, 8)
    with pytest.raises(BadInput, match=r"'blocks.1.up.weight' is \(7, 6\) there, and \(8, 6\) in the model"):
        load_checkpoint(*shard(model, None, 1), tmp_path / "c")


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path):
    model, optimizer = prepared(2)
    with pytest.raises(BadInput, match=r"extra\['args'\] is of type .*Unsafe"):
        save_checkpoint(model, optimizer, tmp_path / "c", extra={"step": 1, "args": Unsafe()})
    with pytest.raises(BadInput, match="Linear is not sharded"):
        save_checkpoint(nn.Linear(2, 2), None, tmp_path / "c")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(CheckpointError, match="mine is there and is not a checkpoint"):
        save_checkpoint(model, optimizer, tmp_path / "mine")
    model(rows(1, 0, 0)).square().mean().backward()
    with pytest.raises(BadInput, match="gradients that no step has used"):
        save_checkpoint(model, optimizer, tmp_path / "c")
    optimizer.step()  # the gradients are still there, and have been used
    save_checkpoint(model, optimizer, tmp_path / "c")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["c", "mine"]


def test_states_that_the_checkpoint_has_not_are_gone(tmp_path):
    model = Stack()
    model, optimizer = shard(model, adamw(model.parameters()), 1)
    save_checkpoint(model, optimizer, tmp_path / "c")
    losses = []
    for _ in range(2):
        losses.append([train_on(model, optimizer, step) for step in range(2)])
        load_checkpoint(model, optimizer, tmp_path / "c")
        assert not optimizer.state
    assert losses[0] == losses[1]


def test_the_model_alone_and_torchs_own_tools(tmp_path):
    """A checkpoint is one of DCP: torch makes one file of it. And weights are loaded without an optimizer."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    model, optimizer = prepared(3)
    save_checkpoint(model, optimizer, tmp_path / "c")
    dcp_to_torch_save(tmp_path / "c", tmp_path / "one.pt")
    theirs = torch.load(tmp_path / "one.pt", weights_only=False)
    fresh, _ = shard(nn.Sequential(Stack()).get_submodule("0"), None, 2)
    with torch.no_grad():
        for flat in fresh.zero.flats:
            flat.full.zero_()
    load_checkpoint(fresh, None, tmp_path / "c")
    for name, value in state_dict(model).items():
        assert torch.equal(state_dict(fresh)[name], value)
        assert torch.equal(theirs[f"model/{name}"].view_as(value), value)


# -- DeepSpeed's, and the command line -------------------------------------------------------------------------------

THEIRS = Path(__file__).parent / "deepspeed_checkpoints"  # by DeepSpeed 0.19.8 on two ranks: three steps, and the losses of three more


class Net(nn.Module):
    """What they are of."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 3, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(5, 5) for _ in range(2))
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.last(x)


def goes_on(path: str, stage: int, dtype: torch.dtype | None) -> tuple:
    model = Net()
    optimizer = torch.optim.AdamW([{"params": [each for each in model.parameters() if each.dim() > 1]},
                                   {"params": [each for each in model.parameters() if each.dim() <= 1]}])
    model, optimizer = shard(model, optimizer, stage, param_dtype=dtype)
    extra = load_checkpoint(model, optimizer, path)
    rank, losses = dist.get_rank(), []
    for step in range(3, 6):
        x = torch.randn(2, 3, generator=torch.Generator().manual_seed(100 * step + rank))
        loss = model(x.to(dtype or torch.float32)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, extra["client"], extra["engine"]["global_steps"], [group["weight_decay"] for group in optimizer.param_groups]


@pytest.mark.parametrize("stage, precision, ours", [(1, "fp32", 3), (2, "bf16", 1), (3, "fp32", 2)])
def test_what_deepspeed_has_saved_goes_on_here(pool, tmp_path, capsys, stage, precision, ours):
    folder = THEIRS / f"stage{stage}_{precision}"
    assert main(["checkpoint", "convert", str(folder / "step3"), str(tmp_path / "c"), "--to", "zerocourse"]) == 0
    results = pool(2).run(goes_on, str(tmp_path / "c"), ours, torch.bfloat16 if precision == "bf16" else None)
    for rank, (losses, *rest) in enumerate(results):
        assert rest == [{"epoch": 1}, 3, [0.1, 0.0]]
        assert losses == pytest.approx(json.loads((folder / f"losses_{rank}.json").read_text()), rel=1e-2 if precision == "bf16" else 1e-6)
    exact = torch.load(folder / "fp32.pt", weights_only=True)  # as DeepSpeed's own script puts it together
    source = Source(tmp_path / "c")
    assert all(torch.equal(source.tensor(f"model/{name}").view(value.shape), value) for name, value in exact.items() if name != "calls")

    assert main(["checkpoint", "convert", str(folder / "step3"), str(tmp_path / "w"), "--dtype", "float32"]) == 0
    assert [file.name for file in (tmp_path / "w").iterdir()] == ["model.safetensors"]
    weights = load_file(tmp_path / "w" / "model.safetensors")
    assert weights.keys() == exact.keys() and all(torch.equal(weights[name], value) for name, value in exact.items())


def test_an_engine_goes_on_with_deepspeeds_counts_and_loss_scale(tmp_path, monkeypatch):
    scaler = type("DynamicLossScaler", (), {"__module__": "deepspeed.runtime.fp16.loss_scaler"})  # as DeepSpeed pickles its own
    for name in ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.fp16", scaler.__module__):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(DynamicLossScaler=scaler))
    shutil.copytree(THEIRS / "stage1_fp32" / "step3", tmp_path / "theirs")
    model_file, *files = sorted((tmp_path / "theirs").glob("*.pt"))
    model = torch.load(model_file, weights_only=False)
    model |= {"skipped_steps": 1, "lr_scheduler": {"last_batch_iteration": 1}}
    torch.save(model | {"ds_config": model["ds_config"] | {"gradient_accumulation_steps": 4}}, model_file)
    with torch.serialization.safe_globals(STUBS):
        states = [torch.load(file, weights_only=True) for file in files]
    for file, state in zip(files, states, strict=True):
        state["optimizer_state_dict"] |= {"loss_scaler": scaler(), "zero_stage": 1, "param_slice_mappings": []}
        vars(state["optimizer_state_dict"]["loss_scaler"]).update(
            dynamic=True, cur_scale=512.0, cur_hysteresis=1, cur_iter=3, last_overflow_iter=2, scale_factor=2.0)
        torch.save(state, file)
    assert main(["checkpoint", "convert", str(tmp_path / "theirs"), str(tmp_path / "ours"), "--to", "zerocourse"]) == 0
    config = {"train_batch_size": 8, "gradient_accumulation_steps": 4, "fp16": {"enabled": True},
              "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.1, "warmup_num_steps": 4, "warmup_type": "linear"}}}
    net = Net()
    weights = [[each for each in net.parameters() if (each.dim() > 1) == matrix] for matrix in (True, False)]
    optimizer = torch.optim.AdamW([{"params": each} for each in weights])
    engine, *_, schedule = initialize(model=net, optimizer=optimizer, config=config)
    assert engine.load_checkpoint(tmp_path, "ours")[0] == str(tmp_path / "ours")
    assert (engine.global_steps, engine.micro_steps, engine.skipped_steps) == (3, 12, 1)
    assert engine.loss_scaler.state_dict() == {"loss_scale": 512.0, "hysteresis_left": 1, "steps": 3, "last_overflow": 2}
    assert optimizer.cur_scale == 512.0 and schedule.last_batch_iteration == 1


class Boom:
    def __reduce__(self):
        return os.mkdir, ("boom",)


def test_deepspeeds_files_run_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(THEIRS / "stage1_fp32" / "step3", tmp_path / "c")
    file = tmp_path / "c" / "mp_rank_00_model_states.pt"
    torch.save(torch.load(file, weights_only=True) | {"args": Boom()}, file)
    with pytest.raises(BadInput, match="mp_rank_00_model_states.pt cannot be read without running its code"):
        DeepSpeedCheckpoint(tmp_path / "c")
    assert not Path("boom").exists()
    model, optimizer = prepared(1)
    with pytest.raises(BadInput, match="it is one of DeepSpeed's, of which `zerocourse checkpoint convert"):
        load_checkpoint(model, optimizer, tmp_path / "c")
    file.unlink()
    with pytest.raises(BadInput, match=r"no file \*_model_states.pt"):
        DeepSpeedCheckpoint(tmp_path / "c")


@pytest.mark.parametrize("file, content, words", [
    ("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", {}, "optim_states.pt has no 'optimizer_state_dict'"),
    ("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", [1], "optim_states.pt has no 'optimizer_state_dict'"),
    ("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", {"optimizer_state_dict": {}}, "not as DeepSpeed's ZeRO has it: KeyError"),
    ("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", {"optimizer_state_dict": 3}, "not as DeepSpeed's ZeRO has it: TypeError"),
    ("mp_rank_00_model_states.pt", {}, "mp_rank_00_model_states.pt has no 'module'"),
    ("mp_rank_00_model_states.pt", [1], "mp_rank_00_model_states.pt has no 'module'"),
    ("mp_rank_00_model_states.pt", {"module": 1, "buffer_names": 2, "dp_world_size": "x", "global_steps": None}, "and was written by x")])
def test_files_that_are_not_as_deepspeed_writes_them_are_one_sentence(tmp_path, capsys, file, content, words):
    shutil.copytree(THEIRS / "stage2_bf16" / "step3", tmp_path / "c")
    torch.save(content, tmp_path / "c" / file)
    for to in ("zerocourse", "safetensors"):
        assert main(["checkpoint", "convert", str(tmp_path / "c"), str(tmp_path / "out"), "--to", to]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1
    assert [each.name for each in tmp_path.iterdir()] == ["c"]


def test_the_command_line(tmp_path, capsys):
    model, optimizer = prepared(3)
    for name in ("a", "b"):
        save_checkpoint(model, optimizer, tmp_path / name)
    folders.set_latest(tmp_path, "b")
    (tmp_path / "x.partial").mkdir()

    def said(*words: str) -> dict:
        status = main(["checkpoint", *words, "--json"])
        return {"status": status} | json.loads(capsys.readouterr().out or "{}")

    listed = said("ls", str(tmp_path))
    assert list(listed["checkpoints"]) == ["a", "b"] and listed["latest"] == "b" and listed["torn"] == ["x.partial"]
    assert listed["checkpoints"]["a"]["params"] == sum(param.numel() for param in model.parameters())
    assert main(["checkpoint", "ls", str(tmp_path)]) == 0 and "b " in (text := capsys.readouterr().out) and "the latest" in text
    assert said("verify", str(tmp_path / "a")) == {"status": 0, "problems": []}
    file = tmp_path / "a" / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert said("verify", str(tmp_path / "a")) == {"status": 1, "problems": ["__0_0.distcp has another checksum than what was written"]}

    assert said("convert", str(tmp_path / "b"), str(tmp_path / "w"), "--shard-size", "1KB")["status"] == 0
    files = sorted((tmp_path / "w").glob("*.safetensors"))
    weights = {name: value for each in files for name, value in load_file(each).items()}
    assert len(files) > 1 and all(torch.equal(weights[name], value) for name, value in state_dict(model).items())
    assert json.loads((tmp_path / "w" / "model.safetensors.index.json").read_text())["weight_map"].keys() == weights.keys()
    for words, sentence in ((["ls", "nowhere"], "PATH is nowhere, which is not a folder"),
                            (["convert", str(tmp_path / "b")], "convert needs OUT"),
                            (["ls", str(tmp_path), "--dtype", "float16"], "--dtype would change nothing with ls"),
                            (["ls", str(tmp_path), "out"], "OUT would change nothing with ls"),
                            (["verify", str(tmp_path)], "is not a checkpoint: it is a folder of checkpoints, the last of which is"),
                            (["convert", str(tmp_path / "b"), str(tmp_path / "o"), "--to", "zerocourse"], "not one of DeepSpeed's")):
        assert main(["checkpoint", *words]) == 2
        assert sentence in capsys.readouterr().err
