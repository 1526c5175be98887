"""Precision: the loss scale and its rules, training in fp16, and the dtypes in which gradients are sent and added up."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

import zerocourse
from zerocourse.errors import BadInput, LossScaleError
from zerocourse.precision import DynamicLossScaler, LossScaler

STAGES = (0, 1, 2, 3)

# -- the loss scaler ---------------------------------------------------------------------------------------------------

SCRIPTS = [  # settings; what each step does, "x" overflows and "." does not; the scale after each step
    # hysteresis 1: every overflow halves; after a window the scale doubles, one step late, as DeepSpeed counts
    ({"initial": 8, "window": 2, "hysteresis": 1}, "x..x.......", [4, 4, 4, 2, 2, 2, 4, 4, 8, 8, 16]),
    # before the first overflow the count begins at the first step
    ({"initial": 8, "window": 3, "hysteresis": 1}, ".......", [8, 8, 8, 16, 16, 16, 32]),
    # the first overflow is tolerated, the second is not, and neither is the third: hysteresis comes back with a rise only
    ({"initial": 16, "window": 2, "hysteresis": 2}, "xx.x...x", [16, 8, 8, 4, 4, 4, 8, 8]),
    # ... or with each good step
    ({"initial": 16, "window": 9, "hysteresis": 2, "consecutive_hysteresis": True}, "x.x.xx.x", [16, 16, 16, 16, 16, 8, 8, 8]),
    # the minimum need not be a power of two
    ({"initial": 16, "hysteresis": 1, "minimum": 3}, "xxx", [8, 4, 3]),
    ({}, "xxxx" + "." * 1001, [2**16, 2**15, 2**14, 2**13] + [2**13] * 1000 + [2**14]),
]


@pytest.mark.parametrize("settings, steps, scales", SCRIPTS)
def test_the_scale_follows_its_rules(settings, steps, scales):
    scaler, found = DynamicLossScaler(**settings), []
    for step in steps:
        scaler.update(step == "x")
        found.append(scaler.loss_scale)
        again = DynamicLossScaler(**settings)
        again.load_state_dict(scaler.state_dict())
        scaler = again  # whatever matters is in the state
    assert found == scales


def test_a_scale_at_its_minimum_cannot_fall():
    scaler = DynamicLossScaler(initial=2, hysteresis=2)
    for _ in range(2):
        scaler.update(True)
    with pytest.raises(LossScaleError, match="loss scale 1, which is already at minimum .fp16.min_loss_scale."):
        scaler.update(True)
    with pytest.raises(BadInput, match="smallest loss scale, 4, is above the first one, 2"):
        DynamicLossScaler(initial=2, minimum=4)
    with pytest.raises(BadInput, match="the loss scale is 0"):
        LossScaler(0)


def test_a_static_scale_stays():
    scaler = LossScaler(128)
    scaler.update(True)
    scaler.load_state_dict(DynamicLossScaler().state_dict())
    assert scaler.loss_scale == 128 and not scaler.dynamic and scaler.state_dict() == {}
    dynamic = DynamicLossScaler()
    dynamic.load_state_dict(scaler.state_dict())
    assert dynamic.loss_scale == 2**16
