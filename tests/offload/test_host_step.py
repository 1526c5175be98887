"""The step on the host: torch's fused AdamW, and slices that come up all links at once."""

import statistics
import time
from functools import partial

import pytest
import torch
import worlds
from test_offload import equals_the_plain_run
from torch import nn
from worlds import Case

from zerocourse import initialize, shard
from zerocourse.bench.parts import cpu_adam
from zerocourse.offload import HostOffload

fused_adamw = partial(torch.optim.AdamW, lr=3e-3, weight_decay=0.1, fused=True)


def test_the_fused_step_is_bitwise_the_fused_step_without_offload(pool):
    pool(2).run(equals_the_plain_run, [(Case(stage, param_dtype=dtype, optimizer=fused_adamw, steps=2), True, [{}])
                                       for stage, dtype in ((2, None), (3, torch.bfloat16))])


def test_a_ratio_cuts_a_tensor_and_the_fused_step_is_the_same_to_a_rounding(pool):
    """A fused kernel rounds the last few elements of a tensor, which fill no vector, in another way; a cut makes more of them."""
    cases = [(Case(stage, optimizer=fused_adamw, steps=2), True, [{"ratio": 0.3}]) for stage in (2, 3)]
    pool(2).run(equals_the_plain_run, cases, 1e-7)


@pytest.mark.parametrize("kind", ("AdamW", "Adam"))
def test_the_config_takes_the_fused_adam_for_an_offload(kind):
    for device, fused in (("cpu", True), ("none", None)):
        config = {"train_batch_size": 1, "optimizer": {"type": kind, "params": {"lr": 1e-3}},
                  "zero_optimization": {"stage": 1, "offload_optimizer": {"device": device}}}
        _, optimizer, *_ = initialize(worlds.gpt(), config=config)
        assert optimizer.param_groups[0]["fused"] is fused


LAYERS, WIDTH, RATE = 4, 128, 2e6  # a layer takes 33 ms up one link


def forward_seconds(owned: bool) -> tuple[float, int]:
    """The median of three forwards, and the bytes that a forward brings up this rank's link."""
    def owner(shapes: dict, ranks: int) -> dict[str, int]:
        return {name: number % ranks for number, name in enumerate(shapes)}

    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    offload = HostOffload(rate=RATE, parameters=True)
    model, _ = shard(model, None, 3, rank_map=owner if owned else None, units=[nn.Linear], prefetch=0, offload=offload)
    seconds = []
    with torch.no_grad():
        model(torch.ones(1, WIDTH))
        before = offload.link.bytes["up"]
        for _ in range(3):
            begun = time.perf_counter()
            model(torch.ones(1, WIDTH))
            seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds), (offload.link.bytes["up"] - before) // 3


def test_slices_come_up_all_links_at_once(pool):
    """Every link carries the same bytes. While a layer's owner sends it, the other link waits: N = 2 times as long."""
    owned, sliced = (pool(2).run(forward_seconds, each) for each in (True, False))
    assert [nbytes for _, nbytes in owned + sliced] == [4 * LAYERS * WIDTH**2 // 2] * 4
    assert min(seconds for seconds, _ in owned) > 1.5 * max(seconds for seconds, _ in sliced)


def test_cpu_adam_is_measured(capsys):
    cpu_adam.main("0.01")
    assert capsys.readouterr().out.count("× fused") >= 3
