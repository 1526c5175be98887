"""A step that stops between its phases is the same step, and says where it is."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from zerocourse.course.trials.watched_training import TrainingLimits, next_tokens, phases, train_step


def small():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model, x):
    return model(x).square().mean()


def test_a_step_stops_between_its_phases():
    model, optimizer = small()
    losses, stops, inside = [], [], []

    @contextmanager
    def around(last):
        inside.append(("in", last))
        yield
        inside.append(("out", last))

    start = model.weight.detach().clone()
    for ended, begins in phases(model, optimizer, torch.ones(2, 4, 3), losses, loss_of, around):
        stops.append((ended, begins, len(losses), model.weight.grad is not None, torch.equal(model.weight, start)))
    assert stops == [("", "forward", 0, False, True), ("forward", "backward", 1, False, True),
                     ("backward", "forward", 1, True, True), ("forward", "backward", 2, True, True),
                     ("backward", "step", 2, True, True), ("step", "clear", 2, True, False)]
    assert inside == [("in", False), ("out", False), ("in", True), ("out", True)] and model.weight.grad is None


def test_a_step_without_stops_is_the_same():
    (one, of_one), (other, of_other) = small(), small()
    batches, losses = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(1)), []
    for _ in range(2):
        list(phases(one, of_one, batches, losses, loss_of))
        assert train_step(other, of_other, batches, loss_of=loss_of) == sum(losses[-3:])
    assert torch.equal(one.weight, other.weight) and len(losses) == 6


def test_nothing_holds_the_graph_after_its_backward():
    model, optimizer = small()
    freed = []

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, loss):
            ctx.kept = type("Kept", (), {"__del__": lambda _: freed.append(True)})()
            return loss.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    done = 0
    for ended, _ in phases(model, optimizer, torch.ones(2, 4, 3), [], lambda *batch: Noted.apply(loss_of(*batch))):
        done += ended == "backward"
        assert len(freed) == done


def test_the_loss_of_the_next_tokens():
    calls = []
    assert next_tokens(lambda *tokens: calls.append(tokens) or 7, torch.arange(6).view(2, 3)) == 7
    assert [each.tolist() for each in calls[0]] == [[[0, 1], [3, 4]], [[1, 2], [4, 5]]]


def test_what_is_within_its_limit_is_not_told_apart():
    losses = [0.5]
    limits = TrainingLimits({"peak": 10, "left": 0}, losses)
    assert not limits.over("peak", 10) and (limits.seen, limits.first) == ({"peak": 10, "left": 0}, 0)
    losses.append(0.4)
    assert limits.over("peak", 12)
    losses.append(0.3)
    assert limits.over("peak", 99) and limits.over("left", 1) and not limits.over("peak", 4)
    assert (limits.seen, limits.first, limits["peak"]) == ({"peak": 12, "left": 1}, 2, 10)
    with pytest.raises(KeyError):
        limits.over("other", 1)
