"""The engine goes on where it was: save_checkpoint, load_checkpoint, and the other names that DeepSpeed's scripts use."""

import argparse
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn
from worlds import Block, Stack

import zerocourse as deepspeed
from zerocourse.engine import Engine
from zerocourse.errors import BadInput

DATA = [torch.randn(6, generator=torch.Generator().manual_seed(number)) for number in range(26)]


class Noisy(Stack):
    """Draws from three generators in each forward."""

    class block(Block):
        def forward(self, x):
            noise = random.random() + numpy.random.rand()
            return nn.functional.dropout(super().forward(x), 0.3, self.training) + 0.1 * noise


def engine_of(stage: int, model: type = Noisy, seed: int = 0, accumulation: int = 2, bf16: bool = False, micro: int = 2):
    torch.manual_seed(seed)
    numpy.random.seed(seed + dist.get_rank())
    random.seed(seed + dist.get_rank())
    config = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": accumulation,
              "zero_optimization": {"stage": stage}, "bf16": {"enabled": bf16}, "gradient_clipping": 0.0}
    made = model()
    if seed:
        with torch.no_grad():
            made.first.weight.zero_()
    optimizer = torch.optim.AdamW(made.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=40)
    return deepspeed.initialize(model=made, optimizer=optimizer, training_data=DATA, lr_scheduler=schedule, config=config)


def updates(engine: Engine, loader) -> Iterator[list[float]]:
    """The losses of one update after the other, from wherever the loader is; epochs go over without a word."""
    losses, dtype = [], torch.bfloat16 if engine.bfloat16_enabled() else torch.float32
    while True:
        for x in loader:
            loss = engine(x.to(dtype)).float().square().mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
            if engine.was_step_applied():
                yield losses
                losses = []


def unbroken_and_resumed(folder: str, stage: int, bf16: bool) -> tuple:
    """Eleven updates, of which the last six once more, from what a save in the middle of an epoch has left."""
    engine, _, loader, _ = engine_of(stage, bf16=bf16)
    running = updates(engine, loader)
    list(islice(running, 5))
    assert engine.save_checkpoint(folder, client_state={"best": 0.5}, asynchronous=stage == 2)
    went_on = list(islice(running, 6)), engine.get_lr(), engine.global_steps, engine.micro_steps
    engine.wait_for_checkpoint()

    engine, _, loader, _ = engine_of(stage ^ 1, seed=7, bf16=bf16)  # which adds up micro-batches and ranks in the same order
    path, client = engine.load_checkpoint(folder)
    assert path == f"{folder}/global_step5" and client == {"best": 0.5} and engine.global_steps == 5
    return went_on, (list(islice(updates(engine, loader), 6)), engine.get_lr(), engine.global_steps, engine.micro_steps)


@pytest.mark.parametrize("stage, bf16", [(3, False), (2, True), (1, True)])
def test_a_resumed_run_is_the_unbroken_one_bitwise(pool, tmp_path, stage, bf16):
    """Dropout, a scheduler, the middle of an epoch and of Adam's averages: another stage, which rounds alike, makes no difference."""
    for went_on, resumed in pool(2).run(unbroken_and_resumed, str(tmp_path), stage, bf16):
        assert went_on == resumed
    assert (tmp_path / "latest").read_text() == "global_step5"


def seen_from(folder: str, load: bool) -> list:
    """At any number of ranks with as large a global batch: samples in the order of the steps, and the counters."""
    world_size, seen = dist.get_world_size(), []
    engine, _, loader, _ = engine_of(1, Stack, accumulation=1, micro=6 // world_size)
    if load:
        engine.load_checkpoint(folder)
    loss_of_step = []
    for x in loader:
        seen.append(sorted(next(i for i, each in enumerate(DATA) if torch.equal(each, row)) for row in x))
        loss = engine(x).square().mean()
        loss_of_step.append(loss.item())
        engine.backward(loss)
        engine.step()
        if not load and engine.global_steps == 2:
            break
    if not load:
        engine.save_checkpoint(folder, "two")
    return [engine.global_steps, seen, engine.get_lr(), loss_of_step]


def test_an_epoch_goes_on_at_another_number_of_ranks(pool, tmp_path):
    first = pool(2).run(seen_from, str(tmp_path), False)
    rest = {ranks: pool(ranks).run(seen_from, str(tmp_path), True) for ranks in (1, 2, 3)}
    for ranks, results in rest.items():
        batches = [sorted(sum(of_ranks, [])) for of_ranks in zip(*(seen for _, seen, _, _ in results))]
        assert batches == [sorted(sum(of_ranks, [])) for of_ranks in zip(*(seen for _, seen, _, _ in rest[2]))]
        assert not set(sum(batches, [])) & set(sum(sum((seen for _, seen, _, _ in first), []), []))
        assert all(result[0] == 4 and result[2] == rest[2][0][2] for result in results)
        losses = [sum(of_ranks) / ranks for of_ranks in zip(*(result[3] for result in results))]
        assert losses == pytest.approx([sum(of_ranks) / 2 for of_ranks in zip(*(result[3] for result in rest[2]))], rel=1e-5)


def conventions(folder: str) -> None:
    engine, _, loader, _ = engine_of(2, Stack)
    with pytest.warns(UserWarning, match="there is no file .*latest"):
        assert engine.load_checkpoint(folder) == (None, None)
    for x in loader:
        engine.backward(engine(x).square().mean())
        engine.step()
        if engine.was_step_applied():
            break
    for nothing in ("", None):
        with pytest.raises(BadInput, match="for a folder: name the one"):
            engine.save_checkpoint(nothing)
    engine.save_checkpoint(folder, tag="best", save_latest=False)
    assert not Path(folder, "latest").exists()
    engine.save_checkpoint(folder, tag=7)
    with pytest.raises(BadInput, match="the tag of a checkpoint is '0' and '1': .*the same on every rank"):
        engine.save_checkpoint(folder, tag=str(dist.get_rank()))
    with pytest.raises(BadInput, match="must be one folder's name"):
        engine.save_checkpoint(folder, tag="a/b")
    with pytest.raises(BadInput, match="none is not a checkpoint: .*beside it: 7, best|best, 7"):
        engine.load_checkpoint(folder, "none")
    assert engine.load_checkpoint(folder)[0] == f"{folder}/7"

    engine.backward(engine(torch.ones(2, 6)).square().mean())
    engine.step()
    counted = engine.micro_steps
    with pytest.warns(UserWarning, match="within a window: the gradients of its 1 micro-batches so far"):
        engine.save_checkpoint(folder, tag="mid", save_latest=False)
    engine.load_checkpoint(folder, "mid")
    assert engine.micro_steps == counted - 1, "the window begins anew"
    engine.backward(engine(torch.ones(2, 6)).square().mean())
    engine.step()
    path, client = engine.load_checkpoint(folder, "best")  # in mid-window, which begins anew
    assert path == f"{folder}/best" and client == {} and not engine.is_gradient_accumulation_boundary()
    before = engine.get_lr()
    engine.lr_scheduler.step()
    engine.load_checkpoint(folder, "best", load_module_only=True)
    assert engine.get_lr() != before
    engine.load_checkpoint(folder, "best", load_lr_scheduler_states=False)
    assert engine.lr_scheduler.last_epoch == 2


def test_deepspeeds_conventions(pool, tmp_path):
    pool(2).run(conventions, str(tmp_path))


# -- the other names -------------------------------------------------------------------------------------------------

def script(folder: str, stage: int) -> dict:
    """What people write, with only the import changed."""
    deepspeed.init_distributed(dist_backend="nccl")
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    args = parser.parse_args(["--deepspeed", "--deepspeed_config", f"{folder}/ds_config.json"])
    with deepspeed.zero.Init(config_dict_or_path=args.deepspeed_config, enabled=stage == 3):
        model = Stack()
    assert next(model.parameters()).is_meta == (stage == 3)
    engine, _optimizer, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters(),
                                                   optimizer=lambda params: torch.optim.SGD(params, 0.1, momentum=0.9))
    x = torch.ones(2, 6)
    for _ in range(2):
        loss = engine.forward(x).square().mean()
        engine.backward(loss)
        engine.step()
    with deepspeed.zero.GatheredParameters(engine.module.first.weight, modifier_rank=0):
        if engine.global_rank == 0:
            engine.module.first.weight.data.fill_(0.25)
    with deepspeed.zero.GatheredParameters([engine.module.first.weight]):
        assert (engine.module.first.weight == 0.25).all()
    assert [name for name, _ in engine.named_parameters()] == [name for name, _ in Stack().named_parameters()]
    assert len(list(engine.parameters())) == 16 and engine.get_lr() == [0.1] and engine.get_mom() == [0.9]
    assert engine.zero_optimization_stage() == stage and engine.global_samples == 2 * engine.train_batch_size()
    assert engine.training and not engine.eval().module.training, "the model's own attributes are the engine's"
    engine.backward(engine(x).square().mean())
    engine.zero_grad()
    engine.backward(engine(x).square().mean())
    engine.step()
    assert engine.save_16bit_model(folder, "weights.bin")
    state = torch.load(f"{folder}/weights.bin", weights_only=True)
    for name, value in engine.state_dict().items():
        assert torch.equal(state[name], value.bfloat16())
    engine.load_state_dict({name: torch.zeros_like(value) for name, value in engine.state_dict().items()})
    assert not any(value.any() for value in engine.state_dict().values())
    engine.destroy()
    return engine.global_steps


@pytest.mark.parametrize("stage", [0, 3])
def test_a_script_with_only_the_import_changed(pool, tmp_path, stage):
    (tmp_path / "ds_config.json").write_text(f'{{"train_batch_size": 4, "zero_optimization": {{"stage": {stage}}}}}')
    assert pool(2).run(script, str(tmp_path), stage) == [3, 3]


def test_what_we_do_not_have_is_named():
    with pytest.raises(AttributeError, match="zerocourse has no 'init_inference', which DeepSpeed has: the engine trains, and a server generates"):
        deepspeed.init_inference
    with pytest.raises(AttributeError, match="module 'zerocourse' has no attribute 'nonsense'"):
        deepspeed.nonsense
    with pytest.raises(BadInput, match="Linear that is built already"), deepspeed.zero.Init(nn.Linear(2, 2)):
        pass
    with pytest.raises(BadInput, match="modifier_rank is 1: it must be 0"), deepspeed.zero.GatheredParameters([], modifier_rank=1):
        pass
    with deepspeed.zero.GatheredParameters(nn.Linear(2, 2).weight):  # before it is sharded, as an initialiser does
        pass


def engine_lacks() -> None:
    engine, *_ = engine_of(1, Stack)
    with pytest.raises(AttributeError, match="the engine has no 'train_batch', which DeepSpeed has: only the engine of a PipelineModule has it"):
        engine.train_batch(None)
    with pytest.raises(AttributeError, match="neither the engine nor its Stack has 'nonsense'"):
        engine.nonsense
    with pytest.raises(BadInput, match="initialize got mpu="):
        deepspeed.initialize(model=Stack(), config={"train_batch_size": 2}, mpu=object())


def test_what_the_engine_does_not_have_is_named(pool):
    pool(2).run(engine_lacks)
