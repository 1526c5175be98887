"""Pictures of chapter 13 draw what was measured: tensors that a block keeps, bytes through a step, an arena."""

import re
from dataclasses import replace

import pytest
import torch

from zerocourse.activations import replay
from zerocourse.course.chapters.activations import activation_trial as trial
from zerocourse.course.chapters.activations.arena_explorer import fragmentation
from zerocourse.course.chapters.activations.kept_tensors import kept_tensors
from zerocourse.course.chapters.activations.plots_activations import arena_map, memory_curves

SMALL = replace(trial.SHAPE, n_layer=3, n_embd=32, block_size=32, vocab_size=64)


@pytest.fixture(scope="module")
def step():
    return trial.recorded("full", SMALL)


def test_the_graph_keeps_what_the_ledger_counts():
    model = trial.model_of(shape=SMALL)
    saved = trial.saved_by(model.h[0](torch.zeros(trial.SAMPLES, 32, 32, requires_grad=True)), model)
    whole = trial.through_blocks(model).each[0]
    assert sum(each.nbytes for each in saved) == whole
    drawn = kept_tensors(saved, 4 * trial.SAMPLES * 32 * 32, {"all": whole}, "A block")
    assert sum(map(int, re.findall(r'data-bytes="(\d+)"', drawn.svg))) == 2 * whole


def test_a_curve_ends_with_the_gradients(step):
    gradients, others = step.curve()
    params = sum(-(-param.nbytes // 512) * 512 for param in trial.model_of(shape=SMALL).parameters())
    assert (gradients[-1], others[-1]) == (params, 0)
    assert max(map(sum, zip(gradients, others, strict=True))) == replay(step.events).peak
    figure = memory_curves({"a": step, "b": step})
    assert len({axes.get_ylim() for axes in figure.axes}) == 1 and "when the forward ends" in figure.get_label()


def test_a_map_of_an_arena_says_whether_all_fits(step, capsys):
    high = replay(step.events).high
    assert "All" in arena_map(step, high).get_label()
    assert "out of memory" in arena_map(step, high - 512).get_label()
    fragmentation({"full": step}, "full", percent=100)
    assert "out of memory" in capsys.readouterr().out
