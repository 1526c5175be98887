"""Traps of ZeRO that lie between the engine and what it keeps: other ranks at loading, half a window, freed parameters."""

import pytest
import torch
from worlds import Stack, rows

from zerocourse import zero
from zerocourse.engine import Engine, initialize
from zerocourse.errors import BadInput
from zerocourse.memory.storage import FreeableStorage

BATCH = 6  # samples of an update, whatever the number of ranks


def engine_of(stage: int, accumulation: int = 1, bf16: bool = False, model: type = Stack) -> Engine:
    config = {"train_batch_size": BATCH, "gradient_accumulation_steps": accumulation, "zero_optimization": {"stage": stage},
              "bf16": {"enabled": bf16}, "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}}}
    return initialize(model=model(), config=config)[0]


def update(engine: Engine, number: int, micros: range | None = None) -> None:
    """The micro-batches `micros` (None: all) of an update; samples (BATCH, 6) are dealt out to micro-batches and ranks."""
    count = engine.gradient_accumulation_steps()
    parts = rows(number, 0, 0, size=BATCH).tensor_split(count * engine.world_size)
    for micro in range(count) if micros is None else micros:
        x = parts[micro * engine.world_size + engine.global_rank].to(next(engine.module.parameters()).dtype)
        engine.backward(engine(x).float().square().mean())
        engine.step()


def step_counts(engine: Engine) -> set[float]:
    return {state["step"].item() for state in engine.optimizer.state.values()}


def same(got: dict, want: dict, what: str, **tolerance) -> None:
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, **tolerance, msg=lambda said: f"{what}: {name}: {said}")


# -- 24: save at N, load at M ----------------------------------------------------------------------------------------

def saved(folder: str) -> dict:
    """Two updates, a save at stage 3, and what two more updates make of it."""
    engine = engine_of(3)
    for number in range(4):
        if number == 2:
            engine.save_checkpoint(folder)
        update(engine, number)
    return engine.state_dict()


def loaded(folder: str, stages: tuple[int, ...]) -> list[tuple[int, set, set, dict]]:
    """By stage: the steps counted when it is loaded, Adam's before and after two more updates, and the parameters then."""
    found = []
    for stage in stages:
        engine = engine_of(stage)
        engine.load_checkpoint(folder)
        steps, before = engine.global_steps, step_counts(engine)
        update(engine, 2)
        update(engine, 3)
        found.append((steps, before, step_counts(engine), engine.state_dict()))
    return found


def test_trap_24_saved_at_three_ranks_and_loaded_at_fewer(pool, tmp_path):
    unbroken = pool(3).run(saved, str(tmp_path))[0]
    for ranks, stages in ((1, (1, 3)), (2, (0, 2))):
        for stage, (steps, before, after, state) in zip(stages, pool(ranks).run(loaded, str(tmp_path), stages)[0], strict=True):
            assert (steps, before, after) == (2, {2.0}, {4.0}), f"{ranks} ranks, stage {stage}"
            same(state, unbroken, f"{ranks} ranks, stage {stage}", rtol=1e-4, atol=1e-6)


# -- 25: half a window -----------------------------------------------------------------------------------------------

def half_a_window(folder: str) -> list[list[dict]]:
    """By stage: the parameters after an update; the same after a load that gives up half another window, of a checkpoint from
    within that window; and those of an engine that has saved in the middle of the window and goes on."""
    found = []
    for stage in (0, 1, 2, 3):
        states = []
        for way in ("whole", "loaded", "goes on"):
            engine = engine_of(stage, accumulation=3)
            if way == "loaded":
                update(engine, 5, range(2))
                engine.save_checkpoint(folder, tag=way)
                engine.load_checkpoint(folder, tag=way)
            update(engine, 0, range(2))
            if way == "goes on":
                engine.save_checkpoint(folder, tag=way)
            update(engine, 0, range(2, 3))
            assert engine.global_steps == 1 and engine.is_gradient_accumulation_boundary() is False
            states.append(engine.state_dict())
        found.append(states)
    return found


def test_trap_25_a_checkpoint_within_a_window_has_no_gradients_of_it(pool, tmp_path):
    for stage, (exact, *others) in enumerate(pool(2).run(half_a_window, str(tmp_path))[0]):
        for got in others:
            same(got, exact, f"stage {stage}", rtol=0, atol=0)


def saved_under_a_delay(folder: str) -> str:
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 3,
              "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    engine = initialize(Stack(), torch.optim.AdamW, config=config, delay_after=0)[0]
    engine.backward(engine(rows(0, 0, engine.global_rank)).square().mean())
    with pytest.raises(BadInput) as caught:
        engine.save_checkpoint(folder)
    return str(caught.value)


def test_trap_25_under_a_delay_a_save_waits_for_the_update(pool, tmp_path):
    assert all("within a window under a delayed update" in said for said in pool(2).run(saved_under_a_delay, str(tmp_path)))


# -- 27: a tensor kept after its release -----------------------------------------------------------------------------

class Keeping(Stack):
    """Keeps views of its blocks' weights in each forward."""

    def forward(self, x):
        for block in self.blocks:
            block.register_forward_hook(lambda block, args, output: self.kept.append(block.up.weight.detach()[1:]))
        return super().forward(x)


def kept(bf16: bool) -> tuple[list[bool], dict, dict]:
    """Are the views that a forward, or a GatheredParameters, has left all NaN? Parameters with and without them."""
    engine, exact = engine_of(3, bf16=bf16, model=Keeping), engine_of(3, bf16=bf16)
    engine.module.kept = views = []
    for number in range(2):
        update(engine, number)
        update(exact, number)
        with zero.GatheredParameters(list(engine.module.parameters())):
            views.append(engine.module.blocks[0].up.weight.detach().view(-1))
            assert not views[-1].isnan().any()
        freed = [bool(view.isnan().all()) for view in views]
        for view in views:
            view.add_(1)  # into what is freed: harms nobody
    return freed, engine.state_dict(), exact.state_dict()


@pytest.mark.skipif(not FreeableStorage(torch.zeros(4)).readable,
                    reason="before torch 2.11, and outside Linux, to read a view of freed memory ends the process")
@pytest.mark.parametrize("bf16", [False, True])
def test_trap_27_a_tensor_that_is_kept_reads_as_not_there(pool, bf16):
    for freed, state, exact in pool(2).run(kept, bf16):
        assert len(freed) > 6 and all(freed)
        same(state, exact, "after training", rtol=0, atol=0)
