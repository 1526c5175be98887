"""The tour: its numbers agree, its verdict goes red when they should not, and its command says so."""

import gc
import json
import math
import re
from dataclasses import replace

import pytest
import torch

from zerocourse import shard
from zerocourse.cli import main
from zerocourse.course.tour.tour import MODES, TourSettings, run_modes
from zerocourse.course.tour.tour_checks import PEAK_TOLERANCE, checks, furthest_apart, rank_checks
from zerocourse.formulas.peak import gpt2_peak_bytes
from zerocourse.formulas.states import FP32
from zerocourse.init.deferred import deferred_init
from zerocourse.measure.ledger import Ledger
from zerocourse.models.gpt2 import CONFIGS, GPT, GPTConfig

SETTINGS = TourSettings(replace(CONFIGS["gpt2-mini"], block_size=16), steps=3, micro_batch=2)


@pytest.fixture(scope="module")
def modes(pool):
    """Every mode, measured on two ranks and one."""
    alone = pool(1).run(run_modes, MODES[:1], SETTINGS, None)
    ranks = pool(2).run(run_modes, MODES[1:], SETTINGS, None)
    return {mode: [found[mode] for found in (alone if mode == "single" else ranks)] for mode in MODES}


def test_every_number_agrees_with_its_formula(modes):
    found = [check for check in checks(SETTINGS, modes) if check.what != "peak"]  # too small a model for its estimate
    assert not [check for check in found if not check.ok]
    assert {check.what for check in found} >= {"parameters_bytes", "gradients_bytes", "optimizer_bytes", "sent", "losses",
                                               "losses, bit by bit", "buffers", "the rest", "padding"}


@pytest.mark.parametrize("key, change", [("parameters_bytes", 4), ("gradients_bytes", -4), ("optimizer_bytes", 4),
                                         ("sent_elements", 1), ("buffers_bytes", 1), ("rest_bytes", 1 << 20)])
def test_one_wrong_number_turns_the_verdict_red(modes, key, change):
    wrong = {mode: [dict(got) for got in ranks] for mode, ranks in modes.items()}
    wrong["zero2"][1][key] += change
    red = [check for check in checks(SETTINGS, wrong) if not check.ok and check.what != "peak"]
    assert red and {check.mode for check in red} == {"zero2"}


def test_a_wrong_loss_turns_the_verdict_red(modes):
    wrong = {mode: [dict(got) for got in ranks] for mode, ranks in modes.items()}
    wrong["zero3"][0]["losses"] = [loss * 1.0001 for loss in wrong["zero3"][0]["losses"]]
    assert {check.what for check in checks(SETTINGS, wrong) if not check.ok and check.what != "peak"} == {"losses", "losses, bit by bit"}


@pytest.mark.parametrize("step", range(SETTINGS.steps))
@pytest.mark.parametrize("mode", MODES)
def test_a_loss_that_is_nan_turns_the_verdict_red(modes, mode, step):
    """Also where a later step is fine, where every mode has it, and in the one process that all are compared with."""
    wrong = {mode: [dict(got) for got in ranks] for mode, ranks in modes.items()}
    for name in MODES if mode == "ddp" else [mode]:
        for got in wrong[name]:
            got["losses"] = [math.nan if number == step else loss for number, loss in enumerate(got["losses"])]
    red = {check.mode for check in checks(SETTINGS, wrong) if not check.ok and check.what == "losses"}
    assert red == set(MODES[1:] if mode in ("single", "ddp") else [mode])
    bits = {check.mode for check in checks(SETTINGS, wrong) if not check.ok and check.what == "losses, bit by bit"}
    assert bits == set(MODES[1:] if mode == "ddp" else [mode] if mode != "single" else [])


@pytest.mark.parametrize("here, there, apart", [
    ([1.0, 2.0], [1.0, 2.0], 0.0), ([1.0, 3.0], [1.0, 2.0], 0.5), ([1.0, math.nan, 2.0], [1.0, 2.0, 2.0], math.inf),
    ([1.0], [math.nan], math.inf), ([math.inf], [math.inf], math.inf), ([math.nan], [math.nan], math.inf),
    ([0.0], [0.0], 0.0), ([1.0], [0.0], math.inf), ([1.0, math.inf], [1.0, 2.0], math.inf)])
def test_how_far_losses_are_apart(here, there, apart):
    assert furthest_apart(here, there) == apart


def accumulating_peak(stage: int, config: GPTConfig) -> int:
    """Of the second step, which has two micro-batches of one sample."""
    with deferred_init():
        model = GPT(config)
    model, optimizer = shard(model, torch.optim.AdamW(model.parameters(), fused=True), stage)
    tokens_BT = torch.zeros(1, config.block_size, dtype=torch.int64)
    for _number in range(2):
        with Ledger(model, optimizer) as ledger:
            with model.zero.no_sync():
                model(tokens_BT, tokens_BT).backward()
            model(tokens_BT, tokens_BT).backward()
            optimizer.step()
            optimizer.zero_grad()
    return ledger.peak


@pytest.mark.parametrize("stage", range(4))
def test_the_recorded_peak_of_an_accumulating_step_is_the_formulas(pool, stage):
    """For the step without accumulation the tour's own verdict says so."""
    config = replace(CONFIGS["gpt2-laptop"], block_size=16)
    for recorded in pool(2).run(accumulating_peak, stage, config):
        want = gpt2_peak_bytes(config, stage, 2, 1, 16, FP32, accumulated=True)
        assert abs(recorded / want - 1) <= PEAK_TOLERANCE / 2, (recorded, want)


def plant_buffer(model, optimizer):
    model.register_buffer("planted", torch.zeros(1 << 18))


def plant_loose_tensor(model, optimizer):
    model.planted = [torch.zeros(1 << 18)]


def plant_kept_gather(model, optimizer):
    stage, unit = model.zero, model.zero.units[1]
    own = stage.reshard_unit
    stage.reshard_unit = lambda other, *rest: None if other is unit else own(other, *rest)


def plant_kept_gradient(model, optimizer):
    """A stage that hands the optimizer copies of its gradients, and keeps what they were copied from."""
    flat = model.zero.units[1].flats[0]
    own = flat.publish_gradients

    def publish_gradients():
        own()
        for part in flat.shard_params.values():
            part.grad = part.grad.clone()

    flat.publish_gradients = publish_gradients


@pytest.mark.parametrize("plant, what", [(plant_buffer, "buffers"), (plant_loose_tensor, "the rest"),
                                         (plant_kept_gather, "parameters_bytes"), (plant_kept_gradient, "gradients_bytes")])
def test_a_planted_fault_turns_the_verdict_red(pool, plant, what):
    found = pool(2).run(run_modes, ("zero3",), SETTINGS, plant)
    gc.collect()
    for rank, measured in enumerate(found):
        red = {check.what for check in rank_checks(SETTINGS, "zero3", rank, measured["zero3"]) if not check.ok}
        assert what in red


def test_the_command_writes_its_table_pictures_and_summary(tmp_path, capsys):
    argv = ["tour", "--model", "gpt2-laptop", "--tokens", "16", "--micro-batch", "1", "--steps", "3", "--trace",
            "--film", str(tmp_path / "sent" / "step.html")]
    status = main([*argv, "--out", str(tmp_path / "tour"), "--json"])
    printed = capsys.readouterr().out
    summary = json.loads((tmp_path / "tour" / "summary.json").read_text())
    assert json.loads(printed) == summary
    assert status == 0 and summary["ok"] is True
    assert list(summary["modes"]) == list(MODES)
    for mode, counts in summary["modes"].items():
        for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "total_bytes", "peak_bytes", "sent_bytes"):
            assert len(counts[name]) == (1 if mode == "single" else 2)
            assert all(isinstance(nbytes, int) for nbytes in counts[name])
        assert len(counts["losses"]) == 3
    traces = [f"trace_{mode}.json" for mode in MODES[1:]]
    written = sorted(path.name for path in (tmp_path / "tour").iterdir())
    assert written == sorted(["summary.json", "table.txt", "timeline.png", "tour.png", *traces])
    page = (tmp_path / "sent" / "step.html").read_text()
    inside = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page, re.S)[1])
    code = inside["code"].splitlines()
    assert len(inside["frames"]) == len(inside["lines"]) > 50 and "http" not in re.sub("http://www.w3.org", "", page)
    assert {code[line].strip() for line in inside["lines"]} >= {"all_gather(self.full, self.shard)", "self.reduce_gradient()"}
    assert all(json.loads((tmp_path / "tour" / name).read_text())["traceEvents"] for name in traces)
