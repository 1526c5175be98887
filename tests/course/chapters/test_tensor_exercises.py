"""The references of chapter 16's checks are right: what they leave is what one process computes."""

import pytest
import torch

from zerocourse.course.checks.exercise import find
from zerocourse.course.checks.harness import _trials, trace
from zerocourse.course.checks.lab import Lab

EXACT = 1e-12  # in fp64


def seen(id):
    """What the reference leaves, case by case and rank by rank."""
    exercise = find(id)
    for trial in _trials(exercise):
        its_trace = trace(Lab(exercise, [exercise.reference], own_allowed=True), trial)
        assert its_trace.ended is None
        for of_rank in its_trace.seen:
            yield from of_rank


def largest(tensors):
    return torch.stack([tensor.abs().max() for tensor in tensors]).max().item()  # NaN, where one is


def test_two_cut_layers_are_those_of_one_process():
    for each in seen("16.1"):
        assert largest([each["output"], each["bias"], each["input"], *each["weights"]]) < EXACT
        assert not each["changed"] and len(each["sums"]) == 1


def test_a_cut_loss_is_torchs():
    for each in seen("16.3"):
        assert each["loss"] == pytest.approx(each["_wanted"], rel=1e-4) and each["gradient"] == 0 and not each["too much"]


def test_each_part_is_counted_once():
    for each in seen("16.4"):
        assert each.get("digits", {}) == {} and each.get("parts", []) == []


def test_the_numbers_of_less_traffic_meet_where_the_chapter_says():
    who_sends_less = find("16.5").reference
    at = 9 * 768 // 2
    assert [who_sends_less(at + more, 768, 1, 4, 4)["less"] for more in (-1, 0, 1)] == ["tensor", "zero3", "zero3"]
    assert torch.tensor(who_sends_less(at, 768, 1, 4, 4)["tensor"]) == 27 * 768**2
